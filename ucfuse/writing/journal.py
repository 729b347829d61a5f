"""What became of every file that this mount writes, on the local disk, so that a crash can be read.

`fs` opens an `Entry` when a file becomes dirty and tells it of every step before the step is
taken: which object the bytes are to become, which version they grew from, how far the commit has
come. `recovery` and `ucfuse recover` read it when the session has ended.

The journal makes nothing durable by itself. What a close reports as done is in the store, so it
needs no fsync here, and a killed process loses nothing that it handed to the kernel. Only
`Entry.promise` syncs: for bytes that a program is told are kept.

One log that is appended to, and not a file per record: that took 0.7 ms of CPU per small file
(ext4: making, replacing and removing it), this takes 0.1.

Concurrency: trio loop only; every method but `promise` is atomic and blocks for some 10 us.
"""

import errno
import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import trio

from ucfuse.errors import StagingFull
from ucfuse.store.api import Checksum
from ucfuse.volume import ETag, Key, MiB
from ucfuse.writing.protocols import Ranges, Staged, Steps
from ucfuse.writing.records import (
    DRAFT_NAME,
    LOG_NAME,
    Head,
    Origin,
    Record,
    Stage,
    done_line,
    head_line,
    record_line,
)

__all__ = ["Entry", "Journal", "Ranges", "Staged", "Steps"]

log = logging.getLogger(__name__)


# While a program goes on writing, what the journal says is at most this much older than its bytes.
REFRESH_S = 1.0
# Some ten thousand small files. What is settled is then left out, so the log stays small.
COMPACT_BYTES = 4 * MiB


