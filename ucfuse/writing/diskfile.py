"""One private file on the local disk, used without ever holding up the event loop for long.

`staging` keeps its bytes in it and decides what they mean; here they have no meaning. Failures
are the `OSError` of the system call.

Concurrency: any task may call anything. A short call runs in line, a long one in a worker thread
that is never abandoned: it would go on using the caller's buffer and the file.
"""

import logging
import mmap
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import outcome
import trio

from ucfuse.store.api import Buffer, Checksum
from ucfuse.store.checksums import checksum_of
from ucfuse.volume import KiB, MiB

__all__ = ["DiskFile", "Pwrite", "SlowCloses"]

log = logging.getLogger(__name__)

Pwrite = Callable[[int, memoryview, int], int]
"""The system call `pwrite`. A parameter, so that a full disk can be had for a test."""

# Handing work to a thread and back takes longer than copying this much to or from the page
# cache, which is where such a short call normally ends. A longer one would keep the loop, and
# with it every other request of the mount, waiting for a memory copy or for the disk.
INLINE_BYTES = 256 * KiB

# The last close of a removed file gives its space back: 80 ms for 512 MiB, measured on ext4.
SLOW_CLOSE_BYTES = 16 * MiB

# Only a disk that hangs needs longer.
CLOSE_DEADLINE_S = 10.0

Result = TypeVar("Result")


class SlowCloses:
    """The closes of large files, in threads: until they have ended, their space is not free."""

    def __init__(self) -> None:
        self._count = 0
        self._has_ended = threading.Condition()

    def begin(self, fd: int, path: Path) -> None:
        """Close `fd` behind the caller's back."""
        with self._has_ended:
            self._count += 1
        # Nobody has to wait for it, so it needs neither a task nor a place in a queue.
        trio.lowlevel.start_thread_soon(partial(os.close, fd), partial(self._note_end, path))

    def _note_end(self, path: Path, result: outcome.Outcome[None]) -> None:
        if isinstance(result, outcome.Error):
            log.error("closing %s failed: %s", path, result.error)
        with self._has_ended:
            self._count -= 1
            self._has_ended.notify_all()

    def wait(self) -> bool:
        """Wait for all that are under way, without a checkpoint; return whether there was one.

        For a full disk, where whoever needs the space may hold up everything else.
        """
        with self._has_ended:
            had_some = self._count > 0
            return had_some and self._has_ended.wait_for(lambda: not self._count, CLOSE_DEADLINE_S)


class DiskFile:
    """Owns the file's descriptor. A new file is made here (0600) and must not exist before."""

    def __init__(
        self, path: Path, closes: SlowCloses, pwrite: Pwrite = os.pwrite, *, is_new: bool = True
    ) -> None:
        self.path = path
        self._closes = closes
        self._pwrite = pwrite
        self._closed = False
        self._users = 0
        flags = os.O_CREAT | os.O_EXCL if is_new else 0
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | flags, 0o600)

    async def read(
        self,
        start: int,
        stop: int,
        gaps: Sequence[tuple[int, int]],
        threads: trio.CapacityLimiter,
    ) -> bytes | bytearray:
        """Return `[start, stop)`, with zeros in the ranges `gaps` and past the end of the file."""
        with self._borrowed_fd() as fd:
            work = partial(_read, fd, start, stop, gaps)
            return await _run(work, threads if stop - start > INLINE_BYTES else None)

    async def read_sealed(
        self,
        start: int,
        stop: int,
        gaps: Sequence[tuple[int, int]],
        threads: trio.CapacityLimiter,
    ) -> tuple[Buffer, Checksum]:
        """Return what `read` returns, and its checksum: computed on the same way to a thread."""
        with self._borrowed_fd() as fd:
            work = partial(_read_sealed, fd, start, stop, gaps)
            return await _run(work, threads if stop - start > INLINE_BYTES else None)

    async def write(self, offset: int, view: memoryview, threads: trio.CapacityLimiter) -> None:
        """Write all of `view`; after an `OSError` some of it may have been written."""
        with self._borrowed_fd() as fd:
            work = partial(_write, self._pwrite, fd, offset, view)
            await _run(work, threads if len(view) > INLINE_BYTES else None)

    async def free_from(self, size: int, threads: trio.CapacityLimiter) -> None:
        """Give the disk space of everything from `size` on back."""
        with self._borrowed_fd() as fd:
            await _run(partial(os.ftruncate, fd, size), threads)

    def set_size(self, size: int) -> None:
        """Make the file exactly `size` bytes long."""
        with self._borrowed_fd() as fd:
            os.ftruncate(fd, size)

    def close(self, *, remove: bool) -> None:
        """Take the file's name away (with `remove`) now; close it once no thread uses it."""
        if self._closed:
            return
        self._closed = True
        if remove:
            self.path.unlink(missing_ok=True)
        self._close_if_unused()

    @contextmanager
    def _borrowed_fd(self) -> Iterator[int]:
        # The number of a closed descriptor may be another file's a moment later, so it stays
        # open while a thread works on it.
        if self._closed:
            raise AssertionError(f"{self.path} is used after it was closed")
        self._users += 1
        try:
            yield self._fd
        finally:
            self._users -= 1
            self._close_if_unused()

    def _close_if_unused(self) -> None:
        if not self._closed or self._users:
            return
        if os.fstat(self._fd).st_size < SLOW_CLOSE_BYTES:
            os.close(self._fd)
        else:
            self._closes.begin(self._fd, self.path)


async def _run(work: Callable[[], Result], threads: trio.CapacityLimiter | None) -> Result:
    """Run `work` in one of `threads`, or here and now without a checkpoint."""
    if threads is None:
        return work()
    return await trio.to_thread.run_sync(work, limiter=threads, abandon_on_cancel=False)


def _write(pwrite: Pwrite, fd: int, offset: int, view: memoryview) -> None:
    while view:
        done = pwrite(fd, view, offset)
        offset += done
        view = view[done:]


def _read_sealed(
    fd: int, start: int, stop: int, gaps: Sequence[tuple[int, int]]
) -> tuple[Buffer, Checksum]:
    if stop - start <= INLINE_BYTES:
        body: Buffer = _read(fd, start, stop, gaps)
    else:
        # Bodies live long and in many threads. malloc would keep as much again of them for later:
        # 100 MiB more at the peak of a 10 GiB file, and when it is done.
        body = memoryview(mmap.mmap(-1, stop - start, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        _fill(body, fd, start, gaps)
    return body, checksum_of(body)


def _read(fd: int, start: int, stop: int, gaps: Sequence[tuple[int, int]]) -> bytes | bytearray:
    if not gaps:
        data = os.pread(fd, stop - start, start)
        if len(data) == stop - start:
            return data
    whole = bytearray(stop - start)
    _fill(memoryview(whole), fd, start, gaps)
    return whole


def _fill(whole: memoryview, fd: int, start: int, gaps: Sequence[tuple[int, int]]) -> None:
    """Read into `whole`, which is zero, what the file has from `start` on, but for the gaps."""
    # Gaps are zeroed here and not left to the file, where a failed write may have left bytes.
    # Linux does not read more than 2 GiB in one call.
    rest = whole
    while rest and (done := os.preadv(fd, [rest], start + len(whole) - len(rest))):
        rest = rest[done:]
    for gap_start, gap_stop in gaps:
        whole[gap_start - start : gap_stop - start] = bytes(gap_stop - gap_start)
