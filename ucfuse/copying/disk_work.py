"""Waiting for a local disk without holding up the loop, at the least cost.

A disk that takes a small file into its cache is done before a worker thread would have begun:
measured with files of 150 KiB, a thread for each of them takes a quarter of all the time of a copy.
So such work is done in the loop, until it has waited once; then the next ones get threads.

Concurrency: trio loop only.
"""

import resource
import time
from collections.abc import Callable
from typing import TypeVar

import trio

from ucfuse.volume import MiB

__all__ = ["DiskWork"]

T = TypeVar("T")

# Reading from a disk scales with some threads; the page cache needs no more.
MOST_THREADS = 8
SMALL_BYTES = 1 * MiB
# The answers of a network, and of a disk that is behind, take more.
SHORTEST_WAIT_S = 0.002
# A disk that is always slow holds the loop up for two in a hundred files, side by side with threads
# that do the others.
WORKS_IN_THREADS = 50


class DiskWork:
    """Does work on one disk. Owner of the number of threads."""

    def __init__(self) -> None:
        self._threads = trio.CapacityLimiter(MOST_THREADS)
        self._in_threads = 0

    async def run(self, work: Callable[[], T], size: int | None = None) -> T:
        """Return what `work` returns; `size`: of how many bytes it reads or writes, None: unknown.

        Raises what it raises.
        """
        if size is None or size > SMALL_BYTES:
            return await trio.to_thread.run_sync(work, limiter=self._threads)
        if self._in_threads:
            self._in_threads -= 1
            return await trio.to_thread.run_sync(work, limiter=self._threads)
        await trio.lowlevel.checkpoint_if_cancelled()
        began, sleeps = time.perf_counter(), _sleeps()
        try:
            return work()
        finally:
            if time.perf_counter() - began > SHORTEST_WAIT_S and _sleeps() > sleeps:
                self._in_threads = WORKS_IN_THREADS
            await trio.lowlevel.cancel_shielded_checkpoint()


def _sleeps() -> int:
    """Return how often this thread has waited for something, other than for its turn on a core."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
