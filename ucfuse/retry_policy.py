"""How often, how long and how far apart one operation is tried.

`repeating` and the catalog's client make one `Pace` per operation. Time is trio's alone, chance the
given `Random`'s.
"""

import math
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from ucfuse.errors import StoreError

__all__ = ["Pace"]

T = TypeVar("T")

FIRST_BACKOFF_S = 0.05
LONGEST_BACKOFF_S = 5.0
# Without a deadline in the caller's scope there is still an end.
PATIENCE_S = 60.0


class Pace:
    """The attempts of one operation: each with a time-out, with growing pauses between them.

    `attempt_timeout_s` bounds the first attempt and doubles with each further one: a connection
    that stalled is soon tried again, and a link that is merely slow gets there in the end.
    """

    def __init__(self, rng: random.Random, attempt_timeout_s: float) -> None:
        self._rng = rng
        self._timeout_s = attempt_timeout_s
        self._backoff_s = FIRST_BACKOFF_S
        self.began_at = trio.current_time()

    @property
    def _stop_at(self) -> float:
        """When to give up. The caller may put it off meanwhile, as long as something moves."""
        deadline = trio.current_effective_deadline()
        return self.began_at + PATIENCE_S if math.isinf(deadline) else deadline

    async def attempt(
        self, call: Callable[[], Awaitable[T]], silence: type[StoreError], subject: str
    ) -> T:
        """Return what `call` returns; raise `silence` if that takes too long."""
        started_at = trio.current_time()
        with trio.move_on_at(min(started_at + self._timeout_s, self._stop_at)):
            return await call()
        raise silence(subject, f"no answer within {trio.current_time() - started_at:.1f} s")

    async def before_repeat(self, cause: StoreError, at_least_s: float = 0.0) -> None:
        """Wait before the next attempt; raise `cause` at once if that could not begin in time."""
        pause_s = at_least_s + self._rng.uniform(0.0, self._backoff_s)
        if trio.current_time() + pause_s >= self._stop_at:
            raise cause
        self._backoff_s = min(2 * self._backoff_s, LONGEST_BACKOFF_S)
        self._timeout_s *= 2
        await trio.sleep(pause_s)
