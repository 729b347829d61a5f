"""Builds the store of a volume: the one place where the layers around a bucket are put together.

`mounted_volume`, `doctor` and the commands that need no mount call `connect`, and get an
`ObjectStore` that counts and repeats.

Concurrency: session, credentials and endpoint are read in a worker thread; their renewal runs in
the nursery that is passed in, if any, and ends with it. Nothing native exists before `connect`: a
process that wants to fork does so first.
"""

import math
import random
from dataclasses import replace
from functools import partial

import trio

from ucfuse.config import Source, StoreOptions
from ucfuse.errors import AccessDenied, ConfigError, StoreError, StoreUnavailable, Throttled
from ucfuse.metrics import Metrics
from ucfuse.store.api import ObjectStore
from ucfuse.store.memory import MemoryStore
from ucfuse.store.metered import MeteredStore
from ucfuse.store.presence import Presence
from ucfuse.store.retrying import RetryingStore
from ucfuse.store.s3.client import MOST_CONNECTIONS, S3Store
from ucfuse.store.s3.credentials import (
    REFRESH_EVERY_S,
    CredentialsSource,
    SessionCredentials,
    Signing,
)
from ucfuse.store.s3.endpoint import Endpoint, new_session, resolve_endpoint

__all__ = ["check", "connect", "require_credentials"]

# Long enough for a store that is starting, short enough for someone who waits at a prompt.
CHECK_TIMEOUT_S = 10.0


async def connect(
    source: Source,
    options: StoreOptions,
    metrics: Metrics,
    *,
    nursery: trio.Nursery | None = None,
    away_after_s: float = math.inf,
    vended: Signing | None = None,
    rng: random.Random | None = None,
    most_connections: int = MOST_CONNECTIONS,
) -> ObjectStore:
    """Return the store of `source`. No request is sent yet. Raises `ConfigError`.

    `vended` signs the requests; without it, what AWS's tools would find does.

    The caller owns the store and closes it. Credentials are renewed in `nursery`, and a store that
    gave no answer for `away_after_s` is probed there; without one credentials are read once, which
    is enough for a command and for tests.
    """
    presence = Presence(str(source), away_after_s, metrics)
    store: ObjectStore
    if source.bucket is None:
        store = MemoryStore()
    else:
        store = await _connect_s3(
            source.bucket, options, metrics, nursery, presence, vended, most_connections
        )
    store = MeteredStore(store, metrics)
    if nursery is not None:
        probe = partial(store.list_page, source.prefix, delimited=True, max_keys=1)
        nursery.start_soon(presence.serve, probe, nursery)
    return RetryingStore(store, rng or random.Random(), metrics.troubles, presence)


async def check(store: ObjectStore, source: Source) -> None:
    """Make sure that the bucket can be listed. Raises `ConfigError`, which says what to mend."""
    try:
        with trio.fail_after(CHECK_TIMEOUT_S):
            await store.list_page(source.prefix, delimited=True, max_keys=1)
    except trio.TooSlowError:
        raise ConfigError(f"{source}: no answer; {_mend_of(StoreUnavailable)}") from None
    except StoreError as error:
        raise ConfigError(f"{source}: {error.detail}; {_mend_of(type(error))}") from error


async def require_credentials(options: StoreOptions) -> None:
    """Make sure that there is something to sign with. Raises `ConfigError`."""

    def load() -> None:
        if options.sign_requests:
            SessionCredentials(options, new_session(options)).load()

    await trio.to_thread.run_sync(load)


async def _connect_s3(
    bucket: str,
    options: StoreOptions,
    metrics: Metrics,
    nursery: trio.Nursery | None,
    presence: Presence,
    vended: Signing | None,
    most_connections: int,
) -> S3Store:
    if vended is not None:
        options = replace(options, sign_requests=False)
    endpoint, session = await trio.to_thread.run_sync(_read_configuration, bucket, options)
    credentials: CredentialsSource | None = None
    if session is not None:
        credentials = CredentialsSource(
            session.load,
            await trio.to_thread.run_sync(session.load),
            refresh_every_s=REFRESH_EVERY_S if session.expires else math.inf,
        )
        if nursery is not None:
            nursery.start_soon(credentials.serve)
    return S3Store(endpoint, vended or credentials, metrics, presence.heard, most_connections)


def _read_configuration(
    bucket: str, options: StoreOptions
) -> tuple[Endpoint, SessionCredentials | None]:
    session = new_session(options)
    endpoint = resolve_endpoint(bucket, options, session)
    return endpoint, SessionCredentials(options, session) if options.sign_requests else None


def _mend_of(cause: type[StoreError]) -> str:
    if cause is AccessDenied:
        return "see the credentials in use and the permission s3:ListBucket"
    if cause is StoreUnavailable:
        return "see the network, --endpoint-url and, with https, the certificate"
    if cause is Throttled:
        return "try again later"
    return "see the bucket's name, --region and --endpoint-url"
