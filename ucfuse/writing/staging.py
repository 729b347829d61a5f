"""Local files that hold what programs wrote until the store has it.

A `Staging` is the bytes of one dirty file: a sparse file on the local disk, and the set of the
ranges in it that count. What was not written is either still in the base version in the store (a
`Hole`, which the caller fetches) or was never there (zeros). `fs` owns the files, which the one
`StagingArea` of the mount makes; `upload` takes the bodies of its requests from them.

It never speaks to a store. Only bytes in `written` are ever taken from the disk, so whatever a
failed or cancelled write left there is not data.

Concurrency: any task may call anything. Changes of one file run one after another. A read is
not atomic with a write at the same time, but never shows bytes that were in neither. A write that
has begun on the disk ends there and counts, even if its task is cancelled.
"""

import errno
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import trio

from ucfuse.errors import FileTooLarge, StagingFull
from ucfuse.store.api import Buffer, Checksum
from ucfuse.writing.clean import CleanFiles, OnEvict
from ucfuse.writing.diskfile import DiskFile, SlowCloses
from ucfuse.writing.parts import MAX_OBJECT_BYTES
from ucfuse.writing.protocols import Ranges
from ucfuse.writing.ranges import RangeSet

__all__ = ["DISK_FULL", "Hole", "Shared", "Staging"]

log = logging.getLogger(__name__)

DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Errors of the local disk after which clean files may make room."""


@dataclass(frozen=True, slots=True)
class Hole:
    """Bytes `[start, stop)` that only the base version has."""

    start: int
    stop: int


@dataclass(slots=True)
class Shared:
    """What all files of one area use together. `used_bytes`: what all have on the disk."""

    limit_bytes: float
    clean: CleanFiles
    program_threads: trio.CapacityLimiter
    upload_threads: trio.CapacityLimiter
    closes: SlowCloses = field(default_factory=SlowCloses)
    used_bytes: int = 0

    def has_room(self, size_bytes: int) -> bool:
        return self.used_bytes + size_bytes <= self.limit_bytes

    def free_disk(self) -> bool:
        """Let every clean file go, for the disk is full; return whether any space came free."""
        return self.clean.evict_all() | self.closes.wait()


class Staging:
    """The local bytes of one file. Owns the file on disk that has them.

    Invariants: `base_size <= size`; `written` lies within `[0, size)`. The base shows through
    only below `base_size`, which never grows: what a truncation cut off is gone, and extending
    the file again gives zeros. That holds beyond a commit, for then the new base has the same
    bytes. What differs from the base is told by `changed`.
    """

    def __init__(self, label: str, disk: DiskFile, base_size: int, shared: Shared) -> None:
        self.label = label
        self.size = base_size
        self.base_size = base_size
        self.written = RangeSet()
        self._unchanged_size = base_size
        self._changed = RangeSet()
        self._disk = disk
        self._shared = shared
        self._changing = trio.Lock()
        self._cut_count = 0
        self._kept = False
        self._closed = False

    @property
    def path(self) -> Path:
        """Where the bytes are on the local disk."""
        return self._disk.path

    @property
    def is_kept(self) -> bool:
        """Whether the file stays for the user when it is closed."""
        return self._kept

    async def write(self, offset: int, data: Buffer) -> None:
        """Put `data` at `offset`, extending the file if need be.

        Raises `StagingFull` or `FileTooLarge`, and then nothing of it counts as written. Where
        it was to replace bytes written earlier, these may be old or new.
        """
        view = memoryview(data).cast("B")
        stop = offset + len(view)
        self._refuse_too_large(stop)
        if not view:
            return
        async with self._change():
            self._make_room(offset, stop)
            await self._write_out(offset, view)
            self._note_written(offset, stop)
            self._changed.add(offset, stop)
            self.size = max(self.size, stop)

    async def fill(self, start: int, data: Buffer) -> None:
        """Put bytes of the base version at `start`, only where it still shows through.

        Raises `StagingFull`; the holes filled until then stay filled.
        """
        view = memoryview(data).cast("B")
        async with self._change():
            stop = min(start + len(view), self.base_size)
            self._make_room(start, stop)
            for hole_start, hole_stop in self.written.missing(start, stop):
                await self._write_out(hole_start, view[hole_start - start : hole_stop - start])
                self._note_written(hole_start, hole_stop)

    async def truncate(self, size: int) -> None:
        """Cut the file, or extend it with zeros, to `size` bytes. Raises `FileTooLarge`."""
        self._refuse_too_large(size)
        async with self._change():
            old_size, self.size = self.size, size
            if size >= old_size:
                return
            self._cut_count += 1
            before = self.written.byte_count
            self.written.remove(size, old_size)
            self._shared.used_bytes -= before - self.written.byte_count
            self._changed.remove(size, old_size)
            self.base_size = min(self.base_size, size)
            self._unchanged_size = min(self._unchanged_size, size)
            # All is settled before the only await: this just makes room on the disk.
            await self._disk.free_from(size, self._shared.program_threads)

    async def read(self, offset: int, length: int) -> list[bytes | Hole]:
        """Return what `[offset, offset + length)` holds, in order, up to the end of the file."""
        self._shared.clean.touch(self)
        while True:
            cut_count = self._cut_count
            pieces = [
                piece if isinstance(piece, Hole) else bytes(await self._read_disk(*piece))
                for piece in self._pieces(offset, min(offset + length, self.size))
            ]
            # A truncation in the meantime may have taken bytes away in the middle of a piece.
            if cut_count == self._cut_count:
                return pieces

    async def read_body(self, start: int, stop: int) -> tuple[Buffer, Checksum]:
        """Return exactly `[start, stop)`, without holes there, and its checksum.

        For the bodies of uploads, which do not stand in the queue of the programs' own reads.
        What is written meanwhile may be in it or not.
        """
        if stop > self.size or self.written.missing(start, min(stop, self.base_size)):
            raise AssertionError(f"{self.label!r}: bytes {start} to {stop} are not all here")
        zeros = self.written.missing(start, stop)
        return await self._disk.read_sealed(start, stop, zeros, self._shared.upload_threads)

    def holes(self, start: int = 0, stop: int | None = None) -> list[Hole]:
        """Return every range (of `[start, stop)`) that only the base version has, in order."""
        stop = self.base_size if stop is None else min(stop, self.base_size)
        return [Hole(*gap) for gap in self.written.missing(start, stop)]

    @property
    def unchanged_size(self) -> int:
        """Below it the base has what the file has, except where `changed` says otherwise."""
        return self._unchanged_size

    @property
    def only_grew(self) -> bool:
        """Whether the base has all bytes below `unchanged_size`."""
        return self._changed.start >= self._unchanged_size

    def changed(self) -> list[tuple[int, int]]:
        """Return the ranges that differ from the base, in order and apart from each other."""
        ranges = RangeSet()
        for start, stop in self._changed:
            ranges.add(start, stop)
        ranges.add(self._unchanged_size, self.size)
        return list(ranges)

    def rebase(self) -> None:
        """Note that what the file shows is the base from now on: it was committed."""
        self._changed.clear()
        self._unchanged_size = self.size

    def restore(self, size: int, base_size: int, ranges: Ranges) -> None:
        """Take over what the file on the disk has, by the journal of another session."""
        self.size, self.base_size, self._unchanged_size = size, base_size, base_size
        for start, stop in ranges:
            self._note_written(start, stop)
            self._changed.add(start, stop)

    def mark_clean(self, on_evict: OnEvict) -> None:
        """Note that the store has these bytes; they stay for reads until space is needed.

        `on_evict` must then stop using the file and close it; it may be called before this
        returns. It ends with the next change of the file.
        """
        self._kept = False
        self._shared.clean.add(self, self.written.byte_count, on_evict)

    def mark_dirty(self) -> None:
        """Note that the file has, or is about to have, bytes of its own: it is not evicted."""
        self._shared.clean.discard(self)

    def leave(self) -> None:
        """Let the file stay on the disk after `close`: the journal still speaks of it."""
        self._kept = True

    def keep(self, reason: str) -> Path:
        """Leave the file to the user after `close`, say so in the log, and return its path.

        The file stays usable until closed. If it becomes clean later it is not left after all.
        """
        self.leave()
        self._disk.set_size(self.size)
        log.warning(
            "%s: %s. The bytes written (%d of a file of %d) are kept in %s",
            *(self.label, reason, self.written.byte_count, self.size, self.path),
        )
        return self.path

    def close(self) -> None:
        """Give the file up; it is removed unless it was kept. May be called twice."""
        self._shared.clean.discard(self)
        if not self._closed:
            self._shared.used_bytes -= self.written.byte_count
        self._closed = True
        self._disk.close(remove=not self._kept)

    def _make_room(self, start: int, stop: int) -> None:
        """Let clean files go for `[start, stop)`, as far as the limit asks for it."""
        if self._shared.has_room(stop - start):
            return
        size_bytes = sum(b - a for a, b in self.written.missing(start, stop))
        if not self._shared.has_room(size_bytes):
            self._shared.clean.evict_all()
        if not self._shared.has_room(size_bytes):
            limit = f"{self._shared.used_bytes} bytes are staged already"
            raise StagingFull(self.label, f"{limit}; the limit is {self._shared.limit_bytes}")

    def _note_written(self, start: int, stop: int) -> None:
        before = self.written.byte_count
        self.written.add(start, stop)
        self._shared.used_bytes += self.written.byte_count - before

    def _refuse_too_large(self, size: int) -> None:
        if size > MAX_OBJECT_BYTES:
            raise FileTooLarge(self.label, f"{size} bytes; an object has at most 5 TiB")

    @asynccontextmanager
    async def _change(self) -> AsyncIterator[None]:
        self.mark_dirty()
        # `async with` on the lock would pass through the scheduler on every small write.
        if self._changing.locked():
            await self._changing.acquire()
        else:
            self._changing.acquire_nowait()
        try:
            yield
        finally:
            self._changing.release()

    def _pieces(self, start: int, stop: int) -> list[tuple[int, int] | Hole]:
        """Cut `[start, stop)` into holes and the ranges between them that need no base."""
        pieces: list[tuple[int, int] | Hole] = []
        for hole_start, hole_stop in self.written.missing(start, min(stop, self.base_size)):
            if start < hole_start:
                pieces.append((start, hole_start))
            pieces.append(Hole(hole_start, hole_stop))
            start = hole_stop
        if start < stop:
            pieces.append((start, stop))
        return pieces

    async def _read_disk(self, start: int, stop: int) -> bytes | bytearray:
        zeros = self.written.missing(start, stop)
        return await self._disk.read(start, stop, zeros, self._shared.program_threads)

    async def _write_out(self, offset: int, view: memoryview) -> None:
        """Bring all of `view` to the disk; when that is full the clean files have to go."""
        while True:
            try:
                return await self._disk.write(offset, view, self._shared.program_threads)
            except OSError as error:
                if error.errno == errno.EFBIG:
                    raise FileTooLarge(self.label, f"for the disk of {self.path}") from error
                if error.errno not in DISK_FULL:
                    raise
                if not self._shared.free_disk():
                    raise StagingFull(self.label, f"no space left for {self.path}") from error
