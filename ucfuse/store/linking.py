"""Finds out how a store copies an object to a name only if that name is free.

`links` of the file system asks before its first copy, and mounts with `--hardlinks copy` at their
start. Not every store that honours the conditions of PUT honours that of CopyObject; where it does
not, small objects are put and large ones copied by an upload, if the store honours the condition
of its completion. Where it honours neither, two programs could both get one name, and there are no
links.

Concurrency: trio loop only. One asks, the others wait for its answer.
"""

import secrets
from collections.abc import Awaitable, Callable

import trio

from ucfuse.errors import NotPermitted, ObjectChanged, StoreRefused
from ucfuse.store.api import ABSENT, ObjectStore
from ucfuse.store.checksums import checksum_of
from ucfuse.store.conditions import PROBE_NAME, PROBE_TIMEOUT_S, HeadFirst
from ucfuse.tasks import deadline
from ucfuse.volume import ETag, Key

__all__ = ["CopyCondition"]

BODY = b"ucfuse"
TWO_COULD_WIN = "this store ignores conditions, so two programs could both get one name"


class CopyCondition:
    """What becomes of the condition of a copy in one store, which it borrows."""

    def __init__(self, store: ObjectStore, prefix: str, *, is_ignored: bool | None = None) -> None:
        """`is_ignored`: the answer, where it is known."""
        self._store = store
        self._prefix = prefix
        self._is_ignored = is_ignored
        self._asking = trio.Lock()

    async def is_ignored(self) -> bool:
        """Return whether a copy by one request replaces what has the name, whatever it is told.

        The first time it writes two small objects and removes them. Raises `NotPermitted`: nothing
        that the store does keeps two programs from getting one name; and what fails a request.
        """
        async with self._asking:
            if self._is_ignored is None:
                if isinstance(self._store, HeadFirst) and self._store.is_needed:
                    raise NotPermitted(self._prefix, TWO_COULD_WIN)
                with deadline(PROBE_TIMEOUT_S, self._prefix):
                    self._is_ignored = await _find_out(self._store, self._prefix)
            return self._is_ignored


async def _find_out(store: ObjectStore, prefix: str) -> bool:
    source, target = (Key(f"{prefix}{PROBE_NAME}{secrets.token_hex(8)}") for _ in "ab")
    etag = await store.put(source, BODY, checksum=checksum_of(BODY))
    try:
        await store.put(target, BODY, checksum=checksum_of(BODY))
        return await _ignores(store, source, etag, target)
    finally:
        with trio.CancelScope(shield=True, deadline=trio.current_time() + PROBE_TIMEOUT_S):
            await store.delete(target)
            await store.delete(source)


async def _ignores(store: ObjectStore, source: Key, etag: ETag, target: Key) -> bool:
    """Try both ways on a name that is taken: one of them must be refused."""

    async def copy() -> None:
        await store.copy(source, etag, target, condition=ABSENT)

    async def complete() -> None:
        upload = await store.create_upload(target)
        try:
            part = await store.upload_part(target, upload, 1, BODY)
            await store.complete_upload(target, upload, [part], condition=ABSENT)
        except ObjectChanged:
            await store.abort_upload(target, upload)
            raise

    if await _is_refused(copy):
        return False
    if await _is_refused(complete):
        return True
    raise NotPermitted(target, TWO_COULD_WIN)


async def _is_refused(change: Callable[[], Awaitable[None]]) -> bool:
    try:
        await change()
    except ObjectChanged:
        return True
    except StoreRefused:  # it does not know such a request at all
        return False
    return False
