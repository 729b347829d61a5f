"""A running S3 server, and boto3 as the second witness of what is in it."""

import socket
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import boto3
from botocore.config import Config

__all__ = ["Server", "free_port", "make_bucket"]

HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Server:
    """Where a server listens and who may use it."""

    name: str
    endpoint_url: str
    access_key: str
    secret_key: str
    region: str = "us-east-1"

    @property
    def address(self) -> tuple[str, int]:
        """Host and port, for a proxy in front of it."""
        url = urlsplit(self.endpoint_url)
        return url.hostname or "", url.port or 80

    def environment(self) -> dict[str, str]:
        """Return what a process needs in its environment to use the server, and nothing else."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint_url,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": self.region,
            "AWS_DEFAULT_REGION": self.region,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def client(self) -> Any:
        """Return a boto3 client. The caller closes it."""
        return boto3.session.Session().client(
            "s3",
            endpoint_url=self.endpoint_url,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            region_name=self.region,
            config=Config(s3={"addressing_style": "path"}, max_pool_connections=32),
        )


def free_port() -> int:
    """Return a port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def make_bucket(client: Any, name: str) -> None:
    """Make the bucket unless it is there: a server that was given may have it from before."""
    with suppress(client.exceptions.BucketAlreadyOwnedByYou):
        client.create_bucket(Bucket=name)
