"""Wait until the store answers, and make the bucket unless it is there: make_bucket.py NAME."""

import sys
import time

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

DEADLINE_S = 120.0
HAVE_IT = frozenset({"BucketAlreadyOwnedByYou", "BucketAlreadyExists"})


def make_bucket(name: str) -> None:
    """Make the bucket. Raises botocore's errors if the store cannot be reached, or refuses."""
    config = Config(s3={"addressing_style": "path"}, retries={"max_attempts": 1})
    s3 = boto3.client("s3", config=config)
    try:
        s3.create_bucket(Bucket=name)
    except ClientError as error:
        if error.response["Error"]["Code"] not in HAVE_IT:
            raise


def main() -> str | None:
    """Return what went wrong, for `sys.exit`."""
    end_at = time.monotonic() + DEADLINE_S
    while True:
        try:
            make_bucket(sys.argv[1])
        except (BotoCoreError, ClientError) as error:  # a fresh server refuses for some seconds
            if time.monotonic() > end_at:
                return f"no bucket {sys.argv[1]} after {DEADLINE_S:.0f} s: {error}"
            time.sleep(1)
        else:
            return None


if __name__ == "__main__":
    sys.exit(main())
