"""How long something took, over and over, in a few numbers: counts in fixed buckets.

`metrics` keeps a `Histogram` per kind of request; `reporting` and `prometheus` read them. Adding
costs a binary search in a short tuple, and nothing grows with the number of requests.

Concurrency: trio loop only, like all counters.
"""

from bisect import bisect_left
from collections.abc import Sequence

__all__ = ["BOUNDS_S", "Histogram", "quantile"]

# From 10 us to 100 s, six to the decade: what is read off a histogram is right within a fifth.
_DIGITS = ("1", "1.5", "2", "3", "5", "7")
BOUNDS_S = (*(float(f"{digit}e{power}") for power in range(-5, 2) for digit in _DIGITS), 100.0)
"""The largest duration that each bucket takes; a last bucket has all that took longer."""


class Histogram:
    """Counts of durations by bucket, and their sum."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0

    def add(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.sum_s += seconds


def quantile(counts: Sequence[int], share: float) -> float:
    """Return the duration in seconds that this share of all counted did not exceed; 0 of none.

    Within a bucket durations count as evenly spread.
    """
    rank = share * sum(counts)
    if not rank:
        return 0.0
    below = 0
    for index, count in enumerate(counts[:-1]):
        if below + count >= rank:
            start = BOUNDS_S[index - 1] if index else 0.0
            return start + (BOUNDS_S[index] - start) * (rank - below) / count
        below += count
    return BOUNDS_S[-1]
