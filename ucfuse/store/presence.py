"""Whether a store answers at all; if it does not, requests to it end at once.

`retrying` asks before it begins and tells what was answered, by a refusal too, and what was not;
the transport tells of answers that came in part. A store that left somebody waiting for `limit_s`
without a single answer is *away*: further requests fail without waiting, until a probe, or a
request still under way, is answered.

It sends nothing but the probe, and never ends a request that is under way.

Concurrency: trio loop only; `serve` and its probes are tasks of the mount's nursery.
"""

import logging
import math
from collections.abc import Awaitable, Callable

import trio

from ucfuse.errors import OutcomeUnclear, StoreError, StoreUnavailable
from ucfuse.metrics import Metrics

__all__ = ["Presence"]

log = logging.getLogger(__name__)

# Every other cause is an answer of the store; with these, the transport knows.
NO_ANSWER = (StoreUnavailable, OutcomeUnclear)
# Even a very slow link brings an answer in this time. A store that stalls keeps its probes waiting,
# so several run at once: a later one finds out first that it is back.
PROBE_TIMEOUT_S = 10.0
MOST_PROBES = 8
PROBE_PAUSE_S = 1.0
# Whoever asks a store that is away has it probed, and waits this long: one that is back is used at
# once, and nobody notices the pause that otherwise ends in an error.
GRACE_S = 0.3


class Presence:
    """The presence of one store. `metrics.is_away` shows it."""

    def __init__(self, name: str, limit_s: float, metrics: Metrics) -> None:
        self._name = name
        self._limit_s = limit_s
        self._metrics = metrics
        self._heard_at = -math.inf
        self._waited_until = -math.inf
        self._waited_s = 0.0
        self._went_away = trio.Event()
        self._came_back = trio.Event()
        self._is_wanted = trio.Event()
        self._probe_count = 0

    async def require(self, subject: str) -> None:
        """Raise `StoreUnavailable` if there is no point in asking."""
        if not self._metrics.is_away:
            return
        self._is_wanted.set()
        with trio.move_on_after(GRACE_S):
            await self._came_back.wait()
        if self._metrics.is_away:
            reason = f"the store gave no answer for {self._limit_s:g} s; it is asked again soon"
            raise StoreUnavailable(subject, reason)

    def heard(self) -> None:
        """Note an answer, whatever it says."""
        self._heard_at = trio.current_time()
        self._waited_s = 0.0
        if self._metrics.is_away:
            self._metrics.is_away = False
            self._went_away = trio.Event()
            self._came_back.set()
            log.info("%s answers again", self._name)

    def unheard(self, since: float) -> None:
        """Note that a request that somebody waited for since then has no answer yet.

        Only time in which somebody waited counts: of a store that nobody asks nothing is known.
        """
        now = trio.current_time()
        self._waited_s += max(0.0, now - max(since, self._heard_at, self._waited_until))
        self._waited_until = now
        if self._waited_s >= self._limit_s and not self._metrics.is_away:
            self._metrics.is_away = True
            self._came_back = trio.Event()
            self._went_away.set()
            log.warning("%s gave no answer for %g s: it is away", self._name, self._limit_s)

    def tell(self, error: BaseException, since: float) -> None:
        """Note how a request ended that somebody has waited for since then."""
        if isinstance(error, StoreError) and not isinstance(error, NO_ANSWER):
            self.heard()
        else:
            self.unheard(since)

    async def serve(self, probe: Callable[[], Awaitable[object]], nursery: trio.Nursery) -> None:
        """Have a store that is away asked until it answers; for ever."""
        while True:
            await self._went_away.wait()
            while self._metrics.is_away:
                self._is_wanted = trio.Event()
                if self._probe_count < MOST_PROBES:
                    self._probe_count += 1
                    nursery.start_soon(self._probe, probe)
                with trio.move_on_after(PROBE_PAUSE_S):
                    await self._is_wanted.wait()
                    await trio.sleep(PROBE_PAUSE_S / MOST_PROBES)

    async def _probe(self, probe: Callable[[], Awaitable[object]]) -> None:
        try:
            with trio.move_on_after(PROBE_TIMEOUT_S):
                await probe()
                self.heard()
        except StoreUnavailable as cause:
            log.debug("%s: probed: %s", self._name, cause)
        except StoreError:  # a refusal is an answer
            self.heard()
        finally:
            self._probe_count -= 1
