"""What `ucfuse doctor` looks at: `machine` and `bucket` find, the command line prints."""
