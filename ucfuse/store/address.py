"""What names a store for certain, whichever option, profile or variable led to it.

A mount writes it into its journal; `ucfuse recover` compares, so that what was written for one
store is never committed to another. Nothing here sends a request.
"""

import secrets
from dataclasses import replace

import trio

from ucfuse.config import Source, StoreOptions
from ucfuse.store.s3.endpoint import new_session, resolve_endpoint

__all__ = ["locate"]


async def locate(source: Source, options: StoreOptions) -> StoreOptions:
    """Return the options with the store's address filled in. Raises `ConfigError`."""
    if options.address:
        return options
    if source.bucket is None:
        # No other mount will ever find what is in this one's memory.
        return replace(options, address=f"memory:{secrets.token_hex(8)}")
    address = await trio.to_thread.run_sync(_address_of, source.bucket, options)
    return replace(options, address=address)


def _address_of(bucket: str, options: StoreOptions) -> str:
    endpoint = resolve_endpoint(bucket, options, new_session(options))
    scheme = "https" if endpoint.tls else "http"
    return f"{scheme}://{endpoint.host}{endpoint.base_path}"
