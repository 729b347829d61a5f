"""Fetching the parts of all files of a volume under one memory budget, and giving them back.

`fs` builds one `PartPool` per volume; every `PrefetchReader` fetches through it. The pool decides
what may be asked for ahead of a reader and which idle part goes first when memory is short.

Why nobody waits for ever: every reserved byte belongs to a part that is idle (dropped on demand),
in flight (ends by itself: the source has a deadline) or waited for by reads that take it without
waiting for any other part. Parts ahead of a reader are only fetched where there is room at once.

It never retries (the source does) and never raises a failed fetch into its nursery.

Concurrency: trio loop only. Fetches run as tasks of the nursery; all else is atomic.
"""

import logging
from collections.abc import Iterator
from typing import Protocol

import trio

from ucfuse.budget import MemoryBudget, Reservation
from ucfuse.errors import CorruptData, StoreUnavailable, VolumeError
from ucfuse.reading.parts import Part, PartState
from ucfuse.reading.window import MAX_PARTS_AHEAD, Stream
from ucfuse.store.api import IN_FLIGHT_COPIES, Bytes
from ucfuse.volume import MiB

__all__ = ["PART_BYTES", "PartPool", "RangeSource"]

log = logging.getLogger(__name__)

PART_BYTES = 8 * MiB


class RangeSource(Protocol):
    """The bytes of one file version."""

    async def fetch(self, start: int, stop: int) -> Bytes:
        """Return exactly bytes `[start, stop)`; retries, within a deadline. Raises `StoreError`."""
        ...


