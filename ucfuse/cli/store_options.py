"""The options that say how a store is reached; several commands have them."""

import argparse

from ucfuse.config import StoreOptions

__all__ = ["add_to", "store_of"]


def add_to(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    group = parser.add_argument_group("store")
    group.add_argument("--endpoint-url", metavar="URL", help="of the store, unless it is AWS")
    group.add_argument("--region", metavar="NAME", help="of the bucket")
    group.add_argument("--profile", metavar="NAME", help="of the AWS configuration files")
    group.add_argument(
        "--no-sign-request", action="store_true", help="for public buckets: use no credentials"
    )


def store_of(options: argparse.Namespace) -> StoreOptions:
    """Return how to reach the store that was named."""
    return StoreOptions(
        endpoint_url=options.endpoint_url,
        region=options.region,
        profile=options.profile,
        sign_requests=not options.no_sign_request,
    )
