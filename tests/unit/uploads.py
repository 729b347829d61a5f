"""An uploader on a store that a test can look at and act in, and the other client of the bucket."""

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest
import trio

from ucfuse.budget import MemoryBudget
from ucfuse.errors import NoSuchUpload
from ucfuse.store.api import (
    Buffer,
    Checksum,
    Condition,
    Fetched,
    ObjectHead,
    UploadId,
    Whole,
)
from ucfuse.store.memory import MemoryStore
from ucfuse.store.memory_bucket import MemoryBucket
from ucfuse.volume import ETag, Key, MiB, ObjectInfo
from ucfuse.writing.area import StagingArea
from ucfuse.writing.parts import MAX_OBJECT_BYTES
from ucfuse.writing.staging import Staging
from ucfuse.writing.upload import Uploader

__all__ = ["KEY", "Bench", "Hook", "NewBench", "ScriptedStore", "make_bench"]

KEY = Key("data/model.pt")
Hook = Callable[[], Awaitable[None]]
NewBench = Callable[..., "Bench"]


class ScriptedStore(MemoryStore):
    """A memory store that counts its requests and lets a test act before any kind of them."""

    def __init__(self, bucket: MemoryBucket) -> None:
        super().__init__(bucket)
        self.requests: Counter[str] = Counter()
        self.uploads: list[UploadId] = []
        self.before: dict[str, Hook] = {}
        self.most_parts_at_once = 0
        self._parts_now = 0

    async def _begin(self, kind: str) -> None:
        self.requests[kind] += 1
        if kind in self.before:
            await self.before[kind]()

    async def head(self, key: Key) -> ObjectHead:
        await self._begin("HEAD")
        return await super().head(key)

    async def put(
        self,
        key: Key,
        body: Buffer,
        *,
        condition: Condition = None,
        metadata: object = None,
        checksum: Checksum | None = None,
    ) -> ETag:
        await self._begin("PUT")
        return await super().put(key, body, condition=condition, checksum=checksum)

    async def create_upload(self, key: Key) -> UploadId:
        await self._begin("CREATE")
        self.uploads.append(await super().create_upload(key))
        return self.uploads[-1]

    async def upload_part(
        self,
        key: Key,
        upload: UploadId,
        number: int,
        body: Buffer,
        *,
        checksum: Checksum | None = None,
    ) -> ETag:
        self._parts_now += 1
        self.most_parts_at_once = max(self.most_parts_at_once, self._parts_now)
        try:
            await self._begin("PART")
            return await super().upload_part(key, upload, number, body, checksum=checksum)
        finally:
            self._parts_now -= 1

    async def complete_upload(
        self,
        key: Key,
        upload: UploadId,
        parts: Sequence[ETag],
        *,
        condition: Condition = None,
        whole: Whole | None = None,
    ) -> ETag:
        await self._begin("COMPLETE")
        return await super().complete_upload(key, upload, parts, condition=condition, whole=whole)

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
        await self._begin("PARTCOPY")
        return await super().upload_part_copy(key, upload, number, source, source_etag, start, stop)

    async def abort_upload(self, key: Key, upload: UploadId) -> None:
        await self._begin("ABORT")
        await super().abort_upload(key, upload)


@dataclass
class Bench:
    """An uploader, the store it speaks to, another client of the bucket, and a staging area."""

    uploader: Uploader
    store: ScriptedStore
    other: MemoryStore
    budget: MemoryBudget
    area: StagingArea

    async def staged(self, size: int) -> tuple[Staging, bytes]:
        data = Random(size).randbytes(size)
        staging = self.area.new(KEY, 0)
        await staging.write(0, data)
        return staging, data

    async def commit(self, key: Key, staging: Staging, condition: Condition) -> ObjectInfo:
        """One commit, with no second try."""
        upload = self.uploader.begin(staging, lambda: key)
        try:
            return await upload.commit(key, condition)
        finally:
            await upload.abandon()

    async def assert_nothing_left(self) -> None:
        assert self.budget.reserved_bytes == 0
        for upload in self.store.uploads:
            with pytest.raises(NoSuchUpload):
                await self.other.upload_part(KEY, upload, 1, b"")

    async def stored(self) -> bytes:
        fetched = await self.other.get(KEY, 0, MAX_OBJECT_BYTES)
        assert isinstance(fetched, Fetched)
        return fetched.data


def make_bench(
    directory: Path,
    nursery: trio.Nursery,
    budget_bytes: int = 512 * MiB,
    part_bytes: int | None = None,
) -> Bench:
    """Return a bench on an empty bucket, whose clock stands still."""
    bucket = MemoryBucket(clock=lambda: 1_700_000_000.9)
    store, budget = ScriptedStore(bucket), MemoryBudget(budget_bytes)
    uploader = Uploader(store, budget, nursery, commit_timeout_s=300, part_bytes=part_bytes)
    return Bench(uploader, store, MemoryStore(bucket), budget, StagingArea(directory))
