"""A server that somebody else runs: S3_ENDPOINT names it, AWS_* says who we are there."""

import os

from tests.servers.server import Server

__all__ = ["given_lacks", "given_server"]


def given_server() -> Server | None:
    """Return the server that the environment names; None: it names none.

    Raises `KeyError` if it says where, but not who we are.
    """
    endpoint_url = os.environ.get("S3_ENDPOINT")
    if not endpoint_url:
        return None
    return Server(
        "given",
        endpoint_url,
        os.environ["AWS_ACCESS_KEY_ID"],
        os.environ["AWS_SECRET_ACCESS_KEY"],
        os.environ.get("AWS_REGION", "us-east-1"),
    )


def given_lacks() -> list[str]:
    """Return the names of the features that the given server lacks beside AWS S3."""
    return os.environ.get("S3_LACKS", "").split()