class PartPool:
    """Starts fetches, holds the reservations of all parts, and drops parts nobody needs.

    Invariant: `_exact` and `_ahead` hold exactly the parts that are ready and have no users.
    """

    def __init__(
        self,
        budget: MemoryBudget,
        nursery: trio.Nursery,
        part_bytes: int = PART_BYTES,
        max_parts_ahead: int = MAX_PARTS_AHEAD,
    ) -> None:
        self.part_bytes = part_bytes
        self._budget = budget
        self._nursery = nursery
        self._max_ahead_bytes = max_parts_ahead * part_bytes
        self._exact: dict[Part, None] = {}  # of no stream; least recently used first
        self._ahead: dict[Part, None] = {}  # fetched for a stream
        self._streams: dict[Stream, None] = {}
        self._hungry_count = 0  # demanded parts that wait for memory, or will in a moment
        budget.add_reclaimer(self._reclaim)

    @property
    def is_contended(self) -> bool:
        """Whether a demanded fetch lacks memory: nobody should then ask for more than that."""
        return self._hungry_count > 0 or self._budget.is_contended

    def fetch(self, part: Part, source: RangeSource) -> None:
        """Fetch a part that a read waits for, as soon as there is memory for it."""
        part.reservation = self._budget.reserve_nowait(part.size * IN_FLIGHT_COPIES)
        if part.reservation is None:
            self._hungry_count += 1
        self._begin(part, source)

    def fetch_ahead(self, part: Part, source: RangeSource) -> bool:
        """Fetch a part that nobody waits for yet; False if there is no room for it now."""
        part.reservation = self._reserve_politely(part.size * IN_FLIGHT_COPIES)
        if part.reservation is None:
            return False
        self._begin(part, source)
        return True

    def adopt(self, part: Part, data: Bytes, reservation: Reservation) -> None:
        """Take bytes that were fetched already, with their reservation."""
        part.reservation = reservation
        part.home.add(part)
        part.arrive(data)
        self.settle(part)

    def settle(self, part: Part) -> None:
        """Decide what becomes of a part that a read has just left, or that has just arrived."""
        if part.users:
            return
        match part.state:
            case PartState.READY:
                self._keep_or_drop(part)
            case PartState.QUEUED if part.reservation is None:
                self.discard(part)  # its reader gave up: nobody should queue for memory behind it
            case PartState.FETCHING | PartState.QUEUED if part.home.is_closed:
                self.discard(part)
            case _:
                pass

    def discard(self, part: Part) -> None:
        """Drop a part without users; a fetch under way is cancelled and then returns its bytes."""
        part.home.remove(part)
        self._exact.pop(part, None)
        self._ahead.pop(part, None)
        if part.stream is not None and not part.is_spent:
            part.stream.lost(part.start)
        in_flight = part.state is not PartState.READY
        part.drop()
        if in_flight:
            part.scope.cancel()
        elif part.reservation is not None:
            part.reservation.release()

    def window_limit(self, stream: Stream) -> int:
        """Return how far `stream` may run ahead: a fair share among those who read now.

        With n streams each gets 1/(n+1) of the budget, so one share is left for all other reads.
        All of a window may be in flight at once.
        """
        self._streams[stream] = None
        now = trio.current_time()
        idle = [other for other in self._streams if not other.is_active(now)]
        for other in idle:
            del self._streams[other]
        share = self._budget.limit_bytes // (len(self._streams) + 1) // IN_FLIGHT_COPIES
        return min(share, self._max_ahead_bytes)

    def forget(self, stream: Stream) -> None:
        """Leave a stream that ended out of the shares."""
        self._streams.pop(stream, None)

    def _begin(self, part: Part, source: RangeSource) -> None:
        part.home.add(part)
        self._nursery.start_soon(self._run, part, source)

    async def _run(self, part: Part, source: RangeSource) -> None:
        """Fetch one part; whatever happens is delivered to those who wait for it."""
        try:
            with part.scope:
                await self._fetch(part, source)
        except VolumeError as cause:
            self._fail(part, cause)
        except Exception as bug:
            log.exception("fetch of [%d, %d) failed: this is a bug", part.start, part.stop)
            self._fail(part, bug)
        finally:
            if not part.done.is_set():
                self._fail(part, StoreUnavailable(_range(part), "the mount is ending"))
            if part.state is not PartState.READY and part.reservation is not None:
                part.reservation.release()
        self.settle(part)

    async def _fetch(self, part: Part, source: RangeSource) -> None:
        if part.reservation is None:
            try:
                part.reservation = await self._budget.reserve(part.size * IN_FLIGHT_COPIES)
            finally:
                self._hungry_count -= 1
        await trio.lowlevel.checkpoint_if_cancelled()  # dropped before this task ran
        part.state = PartState.FETCHING
        data = await source.fetch(part.start, part.stop)
        await trio.lowlevel.checkpoint_if_cancelled()  # dropped, and the source did not notice
        if len(data) != part.size:
            raise CorruptData(_range(part), f"{len(data)} bytes instead of {part.size}")
        part.reservation.shrink_to(part.size)
        part.arrive(data)

    def _fail(self, part: Part, cause: Exception) -> None:
        if part.state is PartState.DROPPED:
            return
        part.home.remove(part)
        if part.stream is not None:
            part.stream.lost(part.start)
        if not part.users:
            log.debug("part [%d, %d) that nobody waits for: %s", part.start, part.stop, cause)
        part.fail(cause)

    def _keep_or_drop(self, part: Part) -> None:
        if part.is_spent or part.home.is_closed or self._budget.is_contended:
            self.discard(part)
        elif part.stream is None:
            self._exact.pop(part, None)
            self._exact[part] = None
        else:
            self._ahead[part] = None

    def _reserve_politely(self, size_bytes: int) -> Reservation | None:
        """Reserve without waiting, at most at the cost of parts that nobody reads."""
        reservation = self._budget.reserve_nowait(size_bytes)
        if reservation is not None or self.is_contended:
            return reservation
        for part in self._unread():
            self.discard(part)
            reservation = self._budget.reserve_nowait(size_bytes)
            if reservation is not None:
                break
        return reservation

    def _unread(self) -> Iterator[Part]:
        while self._exact:
            yield next(iter(self._exact))
        now = trio.current_time()
        yield from [p for p in self._ahead if p.stream is not None and not p.stream.is_active(now)]

    def _reclaim(self, wanted_bytes: int) -> None:
        """Drop idle parts: those that nobody reads, then those that will be read last."""
        for idle in (self._unread(), self._furthest_first()):
            for part in idle:
                if wanted_bytes <= 0:
                    return
                wanted_bytes -= part.size
                self.discard(part)

    def _furthest_first(self) -> Iterator[Part]:
        yield from sorted(self._ahead, key=_distance, reverse=True)


def _distance(part: Part) -> int:
    return part.start - part.stream.head if part.stream is not None else 0


def _range(part: Part) -> str:
    return f"bytes [{part.start}, {part.stop})"
