"""Changing bytes, and which close of a program commits them.

`VolumeFilesystem` calls this for writes, truncations and closes; `commits` brings the bytes to the
store. The kernel tells of a FLUSH for every descriptor that goes, also when a forked child ends in
mid-write, so what the opener still has open decides whether it was the last.

Concurrency: bytes change under the lock of their content, so they wait for a running commit.
"""

import logging
from collections.abc import Callable
from contextlib import suppress

from ucfuse.errors import NotPortable, ObjectChanged, StagingFull, StaleName, VolumeError
from ucfuse.fs.caller import Uncommitted
from ucfuse.fs.commits import Commits, lost_before
from ucfuse.fs.file_content import FileContent
from ucfuse.fs.handles import FileHandle
from ucfuse.fs.removals import Removals
from ucfuse.fs.services import Services
from ucfuse.fs.strict_writes import Ordering, raise_refusal
from ucfuse.names.inodes import Fate
from ucfuse.store.api import Buffer
from ucfuse.tasks import Pending, deadline
from ucfuse.writing.parts import MAX_OBJECT_BYTES

__all__ = ["Writes"]

log = logging.getLogger(__name__)

DISK_FULL = "the disk for written bytes was full"


class Writes:
    """The write side of `VolumeFilesystem`."""

    def __init__(
        self, services: Services, commits: Commits, removals: Removals, ordering: Ordering
    ) -> None:
        self._services = services
        self._ordering = ordering
        self._commits = commits
        self._removals = removals

    async def write(self, handle: FileHandle, offset: int, data: Buffer) -> None:
        """Put `data` into staging, and send what became a full part.

        Raises `StagingFull`, `ObjectChanged` after a conflict, and what kept an earlier part from
        being sent: once, so that a program learns of it that does not look at its close. In strict
        modes `NotPortable`, from then on to the close.
        """
        handle.is_closed = False  # a descriptor that another process holds lives on
        content = handle.content
        stop = offset + memoryview(data).nbytes
        async with content.lock:
            _refuse_conflict(content)
            try:
                self._ordering.before_write(handle, offset)
            except NotPortable:
                self._leave_pages(content)
                raise
            staging = self._services.contents.begin_changes(content)
            if handle.replaces:
                content.is_replacement = True
            upload = content.upload
            assert upload is not None
            upload.raise_failure()
            upload.changes(offset, stop)
            try:
                await staging.write(offset, data)
            except StagingFull:
                content.refused.add(offset, stop)
                raise
            content.refused.remove(offset, stop)
            content.has_own_bytes = True
            self._services.contents.changed(content)
            await upload.written(offset, stop)
            handle.sequence.wrote(stop)  # at the end: what failed may be written again

    async def set_size(self, content: FileContent, size: int) -> None:
        """Truncate or extend; without an open writer it is committed at once.

        A lost update is `StaleName` then: the kernel tries again on the newest version.
        """
        await self._resize(content, size)
        if content.writer_count:
            return
        try:
            await self._commits.commit(content)
        except ObjectChanged as cause:
            self._services.contents.settled(content)
            raise StaleName(content.file.path, "changed elsewhere before the truncate") from cause

    async def truncate_opened(self, handle: FileHandle) -> None:
        """Empty a file that is being opened. The handle counts as a writer before: no close of
        another one may commit the empty file in between."""
        try:
            await self._resize(handle.content, 0)
        except BaseException:
            self.end_handle(handle)
            raise
        content = handle.content
        handle.replaces = content.is_replacement = True
        if content.entry is not None:
            content.entry.replaces_all()

    async def flush(self, handle: FileHandle) -> None:
        """One descriptor of the handle was closed; commit if it was the program's last."""
        if not handle.is_writable or self._lives_on(handle):
            return
        handle.is_closed = True
        try:
            await self.commit(handle)
        except NotPortable:
            if handle.content.refusal is not None:
                await self._drop(handle.content, writers_left=1)
            raise

    async def commit(self, handle: FileHandle) -> None:
        """Commit what was written; further writes through the handle update that."""
        raise_refusal(handle)
        await self._commits.commit(handle.content)
        handle.replaces = False

    def end_handle(self, handle: FileHandle) -> None:
        """End a handle. What a mapping changed after the last close is committed behind it."""
        self._services.handles.remove(handle.number)
        content = handle.content
        content.handle_count -= 1
        content.writer_count -= handle.is_writable
        if content.is_dirty:
            if content.file.fate is Fate.UNLINKED or content.has_conflict:
                if content.handle_count == 0:
                    self._services.contents.settled(content)
            elif content.refusal is not None or (content.refused and content.is_replacement):
                if content.writer_count == 0:
                    Pending(self._services.nursery, lambda: self._drop(content))
            elif content.writer_count == 0 and content.change_count != content.tried_count:
                Pending(self._services.nursery, lambda: self._commit_late(content))
        self._services.contents.unpin(content.file)

    async def commit_all(self, on_wait: Callable[[list[Uncommitted]], None] | None) -> None:
        """Commit everything that no program is still writing; failures are logged.

        `on_wait` is told what is left before each file.
        """
        for content in self._services.contents:
            if not content.is_dirty or self._services.handles.is_being_written(content):
                continue
            if on_wait is not None:
                on_wait(self._services.contents.uncommitted())
            await self._commit_late(content)

    def _lives_on(self, handle: FileHandle) -> bool:
        """Whether the opener still has a descriptor of this handle: then it closes again later."""
        content = handle.content
        if handle.opener is None or not (content.is_dirty or content.writer_count > 1):
            return False
        count = self._services.probe.count_writable(handle.opener, content.file.number)
        return count is not None and count > self._services.handles.other_writers(handle)

    def _leave_pages(self, content: FileContent) -> None:
        """Give the name of an unchanged file to a new inode.

        If the write was that of a mapping, the kernel has its bytes in the pages of this one.
        """
        if not content.is_dirty and not content.file.bound:
            self._services.superblock.superseded(content.file)

    async def _resize(self, content: FileContent, size: int) -> None:
        async with content.lock:
            _refuse_conflict(content)
            content.refused.remove(size, MAX_OBJECT_BYTES)
            if content.size == size and content.is_dirty:
                return
            staging = self._services.contents.begin_changes(content)
            assert content.upload is not None
            content.upload.cuts(min(size, content.size))
            await staging.truncate(size)
            self._services.contents.changed(content)

    async def _drop(self, content: FileContent, writers_left: int = 0) -> None:
        """Give up a file that a full disk cut off, or a strict mode: its name means again what it
        meant before, and the disk has room for others. Not while more than `writers_left` may
        still write; readers keep what they have open."""
        async with self._services.claim_of(content.file), content.lock:
            if content.writer_count > writers_left or not content.is_dirty:
                return
            log.error("%s: dropped: %s", content.file.path, content.refusal or DISK_FULL)
            timeout_s = self._services.config.metadata_timeout_s
            with suppress(VolumeError), deadline(timeout_s, content.file.path):
                await self._removals.drop_placeholder(content)
            self._services.superblock.superseded(content.file)
            self._services.contents.settled(content)

    async def _commit_late(self, content: FileContent) -> None:
        """Commit with nobody left to hear of a failure but log, `status` and the staging file."""
        try:
            await self._commits.commit(content)
        except VolumeError as cause:
            log.error("%s: not committed: %s", content.file.path, cause)
        if content.has_conflict and content.handle_count == 0:
            self._services.contents.settled(content)


def _refuse_conflict(content: FileContent) -> None:
    if content.has_conflict:
        raise lost_before(content)
