"""Locks between processes: flock on descriptors, which the kernel takes back when a process dies.

A fork shares descriptors, and with them the locks: so every lock is given back by name, not by
closing, and a child closes the descriptors of locks that it inherited.

Concurrency: safe in any thread. Waiting is interruptible by a stop event.
"""

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ucfuse.data.retries import Stopped

__all__ = ["acquire", "holding", "release", "try_lock"]

FIRST_PAUSE_S = 0.001
LONGEST_PAUSE_S = 0.05

_held: set[int] = set()


def _close_inherited() -> None:
    """Run in a forked child: it has no part in its parent's locks."""
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_close_inherited)


def try_lock(path: str | Path, how: int, flags: int = os.O_RDWR) -> int | None:
    """Return the descriptor of `path`, locked, or None: somebody else has it. Raises `OSError`."""
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
    _held.add(descriptor)
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        release(descriptor)
        return None
    except BaseException:
        release(descriptor)
        raise
    return descriptor


def acquire(path: str | Path, stop: threading.Event) -> int:
    """Return the descriptor of `path`, made if need be and locked for us alone.

    Raises `Stopped`, `OSError`.
    """
    pause_s = FIRST_PAUSE_S
    while True:
        descriptor = try_lock(path, fcntl.LOCK_EX, os.O_RDWR | os.O_CREAT)
        if descriptor is not None:
            return descriptor
        # flock cannot wait for two things; the holder is copying a file, which takes longer.
        if stop.wait(pause_s):
            raise Stopped
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def release(descriptor: int) -> None:
    """Give the lock back, also where a forked child still has a copy of the descriptor."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        _held.discard(descriptor)
        os.close(descriptor)


@contextmanager
def holding(path: str | Path, stop: threading.Event) -> Iterator[int]:
    """Hold the lock of `path` for the block. Raises `Stopped`, `OSError`."""
    descriptor = acquire(path, stop)
    try:
        yield descriptor
    finally:
        release(descriptor)
