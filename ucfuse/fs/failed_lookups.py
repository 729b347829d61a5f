"""Lookups that fail since the store is away, and those that waited behind them.

The kernel sends the lookups of one directory one after another, and one that failed for a name
that it knew twice in the same call. If each took its deadline, a program would wait for the
deadlines of all before it: so what comes right after a failure fails with it, unless the store has
come back meanwhile.

Concurrency: trio loop only, every method is atomic.
"""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import trio

from ucfuse.errors import StoreError, StoreUnavailable, Throttled

__all__ = ["FailedLookups"]

# The next one comes within microseconds, and a machine under load adds to that. A program that
# begins in just this time is told what the others were.
NEXT_S = 0.1
# However many there are, the store is asked again after this long.
ALL_S = 1.0
MOST_DIRECTORIES = 4096


@dataclass(slots=True)
class _Failure:
    cause: StoreError
    failed_at: float
    last_at: float
    was_away: bool


class FailedLookups:
    """The last failures of one volume, or of the levels above volumes, by directory."""

    def __init__(self, is_away: Callable[[], bool]) -> None:
        """`is_away`: whether the store is not asked at present, since it gave no answer."""
        self._is_away = is_away
        self._by_directory: dict[Hashable, _Failure] = {}

    @contextmanager
    def asking(self, directory: Hashable) -> Iterator[None]:
        """Ask the store about a name in this directory, unless this waited for a failure.

        Raises the cause of that failure, or what the block raises.
        """
        self._raise_if_waited(directory)
        try:
            yield
        except (StoreUnavailable, Throttled) as cause:
            self._note(directory, cause)
            raise
        self._by_directory.pop(directory, None)

    def _raise_if_waited(self, directory: Hashable) -> None:
        failure = self._by_directory.get(directory)
        if failure is None:
            return
        now = trio.current_time()
        came_back = failure.was_away and not self._is_away()
        if came_back or now > failure.last_at + NEXT_S or now > failure.failed_at + ALL_S:
            del self._by_directory[directory]
            return
        failure.last_at = now
        raise type(failure.cause)(failure.cause.subject, failure.cause.detail)

    def _note(self, directory: Hashable, cause: StoreError) -> None:
        now = trio.current_time()
        self._by_directory[directory] = _Failure(cause, now, now, self._is_away())
        if len(self._by_directory) > MOST_DIRECTORIES:
            del self._by_directory[next(iter(self._by_directory))]
