"""S3 and its look-alikes: the one place that speaks to boto3, botocore and awscrt."""
