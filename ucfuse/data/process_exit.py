"""What has to happen when a process ends, whether it is Python's first or one that it started.

Not `atexit`, which the children of `multiprocessing` do not run. The steps run after this process's
own children have ended, in the order of `Step`.

Concurrency: `at_end` may be called in any thread; the steps run in the main thread.
"""

import multiprocessing.util
import os
from collections.abc import Callable
from enum import IntEnum

__all__ = ["Step", "at_end"]


class Step(IntEnum):
    """Higher ones come first; all are below what runs before the children are ended."""

    STOP_THREADS = -1
    LEAVE_DIRECTORIES = -2


_registered: set[tuple[int, Step]] = set()


def at_end(step: Step, work: Callable[[], None]) -> None:
    """Have `work` done when this very process ends; once, however often it is asked for."""
    # A forked child has its parent's set, and none of its parent's finalizers.
    key = (os.getpid(), step)
    if key not in _registered:
        _registered.add(key)
        multiprocessing.util.Finalize(None, work, exitpriority=step)
