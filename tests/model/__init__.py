"""Random operations against a reference."""
