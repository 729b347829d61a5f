"""Copies inside the store, of any size: `renames` and `links` are made of them.

Up to 5 GiB one request copies; above, an upload is made of copied ranges.
Nothing is repeated here (the store does), and nothing is deleted.

Concurrency: the ranges of one object are copied side by side, by tasks of the service nursery.
"""

import logging

import trio

from ucfuse.errors import AlreadyExists, ObjectMissing, StaleName, VolumeError
from ucfuse.fs.services import Services
from ucfuse.names.inodes import NEVER, File
from ucfuse.store.api import Condition, UploadId
from ucfuse.tasks import deadline, in_parallel
from ucfuse.volume import ETag, GiB, Key, ObjectInfo
from ucfuse.writing.confirmation import confirmed
from ucfuse.writing.journal import Entry
from ucfuse.writing.patience import Patience

__all__ = ["COPY_LIMIT_BYTES", "Copies"]

log = logging.getLogger(__name__)

COPY_LIMIT_BYTES = 5 * GiB
"""The largest object that one copy request takes (S3 CopyObject)."""

# Ranges of this size fail alone and run side by side; 5 TiB are then 5,120 parts.
RANGE_BYTES = 1 * GiB
RANGES_AT_ONCE = 16
ABORT_TIMEOUT_S = 5.0


class Copies:
    """Copies of one volume. The limits are parameters so that a test needs no gigabytes."""

    def __init__(
        self,
        services: Services,
        limit_bytes: int = COPY_LIMIT_BYTES,
        range_bytes: int = RANGE_BYTES,
    ) -> None:
        self._services = services
        self._limit_bytes = limit_bytes
        self._range_bytes = range_bytes

    async def copy(
        self,
        version: ObjectInfo,
        target: Key,
        condition: Condition,
        patience: Patience | None = None,
    ) -> ObjectInfo:
        """Copy exactly this version to `target`; return what that became.

        Copies with one `patience` go on as long as any of them moves.

        Raises `ObjectMissing` or `ObjectChanged` (the source, or the condition on the target),
        `StoreUnavailable`: nothing moved for the commit timeout.
        """
        patience = patience or Patience(self._services.config.commit_timeout_s)
        if version.size <= self._limit_bytes:
            with patience.bound(version.key):
                copied = await self._services.store.copy(
                    version.key, version.etag, target, condition=condition
                )
            return _sized(copied, version)
        return await self._copy_large(version, target, condition, patience)

    async def why_refused(
        self, file: File, source: Key, target: Key, *, must_be_new: bool
    ) -> AlreadyExists | StaleName:
        """Return what to raise where the store refused to copy `file`: which name had changed."""
        if must_be_new and await self.is_taken(target):
            return AlreadyExists(target)
        file.checked_at = NEVER  # so that the kernel's second try looks afresh
        return StaleName(source, "another version is in the store")

    async def is_taken(self, key: Key) -> bool:
        """Whether the store has an object under this key now."""
        try:
            with deadline(self._services.config.metadata_timeout_s, key):
                await self._services.store.head(key)
        except ObjectMissing:
            return False
        return True

    async def _copy_large(
        self, version: ObjectInfo, target: Key, condition: Condition, patience: Patience
    ) -> ObjectInfo:
        """Copy by an upload, of which the journal knows: after a crash the next mount aborts it."""
        staging, entry = self._services.contents.prepare(target, target, None)
        try:
            return await self._copy_by_upload(version, target, condition, patience, entry)
        finally:
            if entry.record.upload is None:
                entry.dropped()
            else:
                staging.leave()
            staging.close()

    async def _copy_by_upload(
        self,
        version: ObjectInfo,
        target: Key,
        condition: Condition,
        patience: Patience,
        entry: Entry,
    ) -> ObjectInfo:
        store = self._services.store
        with patience.bound(target):
            upload = await store.create_upload(target)
        entry.upload_begins(upload)
        try:
            etags = await self._copy_ranges(version, target, upload, patience)
            with patience.bound(target):
                etag = await store.complete_upload(target, upload, etags, condition=condition)
        except BaseException:
            if await self._abort(target, upload):
                entry.upload_ended()
            raise
        entry.upload_ended()
        with patience.bound(target):
            return await confirmed(store, target, etag)

    async def _copy_ranges(
        self, version: ObjectInfo, target: Key, upload: UploadId, patience: Patience
    ) -> list[ETag]:
        etags: dict[int, ETag] = {}

        async def copy(start: int) -> None:
            number = start // self._range_bytes + 1
            stop = min(start + self._range_bytes, version.size)
            with patience.bound(version.key):
                etags[number] = await self._services.store.upload_part_copy(
                    target, upload, number, version.key, version.etag, start, stop
                )

        starts = range(0, version.size, self._range_bytes)
        await in_parallel(self._services.nursery, copy, starts, RANGES_AT_ONCE)
        return [etags[number] for number in sorted(etags)]

    async def _abort(self, target: Key, upload: UploadId) -> bool:
        """Let the store forget the copied ranges; False: the next mount tries it again."""
        with trio.CancelScope(shield=True):
            try:
                with Patience(ABORT_TIMEOUT_S).bound(target):
                    await self._services.store.abort_upload(target, upload)
            except VolumeError as cause:
                log.warning("%s: upload %s could not be aborted: %s", target, upload, cause)
                return False
        return True


def _sized(copied: ObjectInfo, original: ObjectInfo) -> ObjectInfo:
    """A copy's answer tells ETag and time, not the size, which is the original's."""
    return ObjectInfo(copied.key, original.size, copied.etag, copied.mtime_s)
