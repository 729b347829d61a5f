"""A set of byte ranges: which bytes of a file somebody has written.

`staging` keeps one per dirty file. Pure bookkeeping: no I/O, no clock, no locks.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

__all__ = ["RangeSet"]


class RangeSet:
    """Numbers held as ranges `[start, stop)` in order.

    Invariant: ranges are not empty, and neither overlap nor touch. Two flat lists, so that a
    file written in order costs one assignment per write, and one with thousands of scattered
    writes a binary search and a short `memmove`.
    """

    __slots__ = ("_starts", "_stops", "byte_count")

    def __init__(self) -> None:
        self.byte_count = 0
        """How many numbers are in the set."""
        self._starts: list[int] = []
        self._stops: list[int] = []

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """The ranges in ascending order."""
        return zip(self._starts, self._stops, strict=True)

    def __len__(self) -> int:
        """How many separate ranges there are."""
        return len(self._starts)

    @property
    def start(self) -> float:
        """The least number in the set; infinite if there is none."""
        return self._starts[0] if self._starts else math.inf

    def add(self, start: int, stop: int) -> None:
        """Put `[start, stop)` in; what is in already stays."""
        if start >= stop:
            return
        if self._stops and start == self._stops[-1]:  # a file written in order comes here
            self._stops[-1] = stop
            self.byte_count += stop - start
            return
        first = bisect_left(self._stops, start)
        last = bisect_right(self._starts, stop)
        if first < last:
            start = min(start, self._starts[first])
            stop = max(stop, self._stops[last - 1])
        self.byte_count += stop - start - self._count(first, last)
        self._starts[first:last] = [start]
        self._stops[first:last] = [stop]

    def remove(self, start: int, stop: int) -> None:
        """Take `[start, stop)` out; what is not in does not matter."""
        if start >= stop:
            return
        first = bisect_right(self._stops, start)
        last = bisect_left(self._starts, stop)
        if first >= last:
            return
        left, right = self._starts[first], self._stops[last - 1]
        kept = [(left, start)] if left < start else []
        if stop < right:
            kept.append((stop, right))
        self.byte_count += sum(b - a for a, b in kept) - self._count(first, last)
        self._starts[first:last] = [kept_start for kept_start, _ in kept]
        self._stops[first:last] = [kept_stop for _, kept_stop in kept]

    def contains(self, start: int, stop: int) -> bool:
        """Return whether every number of `[start, stop)` is in the set; an empty range is."""
        if start >= stop:
            return True
        first = bisect_right(self._stops, start)
        return (
            first < len(self._starts)
            and self._starts[first] <= start
            and stop <= self._stops[first]
        )

    def missing(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Return the ranges of `[start, stop)` that are not in the set, in ascending order."""
        gaps = []
        index = bisect_right(self._stops, start)
        while index < len(self._starts) and self._starts[index] < stop:
            if start < self._starts[index]:
                gaps.append((start, self._starts[index]))
            start = self._stops[index]
            index += 1
        if start < stop:
            gaps.append((start, stop))
        return gaps

    def clear(self) -> None:
        """Take everything out."""
        self._starts.clear()
        self._stops.clear()
        self.byte_count = 0

    def _count(self, first: int, last: int) -> int:
        return sum(self._stops[first:last]) - sum(self._starts[first:last])
