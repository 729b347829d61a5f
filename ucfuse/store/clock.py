"""How far the clock of a store is from ours: requests are signed with the time, and stores refuse
those that are off by more than 15 minutes.

`doctor` asks. One unsigned request, whose answer's Date header is all that counts.

Concurrency: `clock_skew_s` blocks in a worker thread.
"""

import http.client
import ssl
import time
from email.utils import parsedate_to_datetime

import trio

from ucfuse.config import Source, StoreOptions
from ucfuse.store.s3.endpoint import Endpoint, new_session, resolve_endpoint

__all__ = ["clock_skew_s"]

TIMEOUT_S = 10.0


async def clock_skew_s(source: Source, options: StoreOptions) -> float | None:
    """Return by how many seconds our clock is ahead; None: the store does not tell.

    Raises `OSError` if it cannot be reached, `ConfigError`.
    """
    if source.bucket is None:
        return None
    return await trio.to_thread.run_sync(_ask, source.bucket, options)


def _ask(bucket: str, options: StoreOptions) -> float | None:
    connection = _connection(resolve_endpoint(bucket, options, new_session(options)))
    try:
        began = time.time()
        connection.request("HEAD", "/")
        told = connection.getresponse().headers.get("Date")
        between = (began + time.time()) / 2
    except http.client.HTTPException as error:
        raise OSError(str(error)) from error
    finally:
        connection.close()
    try:
        return between - parsedate_to_datetime(told).timestamp() if told else None
    except ValueError:
        return None


def _connection(endpoint: Endpoint) -> http.client.HTTPConnection:
    if not endpoint.tls:
        return http.client.HTTPConnection(endpoint.host, timeout=TIMEOUT_S)
    trusted = ssl.create_default_context(cafile=endpoint.ca_file)
    return http.client.HTTPSConnection(endpoint.host, timeout=TIMEOUT_S, context=trusted)
