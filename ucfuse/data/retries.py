"""Trying again what may pass, and not what will not.

The mount itself waits for its store for a minute; what it still reports after that may be over a
moment later, but asking for much longer would only hide it. A missing file or a missing right is
answered at once. Error texts are never looked at.
"""

import errno
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

__all__ = ["Stopped", "is_passing", "naming", "patiently"]

T = TypeVar("T")

PASSING = frozenset(
    {
        errno.EIO,
        errno.EAGAIN,
        errno.EBUSY,
        errno.ESTALE,
        errno.ETIMEDOUT,
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.EHOSTUNREACH,
        errno.ECONNRESET,
        errno.ECONNREFUSED,
        errno.ECONNABORTED,
    }
)

# About six seconds in all, on top of what the file system waited by itself.
DELAYS_S = (0.1, 0.4, 1.6, 4.0)

# Of its own, so that the training script's random numbers stay reproducible.
_jitter = random.Random()


class Stopped(Exception):
    """Nobody wants the result any more."""


def is_passing(error: OSError) -> bool:
    """Return whether the same call may succeed a little later."""
    return error.errno in PASSING


@contextmanager
def naming(path: str) -> Iterator[None]:
    """Give errors of the block their path where they have none, as those of `read`."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, path) from error


def patiently(
    work: Callable[[], T], stop: threading.Event, on_retry: Callable[[OSError], None]
) -> T:
    """Return what `work` returns, trying again after passing errors.

    Raises the first lasting error, the last of the passing ones, or `Stopped`.
    """
    for delay_s in DELAYS_S:
        try:
            return work()
        except OSError as error:
            if not is_passing(error):
                raise
            on_retry(error)
        if stop.wait(delay_s * _jitter.uniform(0.5, 1.0)):
            raise Stopped
    return work()
