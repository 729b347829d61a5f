"""How long an upload waits for a store that does not answer.

`transfer` and `upload` bound every request by one `Patience`. It ends so many seconds after the
last request of the same upload that ended well, so a file of any size gets through as long as
something moves.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import trio

from ucfuse.errors import StoreUnavailable
from ucfuse.tasks import abortable, why_ended
from ucfuse.volume import Key

__all__ = ["Patience"]


class Patience:
    """The deadline of one upload: so many seconds after its last request ended well."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._deadline = trio.current_time() + limit_s
        self._scopes: set[trio.CancelScope] = set()

    @contextmanager
    def bound(self, key: Key) -> Iterator[None]:
        """Bound one request by the patience; if it ends well, all get new patience.

        Raises `StoreUnavailable` when the patience ends, or `stop` was called.
        """
        if not self._scopes:  # nothing was asked for, so nothing failed to move
            self._push()
        with trio.CancelScope(deadline=self._deadline) as scope, abortable(scope):
            self._scopes.add(scope)
            try:
                yield
            finally:
                self._scopes.discard(scope)
        if scope.cancelled_caught:
            reason = f"no request got through for {self._limit_s:g} s"
            raise StoreUnavailable(key, why_ended(scope, reason))
        self._push()

    def stop(self) -> None:
        """End the requests under way."""
        for scope in self._scopes:
            scope.cancel()

    def _push(self) -> None:
        self._deadline = trio.current_time() + self._limit_s
        for scope in self._scopes:
            scope.deadline = self._deadline