class Journal:
    """The journal of one session, in its `directory`, which it borrows. Owns the log in it.

    `make_room` frees disk space that is only a convenience; False: there was none.
    Raises `OSError` at construction if the directory cannot be used.
    """

    def __init__(
        self,
        directory: Path,
        origin: Origin,
        *,
        make_room: Callable[[], bool] = lambda: False,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self.origin = origin
        self.wall_s = wall_s
        self._directory = directory
        self._head = Head.of(origin, directory, os.getpid())
        self._make_room = make_room
        self._open: dict[str, Entry] = {}
        self._has_stale = trio.Event()
        self._fd = -1
        self._size = 0
        self._compact_at = COMPACT_BYTES
        self._rewrite()

    def begin(
        self,
        staging: Staged,
        key: Key,
        *,
        base_etag: ETag | None,
        is_replacement: bool = False,
        nonce: str | None = None,
    ) -> "Entry":
        """Open the entry of a file that becomes dirty, before its first byte is written.

        `base_etag` None: the name did not exist. With `nonce`: before the placeholder of O_EXCL
        is sent. Raises `StagingFull`.
        """
        record = Record(
            file=staging.path.name,
            key=key,
            base_etag=base_etag,
            base_size=staging.base_size,
            is_replacement=is_replacement,
            nonce=nonce,
        )
        entry = Entry(self, staging, record)
        entry.write()
        self._open[record.file] = entry
        return entry

    def append(self, subject: str, line: bytes) -> None:
        """Add one line, whole or not at all. Raises `StagingFull`."""
        while True:
            try:
                self._append(line)
                break
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                if not self._make_room():
                    raise StagingFull(subject, f"{self._directory}: {error.strerror}") from error
        if self._size > self._compact_at:
            self._rewrite()

    async def keep_fresh(self) -> None:
        """Write down what changed, within a second, for as long as the session lives.

        A program may write and then wait for hours: all but its last second is known then.
        """
        while True:
            await self._has_stale.wait()
            await trio.sleep(REFRESH_S)
            self._has_stale = trio.Event()
            for entry in list(self._open.values()):
                entry.refresh()

    def note_stale(self) -> None:
        """Let `keep_fresh` look for entries that are behind their files."""
        self._has_stale.set()

    def settle(self, entry: "Entry") -> None:
        """End an entry. The last line about its staging file says so, unless it has a new one."""
        file = entry.record.file
        if self._open.get(file) is not entry:
            return
        del self._open[file]
        try:
            self.append(file, done_line(file))
        except StagingFull as cause:
            # What was to be done is done. At worst `recover` will show the file once too often.
            log.warning("%s: settled, but the journal could not be told: %s", file, cause)

    def sync(self) -> None:
        """Force the log to the disk. Blocking, and allowed in any thread."""
        _sync_path(self._directory / LOG_NAME)
        _sync_path(self._directory)

    def close(self) -> None:
        """End the journal; its log goes unless it still speaks of files. May be called twice."""
        if self._fd < 0:
            return
        os.close(self._fd)
        self._fd = -1
        if not self._open:
            (self._directory / LOG_NAME).unlink(missing_ok=True)

    def _append(self, line: bytes) -> None:
        written = 0
        try:
            while written < len(line):
                written += os.write(self._fd, line[written:])
        except OSError:
            os.ftruncate(self._fd, self._size)  # half a line would spoil the next one
            raise
        self._size += len(line)

    def _rewrite(self) -> None:
        """Write a new log with what is still open, and put it in the place of the old one."""
        lines = [head_line(self._head), *(record_line(e.record) for e in self._open.values())]
        draft = self._directory / DRAFT_NAME
        fd = os.open(
            draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600
        )
        old, self._fd, old_size, self._size = self._fd, fd, self._size, 0
        try:
            for line in lines:
                self._append(line)
            if any(entry.record.is_synced for entry in self._open.values()):
                os.fsync(fd)
            os.rename(draft, self._directory / LOG_NAME)
        except OSError:
            self._fd, self._size = old, old_size
            os.close(fd)
            draft.unlink(missing_ok=True)
            if old < 0:
                raise
        else:
            if old >= 0:
                os.close(old)
        # Of a log that could not be shortened, or has much open, not again at the next line.
        self._compact_at = self._size + COMPACT_BYTES


class Entry:
    """What the journal says of one dirty staging file, from `begin` to `confirmed` or `dropped`.

    Every step writes a line with the size and the ranges that the staging file has then. Each may
    raise `StagingFull`: even that does not fit on the disk, and the step must not be taken.
    """

    def __init__(self, journal: Journal, staging: Staged, record: Record) -> None:
        self.record = record
        self._journal = journal
        self._staging = staging
        self._is_stale = False
        self._is_open = True

    # --- steps -------------------------------------------------------------------------------

    def changes(self) -> None:
        """Before bytes or size change: a commit that had begun does not speak for the new ones."""
        if self.record.stage is not Stage.WRITING:
            self._step(
                stage=Stage.WRITING,
                reason="",
                is_synced=False,
                expected_etag=None,
                expected_checksum=None,
            )

    def changed(self) -> None:
        """After bytes or size changed. Cheap: it is written down within a second."""
        if not self._is_stale:
            self._is_stale = True
            self._journal.note_stale()

    def refresh(self) -> None:
        """Write down what changed since the last step. A full disk is only logged."""
        if self._is_stale:
            try:
                self.write()
            except StagingFull as cause:
                log.warning("%s: the journal is behind: %s", self.record.key, cause)

    def write(self) -> None:
        """Say where the staging file stands."""
        self._step()

    def moved(self, key: Key, *, base_etag: ETag | None, is_replacement: bool) -> None:
        """The file has another name and grows from what that one shows; no placeholder is left."""
        self._step(key=key, base_etag=base_etag, is_replacement=is_replacement, nonce=None)

    def replaces_all(self) -> None:
        """The file was emptied: nothing of its base is needed any more."""
        if not self.record.is_replacement:
            self._step(is_replacement=True)

    def upload_begins(self, upload: str) -> None:
        """Before the first part is sent to `upload`. An earlier one of this file has ended."""
        self._step(upload=upload, parts=())

    def upload_ended(self) -> None:
        """The upload was completed or aborted: nothing of it is left in the bucket."""
        if self.record.upload is not None:
            self._step(upload=None, parts=())

    def commit_begins(
        self,
        expected_etag: ETag | None,
        *,
        base_etag: ETag | None,
        parts: Sequence[ETag] = (),
        expected_checksum: Checksum | None = None,
    ) -> None:
        """fsync or last close was reached; before the request that completes is sent.

        `base_etag` is the condition of this very request (None: absent): a replacement that goes
        on with another one says so again. What is expected is the object's ETag, where that can be
        told before, and its CRC64NVME; None: what was said of the same bytes before holds on.
        """
        expected = self.record.expecting(expected_etag, expected_checksum)
        self._step(stage=Stage.COMMITTING, base_etag=base_etag, parts=tuple(parts), **expected)

    def confirmed(self) -> None:
        """The store has the bytes. The staging file may stay, for reads."""
        self._end()

    def dropped(self) -> None:
        """Nobody will want the bytes: unlinked, or never written. No upload of them is left."""
        self._end()

    # --- promises ----------------------------------------------------------------------------

    async def promise(self, reason: str) -> None:
        """Force bytes and record to the disk, before an answer that says that they are kept."""
        self._step(stage=Stage.KEPT, reason=reason)
        sync = partial(_sync_path, self._staging.path)
        await trio.to_thread.run_sync(sync, abandon_on_cancel=False)
        if self._is_open and self.record.stage is Stage.KEPT:
            self._step(is_synced=True)
            await trio.to_thread.run_sync(self._journal.sync, abandon_on_cancel=False)

    def promise_now(self, reason: str) -> None:
        """The same, blocking: at the end of the mount nothing else has to go on."""
        self._step(stage=Stage.KEPT, reason=reason)
        _sync_path(self._staging.path)
        self._step(is_synced=True)
        self._journal.sync()

    def released(self) -> None:
        """The mount will not use the staging file any more: it is the user's."""
        self._step(is_released=True)

    def _step(self, **changes: object) -> None:
        if not self._is_open:
            raise AssertionError(f"{self.record.key!r}: its entry in the journal has ended")
        staging = self._staging
        record = replace(
            self.record,
            size=staging.size,
            base_size=staging.base_size,
            ranges=tuple(staging.written),
            written_s=self._journal.wall_s(),
            **changes,  # type: ignore[arg-type]
        )
        self._journal.append(record.key, record_line(record))
        self.record = record
        self._is_stale = False

    def _end(self) -> None:
        if self._is_open:
            self._is_open = False
            self._journal.settle(self)


def _sync_path(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
