"""Counts what is asked of a store: requests by kind, how long they took, bytes sent and received.

`connect` puts it directly around a store and below `retrying`, so every attempt counts. Requests
that a store makes unasked (a second one to complete an answer) it counts itself, in the same
`Metrics`.

It never changes a request or an answer.
"""

from collections.abc import Mapping, Sequence
from types import TracebackType

import trio

from ucfuse.latency import Histogram
from ucfuse.metrics import Metrics
from ucfuse.store.api import (
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
from ucfuse.volume import ETag, Key, ObjectInfo

__all__ = ["MeteredStore", "Timed"]


class Timed:
    """Adds to a histogram how long a block took, however it ends.

    A class, since every request enters one: a generator costs three times as much.
    """

    __slots__ = ("_began", "_histogram")

    def __init__(self, histogram: Histogram) -> None:
        self._histogram = histogram

    def __enter__(self) -> None:
        self._began = trio.current_time()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._histogram.add(trio.current_time() - self._began)


class MeteredStore:
    """Implements `ObjectStore` around another one, which it owns."""

    def __init__(self, store: ObjectStore, metrics: Metrics) -> None:
        self._store = store
        self._metrics = metrics

    async def head(self, key: Key) -> ObjectHead:
        with self._counted("HEAD"):
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
        with self._counted("GET"):
            answer = await self._store.get(
                key,
                start,
                stop,
                if_match=if_match,
                if_none_match=if_none_match,
                is_whole=is_whole,
            )
            if isinstance(answer, Fetched):
                self._metrics.store_bytes_received += len(answer.data)
            else:
                self._metrics.store_unchanged += 1
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
        with self._counted("PUT", body):
            return await self._store.put(
                key, body, condition=condition, metadata=metadata, checksum=checksum
            )

    async def delete(self, key: Key, *, if_match: ETag | None = None) -> None:
        with self._counted("DELETE"):
            await self._store.delete(key, if_match=if_match)

    async def copy(
        self, source: Key, source_etag: ETag, target: Key, *, condition: Condition = None
    ) -> ObjectInfo:
        with self._counted("COPY"):
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
        with self._counted("LIST"):
            return await self._store.list_page(
                prefix,
                delimited=delimited,
                start_after=start_after,
                token=token,
                max_keys=max_keys,
            )

    async def create_upload(self, key: Key) -> UploadId:
        with self._counted("CREATE"):
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
        with self._counted("PART", body):
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
        with self._counted("PARTCOPY"):
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
        with self._counted("COMPLETE"):
            return await self._store.complete_upload(
                key, upload, parts, condition=condition, whole=whole
            )

    async def abort_upload(self, key: Key, upload: UploadId) -> None:
        with self._counted("ABORT"):
            await self._store.abort_upload(key, upload)

    async def aclose(self) -> None:
        await self._store.aclose()

    def _counted(self, kind: str, body: Buffer = b"") -> Timed:
        self._metrics.store_requests[kind] += 1
        self._metrics.store_bytes_sent += memoryview(body).nbytes
        return Timed(self._metrics.store_latencies[kind])
