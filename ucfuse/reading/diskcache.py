"""Parts of files on the local disk, so that the store is asked for them only once.

`fs` asks `read_through` for every range that it would ask the store for, and gives `keep_soon`
what an open brought. Ranges are cut at a fixed grid, so that a later read with other bounds finds
them again.

It never says that a version is the newest (the open asked the store), never serves a byte that
its checksum does not vouch for, and never fails a read: without the disk the store is asked.

Concurrency: trio loop; the disk is used in worker threads. A search that takes too long is not
waited for, and until it has ended nothing is looked for. Bytes on their way to the disk count in
the memory budget; those for which there is no room are not kept.
"""

import logging
import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import trio

from ucfuse.budget import OPTIONAL_SHARE, MemoryBudget, Reservation
from ucfuse.metrics import Metrics
from ucfuse.reading.cache_directory import CacheFiles
from ucfuse.reading.pieces import Piece
from ucfuse.store.api import Bytes
from ucfuse.tasks import Pending
from ucfuse.volume import MiB, ObjectInfo

__all__ = ["DiskCache"]

log = logging.getLogger(__name__)

# The requests of a sequential reader begin and end at whole MiB, and so does that of an open.
GRID_BYTES = MiB

# Of every mount; the disk has its own queue. Searches never wait for a thread that writes.
SEARCH_THREADS = 4
WRITE_THREADS = 2

# A local disk answers within milliseconds.
SEARCH_PATIENCE_S = 2.0
# For so long a disk that is slower than the store holds up a part; then that part is not kept.
# With 16 parts of 8 MiB on their way, reads lose nothing above 256 MiB/s.
ROOM_PATIENCE_S = 0.5
# Enough for bursts.
MAX_UNWRITTEN_BYTES = 64 * MiB

Ask = Callable[[int, int], Awaitable[Bytes]]
"""Asks the store for exactly bytes `[start, stop)` of the version in question."""


@dataclass(frozen=True, slots=True)
class _Slice:
    """Bytes `[start, stop)`, within one square of the grid, and the pieces that may have them."""

    start: int
    stop: int
    pieces: tuple[Piece, ...]


