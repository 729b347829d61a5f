"""The store without a server: the client of a bucket in memory.

Tests, benchmarks and mounts of `memory:` use it. Several stores may share one bucket, as several
clients of a real store would.

It never repeats a request and never fails by itself; what is refused, the bucket refuses.

Concurrency: one trio loop. A request is one step of the bucket, between a checkpoint for the way
there and one for the way back: other tasks run while the answer is under way, and a cancelled
change may have been carried out, as with a real store.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import trio

from ucfuse.errors import ObjectChanged, ObjectMissing
from ucfuse.store.api import (
    Buffer,
    Checksum,
    Condition,
    Fetched,
    ListPage,
    NotModified,
    ObjectHead,
    UploadId,
    Whole,
)
from ucfuse.store.memory_bucket import MAX_PAGE_KEYS, MemoryBucket
from ucfuse.volume import ETag, Key, ObjectInfo

__all__ = ["MemoryStore"]

T = TypeVar("T")


class MemoryStore:
    """A client of a `MemoryBucket`; of one of its own if none is given."""

    def __init__(self, bucket: MemoryBucket | None = None) -> None:
        self._bucket = bucket or MemoryBucket()

    async def head(self, key: Key) -> ObjectHead:
        version = await _exchange(lambda: self._bucket.version(key))
        return ObjectHead(version.info, version.metadata, version.checksum)

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
        try:
            version = await _exchange(lambda: self._bucket.version(key))
        except ObjectMissing:
            if if_match is None:
                raise
            raise ObjectChanged(key, f"expected {if_match}, got no object") from None
        etag = version.info.etag
        if if_match is not None and if_match != etag:
            raise ObjectChanged(key, f"expected {if_match}, got {etag}")
        if if_none_match == etag:
            return NotModified(etag)
        return Fetched(version.info, start, version.data[start:stop])

    async def put(
        self,
        key: Key,
        body: Buffer,
        *,
        condition: Condition = None,
        metadata: Mapping[str, str] | None = None,
        checksum: Checksum | None = None,
    ) -> ETag:
        return await _exchange(
            lambda: self._bucket.put(key, body, condition, metadata or {}, checksum)
        )

    async def delete(self, key: Key, *, if_match: ETag | None = None) -> None:
        await _exchange(lambda: self._bucket.delete(key, if_match))

    async def copy(
        self, source: Key, source_etag: ETag, target: Key, *, condition: Condition = None
    ) -> ObjectInfo:
        return await _exchange(lambda: self._bucket.copy(source, source_etag, target, condition))

    async def list_page(
        self,
        prefix: str,
        *,
        delimited: bool,
        start_after: str | None = None,
        token: str | None = None,
        max_keys: int = MAX_PAGE_KEYS,
    ) -> ListPage:
        return await _exchange(
            lambda: self._bucket.list_page(
                prefix,
                delimited=delimited,
                start_after=start_after,
                token=token,
                max_keys=max_keys,
            )
        )

    async def create_upload(self, key: Key) -> UploadId:
        return await _exchange(lambda: self._bucket.create_upload(key))

    async def upload_part(
        self,
        key: Key,
        upload: UploadId,
        number: int,
        body: Buffer,
        *,
        checksum: Checksum | None = None,
    ) -> ETag:
        return await _exchange(
            lambda: self._bucket.upload_part(key, upload, number, body, checksum)
        )

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
        return await _exchange(
            lambda: self._bucket.copy_part(key, upload, number, source, source_etag, start, stop)
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
        return await _exchange(
            lambda: self._bucket.complete_upload(key, upload, parts, condition, whole)
        )

    async def abort_upload(self, key: Key, upload: UploadId) -> None:
        await _exchange(lambda: self._bucket.abort_upload(key, upload))

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


async def _exchange(request: Callable[[], T]) -> T:
    await trio.lowlevel.checkpoint()
    answer = request()
    await trio.lowlevel.checkpoint()
    return answer
