"""Finds out at the mount whether a store honours conditions, and makes up for it if it does not.

A store that ignores If-Match and If-None-Match would let one writer replace another's version
unseen. Nothing can be as good as the store's own condition, but asking just before leaves a window
of milliseconds in place of one of hours.

Concurrency: `fit` once, before anybody else uses the store; a `HeadFirst` may be told later, by
`find_out`, before the first change.
"""

import logging
import secrets
from collections.abc import Mapping, Sequence
from typing import TypeVar

import trio

from ucfuse.errors import ObjectChanged, ObjectMissing, StoreError
from ucfuse.store.api import (
    ABSENT,
    Absent,
    Buffer,
    Checksum,
    Condition,
    Fetched,
    ListPage,
    NotModified,
    ObjectHead,
    ObjectStore,
    UploadId,
    Whole,
)
from ucfuse.store.checksums import NOTHING
from ucfuse.volume import ETag, Key, ObjectInfo

__all__ = ["IGNORES_CONDITIONS", "HeadFirst", "fit"]

log = logging.getLogger(__name__)

C = TypeVar("C", Condition, ETag | None)

# No version has it, and no object the name that goes with it.
NO_ETAG = ETag('"00000000000000000000000000000000"')
PROBE_NAME = ".ucfuse-probe-"
PROBE_TIMEOUT_S = 10.0

IGNORES_CONDITIONS = (
    "this store ignores conditional requests: the present version is asked for before each commit,"
    " but two clients that write one file in the same moment are not told apart"
)


async def fit(store: ObjectStore, prefix: str) -> tuple[ObjectStore, str | None]:
    """Return the store to use, and a warning if it lacks what mounts rely on."""
    if await _honours_conditions(store, prefix):
        return store, None
    return HeadFirst(store), IGNORES_CONDITIONS


async def _honours_conditions(store: ObjectStore, prefix: str) -> bool:
    """Say whether the store refuses what it is told to refuse.

    One PUT that a store with conditions refuses, so that nothing comes of it; where it is carried
    out, it is undone. If it cannot be found out, the store is believed to be as S3 is.
    """
    key = Key(f"{prefix}{PROBE_NAME}{secrets.token_hex(8)}")
    try:
        with trio.move_on_after(PROBE_TIMEOUT_S) as scope:
            await store.put(key, b"", condition=NO_ETAG, checksum=NOTHING)
            await store.delete(key)
    except ObjectChanged:
        return True
    except StoreError as cause:  # AccessDenied: nothing will be written either
        log.info("whether the store honours conditions could not be found out: %s", cause)
        return True
    if scope.cancelled_caught:
        log.info("whether the store honours conditions could not be found out: no answer")
        return True
    log.warning("%s", IGNORES_CONDITIONS)
    return False


class HeadFirst:
    """Implements `ObjectStore` around one without conditions, which it owns.

    With `is_needed` false it hands everything on as it is, until it is found to be needed.
    """

    def __init__(self, store: ObjectStore, *, is_needed: bool = True) -> None:
        self._store = store
        self.is_needed = is_needed

    async def find_out(self, prefix: str) -> None:
        """Ask the store whether it needs this; before the first change."""
        self.is_needed = not await _honours_conditions(self._store, prefix)

    async def head(self, key: Key) -> ObjectHead:
        return await self._store.head(key)

    async def get(
        self,
        key: Key,
        start: int,
        stop: int,
        *,
        if_match: ETag | None = None,
        if_none_match: ETag | None = None,
        is_whole: bool = False,
    ) -> Fetched | NotModified:
        asked_for = None if self.is_needed else if_none_match
        answer = await self._store.get(
            key, start, stop, if_match=if_match, if_none_match=asked_for, is_whole=is_whole
        )
        if isinstance(answer, Fetched) and answer.info.etag == if_none_match:
            return NotModified(answer.info.etag)
        return answer

    async def put(
        self,
        key: Key,
        body: Buffer,
        *,
        condition: Condition = None,
        metadata: Mapping[str, str] | None = None,
        checksum: Checksum | None = None,
    ) -> ETag:
        condition = await self._left_to_store(key, condition)
        return await self._store.put(
            key, body, condition=condition, metadata=metadata, checksum=checksum
        )

    async def delete(self, key: Key, *, if_match: ETag | None = None) -> None:
        condition = await self._left_to_store(key, if_match)
        await self._store.delete(key, if_match=condition)

    async def copy(
        self, source: Key, source_etag: ETag, target: Key, *, condition: Condition = None
    ) -> ObjectInfo:
        await self._left_to_store(source, source_etag)
        condition = await self._left_to_store(target, condition)
        return await self._store.copy(source, source_etag, target, condition=condition)

    async def list_page(
        self,
        prefix: str,
        *,
        delimited: bool,
        start_after: str | None = None,
        token: str | None = None,
        max_keys: int = 1000,
    ) -> ListPage:
        return await self._store.list_page(
            prefix, delimited=delimited, start_after=start_after, token=token, max_keys=max_keys
        )

    async def create_upload(self, key: Key) -> UploadId:
        return await self._store.create_upload(key)

    async def upload_part(
        self,
        key: Key,
        upload: UploadId,
        number: int,
        body: Buffer,
        *,
        checksum: Checksum | None = None,
    ) -> ETag:
        return await self._store.upload_part(key, upload, number, body, checksum=checksum)

    async def upload_part_copy(
        self,
        key: Key,
        upload: UploadId,
        number: int,
        source: Key,
        source_etag: ETag,
        start: int,
        stop: int,
    ) -> ETag:
        await self._left_to_store(source, source_etag)
        return await self._store.upload_part_copy(
            key, upload, number, source, source_etag, start, stop
        )

    async def complete_upload(
        self,
        key: Key,
        upload: UploadId,
        parts: Sequence[ETag],
        *,
        condition: Condition = None,
        whole: Whole | None = None,
    ) -> ETag:
        condition = await self._left_to_store(key, condition)
        return await self._store.complete_upload(
            key, upload, parts, condition=condition, whole=whole
        )

    async def abort_upload(self, key: Key, upload: UploadId) -> None:
        await self._store.abort_upload(key, upload)

    async def aclose(self) -> None:
        await self._store.aclose()

    async def _left_to_store(self, key: Key, condition: C) -> C | None:
        """Return the condition to send: none if it had to be looked at here.

        Raises `ObjectChanged`: it does not hold.
        """
        if condition is None or not self.is_needed:
            return condition
        try:
            present: ETag | Absent = (await self._store.head(key)).info.etag
        except ObjectMissing:
            present = ABSENT
        if present != condition:
            raise ObjectChanged(key, f"expected {condition}, got {present}")
        return None
