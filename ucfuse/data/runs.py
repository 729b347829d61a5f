"""Sets of small numbers as runs: `[0, 512, 514, 516]` are 0 to 511, 514 and 515.

Progress through an epoch is nearly one long run, so a state of millions of files stays short. The
runs are plain integers, which `json` and `torch.load(weights_only=True)` both take.
"""

from collections.abc import Sequence

__all__ = ["flags_of", "left_over", "runs_of"]


def runs_of(flags: bytearray) -> list[int]:
    """Return the start and stop of every run of ones in `flags`, one after the other."""
    runs = []
    start = flags.find(1)
    while start >= 0:
        stop = flags.find(0, start)
        if stop < 0:
            stop = len(flags)
        runs += [start, stop]
        start = flags.find(1, stop)
    return runs


def flags_of(runs: Sequence[int], length: int) -> bytearray:
    """Return `length` flags with ones in the runs; what lies beyond `length` is left out."""
    flags = bytearray(length)
    for start, stop in zip(runs[::2], runs[1::2], strict=True):
        stop = min(stop, length)
        if start < stop:
            flags[start:stop] = b"\x01" * (stop - start)
    return flags


def left_over(runs: Sequence[int], length: int) -> Sequence[int]:
    """Return the numbers below `length` that are in no run, in order."""
    if not runs:
        return range(length)
    flags = flags_of(runs, length)
    return [number for number in range(length) if not flags[number]]
