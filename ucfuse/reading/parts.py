"""The parts of one file version that are in memory or on their way, and where they lie.

`PartPool` moves a part through its states, `PrefetchReader` takes bytes out of it. Nothing here
fetches or reserves.

Concurrency: trio loop only; every method is atomic.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, auto

import trio

from ucfuse.budget import Reservation
from ucfuse.reading.window import Stream
from ucfuse.store.api import Bytes

__all__ = ["PAGE_BYTES", "Part", "PartMap", "PartState"]

# The kernel asks for, and caches, whole pages.
PAGE_BYTES = 4096


class PartState(Enum):
    """Where a part is on its way. FAILED and DROPPED parts are in no map any more."""

    QUEUED = auto()  # waits for memory
    FETCHING = auto()
    READY = auto()
    FAILED = auto()
    DROPPED = auto()


@dataclass(slots=True, eq=False)
class Part:
    """Bytes `[start, stop)` of a file version.

    Owner: the pool, which holds its reservation. `users` counts the reads that wait for it; a
    part with users is never dropped. `stream`: for whom it was fetched, None for an exact range.
    """

    start: int
    stop: int
    home: "PartMap"
    stream: Stream | None = None
    state: PartState = PartState.QUEUED
    users: int = 0
    reservation: Reservation | None = None
    failure: Exception | None = None
    done: trio.Event = field(default_factory=trio.Event)
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    _data: memoryview | None = None
    _delivered: int = 0  # one bit per page that a read took in full

    @property
    def size(self) -> int:
        """Length in bytes."""
        return self.stop - self.start

    @property
    def is_spent(self) -> bool:
        """Whether every page was delivered: the kernel has them now."""
        page_count = -(-self.size // PAGE_BYTES)
        return self._delivered == (1 << page_count) - 1

    @property
    def data(self) -> memoryview | None:
        """All bytes of a part that is ready, without a copy."""
        return self._data

    def arrive(self, data: Bytes) -> None:
        """Take the fetched bytes and wake who waits."""
        self._data = memoryview(data)
        self.state = PartState.READY
        self.done.set()

    def fail(self, cause: Exception) -> None:
        """Let everybody who waits raise `cause`."""
        self.failure = cause
        self.state = PartState.FAILED
        self.done.set()

    def drop(self) -> None:
        """Forget the bytes. A read that meant to come here asks again."""
        self._data = None
        self.state = PartState.DROPPED
        self.done.set()

    def deliver(self, start: int, stop: int) -> memoryview | None:
        """Return bytes `[start, stop)` without a copy, or None if the part was dropped.

        Raises what its fetch failed with.
        """
        if self.failure is not None:
            raise self.failure
        if self._data is None:
            return None
        first = -(-(start - self.start) // PAGE_BYTES)
        covered = self.size if stop == self.stop else stop - self.start
        last = -(-covered // PAGE_BYTES) if stop == self.stop else covered // PAGE_BYTES
        if last > first:
            self._delivered |= ((1 << (last - first)) - 1) << first
        return self._data[start - self.start : stop - self.start]


class PartMap:
    """The parts of one file version, by position. Invariant: they never overlap, so that no byte
    is fetched twice while it is here.
    """

    def __init__(self) -> None:
        self.is_closed = False
        self._starts: list[int] = []
        self._parts: list[Part] = []

    def __iter__(self) -> Iterator[Part]:
        return iter(self._parts)

    def add(self, part: Part) -> None:
        """Take a part whose range is a gap."""
        at = bisect_left(self._starts, part.start)
        self._starts.insert(at, part.start)
        self._parts.insert(at, part)

    def remove(self, part: Part) -> None:
        """Make the range of `part` a gap."""
        at = bisect_left(self._starts, part.start)
        del self._starts[at]
        del self._parts[at]

    def holding(self, start: int, stop: int) -> Part | None:
        """Return the ready part that has all of `[start, stop)`."""
        at = bisect_right(self._starts, start) - 1
        if at < 0:
            return None
        part = self._parts[at]
        return part if stop <= part.stop and part.state is PartState.READY else None

    def touching(self, start: int, stop: int) -> list[Part]:
        """Return the parts that have any of `[start, stop)`, in order."""
        first = bisect_right(self._starts, start) - 1
        if first < 0 or self._parts[first].stop <= start:
            first += 1
        return self._parts[first : bisect_left(self._starts, stop)]

    def gaps(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Return the ranges within `[start, stop)` that no part has, in order."""
        gaps = []
        for part in self.touching(start, stop):
            if start < part.start:
                gaps.append((start, part.start))
            start = part.stop
        if start < stop:
            gaps.append((start, stop))
        return gaps
