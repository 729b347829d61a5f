"""Whether mounts can work with a store: credentials, rights, conditions, clock.

Every check returns a `Finding`: what was looked at, how it is, and what mends it. One small object
is written and removed.
"""

import math
import secrets
from collections.abc import AsyncIterator
from contextlib import suppress

import trio

from ucfuse.config import Source, StoreOptions
from ucfuse.doctor.findings import Finding, fail, ok, warn
from ucfuse.errors import AccessDenied, ConfigError, ObjectChanged, ObjectMissing, StoreError
from ucfuse.metrics import Metrics
from ucfuse.store.api import ABSENT, Fetched, ObjectStore
from ucfuse.store.checksums import checksum_of
from ucfuse.store.clock import clock_skew_s
from ucfuse.store.conditions import NO_ETAG, PROBE_NAME
from ucfuse.store.connect import check, connect, require_credentials
from ucfuse.tasks import deadline
from ucfuse.volume import Key, ObjectInfo

__all__ = ["examine_store", "look_at_bucket", "look_at_clock"]

REQUEST_TIMEOUT_S = 10.0
# For somebody who has pressed Ctrl-C.
REMOVE_PATIENCE_S = 3.0
# Stores refuse signatures that are 15 minutes off.
SKEW_WARNS_S = 60.0
SKEW_FAILS_S = 840.0


async def examine_store(source: Source | None, options: StoreOptions) -> AsyncIterator[Finding]:
    """Yield what there is to say of the credentials, and of the store if there is one."""
    try:
        await require_credentials(options)
    except ConfigError as error:
        kind = warn if source is None else fail
        yield kind("credentials", *_split(error, "credentials: "))
        return
    yield ok("credentials", "found" if options.sign_requests else "not used")
    if source is None:
        return
    try:
        store = await connect(source, options, Metrics())
    except ConfigError as error:
        yield fail("store", *_split(error, f"{source}: "))
        return
    try:
        async for finding in look_at_bucket(store, source):
            yield finding
    finally:
        with trio.CancelScope(shield=True):
            await store.aclose()
    try:
        yield look_at_clock(await clock_skew_s(source, options))
    except (OSError, ConfigError) as error:
        yield warn("clock", f"the store does not tell its time: {error}", "see the network")


def _split(error: ConfigError, prefix: str) -> tuple[str, str]:
    """Return detail and mend of a message that has both, divided by its last semicolon."""
    detail, _, mend = str(error).removeprefix(prefix).rpartition("; ")
    return (detail, mend) if detail else (mend, "see the README")


async def look_at_bucket(store: ObjectStore, source: Source) -> AsyncIterator[Finding]:
    """List, write, read, and try conditions; stops where the rest makes no sense."""
    try:
        await check(store, source)
    except ConfigError as error:
        yield fail("list", *_split(error, f"{source}: "))
        return
    yield ok("list", str(source))
    key = Key(f"{source.prefix}{PROBE_NAME}{secrets.token_hex(8)}")
    try:
        written = await _try_to_write(store, key)
        if isinstance(written, Finding):
            yield written
            yield await look_at_reading(store, source)
            return
        yield ok("write", "an object was written, and will be removed")
        yield await _read_back(store, written)
        yield await look_at_conditions(store, written)
    except BaseException:  # Ctrl-C, mostly
        with trio.move_on_after(REMOVE_PATIENCE_S, shield=True), suppress(StoreError):
            await store.delete(key)
        raise
    yield await _remove(store, key)


async def _try_to_write(store: ObjectStore, key: Key) -> ObjectInfo | Finding:
    try:
        with deadline(REQUEST_TIMEOUT_S, key):
            etag = await store.put(key, b"ucfuse", checksum=checksum_of(b"ucfuse"))
    except AccessDenied as cause:
        return fail(
            "write", cause.detail, "allow s3:PutObject and s3:DeleteObject, or mount --read-only"
        )
    except StoreError as cause:
        return fail("write", str(cause), "see what the store says, or mount --read-only")
    return ObjectInfo(key, len(b"ucfuse"), etag, None)


async def _read_back(store: ObjectStore, written: ObjectInfo) -> Finding:
    try:
        with deadline(REQUEST_TIMEOUT_S, written.key):
            answer = await store.get(written.key, 0, written.size)
    except StoreError as cause:
        return _denied_read(cause)
    if isinstance(answer, Fetched) and answer.data == b"ucfuse":
        return ok("read", "what was written comes back")
    return fail("read", "other bytes came back than were written", "see the store's own log")


async def look_at_reading(store: ObjectStore, source: Source) -> Finding:
    """Read one byte of an object that is there, if there is one."""
    try:
        with deadline(REQUEST_TIMEOUT_S, source.prefix):
            page = await store.list_page(source.prefix, delimited=False, max_keys=10)
    except StoreError as cause:
        return fail("read", cause.detail or str(cause), "see what the store says")
    found = next((info for info in page.objects if info.size), None)
    if found is None:
        return warn("read", "nothing there to read", "put an object there and try again")
    try:
        with deadline(REQUEST_TIMEOUT_S, found.key):
            await store.get(found.key, 0, 1)
    except ObjectMissing:
        return warn("read", f"{found.key} went away meanwhile", "try again")
    except StoreError as cause:
        return _denied_read(cause)
    return ok("read", found.key)


def _denied_read(cause: StoreError) -> Finding:
    return fail("read", cause.detail or str(cause), "allow s3:GetObject")


async def look_at_conditions(store: ObjectStore, written: ObjectInfo) -> Finding:
    """Does the store refuse what would replace a version unseen?"""
    subject = "conditional writes"
    for condition, name in ((ABSENT, "If-None-Match"), (NO_ETAG, "If-Match")):
        try:
            with deadline(REQUEST_TIMEOUT_S, written.key):
                await store.put(
                    written.key, b"ucfuse", condition=condition, checksum=checksum_of(b"ucfuse")
                )
        except ObjectChanged:
            continue
        except StoreError as cause:
            return fail(subject, str(cause), "see what the store says")
        return warn(
            subject,
            f"{name} is ignored: two clients that write one file in one moment are not told apart",
            "use a store that honours conditional requests where several machines write",
        )
    return ok(subject, "honoured")


async def _remove(store: ObjectStore, key: Key) -> Finding:
    try:
        with deadline(REQUEST_TIMEOUT_S, key):
            await store.delete(key)
    except StoreError as cause:
        return fail("remove", str(cause), f"allow s3:DeleteObject, and remove {key}")
    return ok("remove", "the object is gone again")


def look_at_clock(skew_s: float | None) -> Finding:
    """Judge by how many seconds our clock is ahead of the store's; None: it did not tell."""
    if skew_s is None:
        return ok("clock", "the store does not tell its time")
    off, mend = abs(skew_s), "set this machine's clock, by NTP for instance"
    detail = f"{math.floor(off)} s {'ahead of' if skew_s > 0 else 'behind'} the store's"
    if off >= SKEW_FAILS_S:
        return fail("clock", f"{detail}, which refuses requests", mend)
    if off >= SKEW_WARNS_S:
        return warn("clock", detail, mend)
    return ok("clock", detail)