class DiskCache:
    """The cache of one mount, in a directory that other mounts may use too."""

    def __init__(
        self,
        files: CacheFiles,
        bucket: tuple[str, str],
        budget: MemoryBudget,
        nursery: trio.Nursery,
        metrics: Metrics,
        search_patience_s: float = SEARCH_PATIENCE_S,
    ) -> None:
        """`bucket`: address of the store and name in it, by which no two are the same."""
        self._files = files
        self._bucket = bucket
        self._budget = budget
        self._nursery = nursery
        self._metrics = metrics
        self._search_threads = trio.CapacityLimiter(SEARCH_THREADS)
        self._write_threads = trio.CapacityLimiter(WRITE_THREADS)
        self._search_patience_s = search_patience_s
        self._overdue: set[Pending[list[memoryview | None]]] = set()
        self._max_unwritten = min(MAX_UNWRITTEN_BYTES, budget.limit_bytes // OPTIONAL_SHARE)
        self._unwritten_bytes = 0
        self._wrote = trio.Event()
        self._has_failed = False
        Pending(nursery, self._fit, until=math.inf)

    @property
    def limit_bytes(self) -> int:
        """How much of the disk it may take."""
        return self._files.limit_bytes

    @property
    def used_bytes(self) -> int:
        """How much of the disk it took, with other mounts', when this one last kept something."""
        return self._files.used_bytes

    async def read_through(self, version: ObjectInfo, start: int, stop: int, ask: Ask) -> Bytes:
        """Return `[start, stop)` of a version, after at most one request for what is not here.

        Raises what `ask` raises.
        """
        found = await self._find(version, start, stop)
        gaps = [slice_ for slice_, data in found if data is None]
        if not gaps:
            return self._joined(found)
        self._metrics.cache_misses += 1
        first, last = gaps[0].start, gaps[-1].stop
        data = await ask(first, last)
        if len(data) == last - first:
            await self._await_room(len(data))
            self.keep_soon(version, first, data)
        if (first, last) == (start, stop):
            return data
        before = [each for slice_, each in found if each is not None and slice_.stop <= first]
        behind = [each for slice_, each in found if each is not None and slice_.start >= last]
        self._metrics.cache_bytes_read += sum(map(len, before + behind))
        return b"".join([*before, data, *behind])

    async def find(self, version: ObjectInfo, start: int, stop: int) -> bytes | None:
        """Return `[start, stop)` of a version if all of it is here."""
        found = await self._find(version, start, stop)
        if any(data is None for _, data in found):
            return None
        return self._joined(found)

    def keep_soon(self, version: ObjectInfo, start: int, data: Bytes) -> None:
        """Keep bytes of a version, which begin at `start`, if there is room for them now."""
        if self._unwritten_bytes + len(data) > self._max_unwritten:
            return
        reservation = self._budget.reserve_optional(len(data))
        if reservation is not None:
            self._unwritten_bytes += len(data)
            work = partial(self._keep, version, start, data, reservation)
            Pending(self._nursery, work, until=math.inf)

    # --- inner workings ----------------------------------------------------------------------

    def _joined(self, found: Sequence[tuple[_Slice, memoryview | None]]) -> bytes:
        data = b"".join([each for _, each in found if each is not None])
        self._metrics.cache_hits += 1
        self._metrics.cache_bytes_read += len(data)
        return data

    async def _find(
        self, version: ObjectInfo, start: int, stop: int
    ) -> list[tuple[_Slice, memoryview | None]]:
        slices = list(self._cut(version, start, stop))
        nothing = [(each, None) for each in slices]
        if self._overdue:
            return list(nothing)
        search = Pending(self._nursery, partial(self._search, slices), until=math.inf)
        with trio.move_on_after(self._search_patience_s) as patience:
            return list(zip(slices, await search.wait(), strict=True))
        if patience.cancelled_caught:
            self._overdue.add(search)
            Pending(self._nursery, partial(self._await_overdue, search), until=math.inf)
        return list(nothing)

    async def _search(self, slices: Sequence[_Slice]) -> list[memoryview | None]:
        try:
            return await trio.to_thread.run_sync(
                partial(_look_up, self._files, slices), limiter=self._search_threads
            )
        except OSError as error:
            self._complain(error)
            return [None] * len(slices)

    async def _await_overdue(self, search: Pending[list[memoryview | None]]) -> None:
        log.warning("the disk cache does not answer: not used until it does")
        await search.ended()
        self._overdue.discard(search)

    async def _await_room(self, size: int) -> None:
        if size > self._max_unwritten:
            return
        with trio.move_on_after(ROOM_PATIENCE_S):
            while self._unwritten_bytes + size > self._max_unwritten:
                await self._wrote.wait()

    async def _keep(
        self, version: ObjectInfo, start: int, data: Bytes, reservation: Reservation
    ) -> None:
        try:
            slices = list(self._cut(version, start, start + len(data)))
            written = await trio.to_thread.run_sync(
                partial(_write, self._files, slices, data), limiter=self._write_threads
            )
            self._metrics.cache_bytes_written += written
        except OSError as error:
            self._complain(error)
        finally:
            reservation.release()
            self._unwritten_bytes -= len(data)
            self._wrote.set()
            self._wrote = trio.Event()

    async def _fit(self) -> None:
        try:
            await trio.to_thread.run_sync(self._files.fit, limiter=self._write_threads)
        except OSError as error:
            self._complain(error)

    def _complain(self, error: OSError) -> None:
        """Tell once: a full disk would fill the log too."""
        log.log(
            logging.DEBUG if self._has_failed else logging.WARNING,
            "the disk cache fails, the store is asked instead: %s",
            error,
        )
        self._has_failed = True

    def _cut(self, version: ObjectInfo, start: int, stop: int) -> Iterator[_Slice]:
        """Cut a range at the grid. A slice may be a piece of its own, or lie in a whole square."""
        origin = (*self._bucket, version.key, version.etag, str(version.size))
        while start < stop:
            square = start - start % GRID_BYTES
            slice_stop = min(stop, square + GRID_BYTES)
            whole = Piece(origin, square, min(square + GRID_BYTES, version.size))
            if (whole.start, whole.stop) == (start, slice_stop):
                yield _Slice(start, slice_stop, (whole,))
            else:
                yield _Slice(start, slice_stop, (Piece(origin, start, slice_stop), whole))
            start = slice_stop


def _look_up(files: CacheFiles, slices: Sequence[_Slice]) -> list[memoryview | None]:
    return [_look_up_one(files, each) for each in slices]


def _look_up_one(files: CacheFiles, wanted: _Slice) -> memoryview | None:
    for piece in wanted.pieces:
        data = files.read(piece)
        if data is not None:
            return data[wanted.start - piece.start : wanted.stop - piece.start]
    return None


def _write(files: CacheFiles, slices: Sequence[_Slice], data: Bytes) -> int:
    """Keep each slice as a piece of its own; return how many bytes were not here yet."""
    view, at, written = memoryview(data), 0, 0
    for each in slices:
        size = each.stop - each.start
        written += size if files.write(each.pieces[0], view[at : at + size]) else 0
        at += size
    return written
