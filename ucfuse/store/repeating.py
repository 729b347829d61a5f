"""How a request is repeated until it is answered, or until it is known what became of it.

`retrying` says of each request which of the two it needs. The pauses and time-outs are those of
`retry_policy`; what is being repeated is shown by `troubles`, and `presence` hears of every answer.

Concurrency: stateless between calls; any number at once.
"""

import logging
import random
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from ucfuse.errors import (
    CorruptData,
    NoSuchUpload,
    ObjectChanged,
    ObjectMissing,
    OutcomeUnclear,
    StoreError,
    StoreUnavailable,
    Throttled,
)
from ucfuse.retry_policy import Pace
from ucfuse.store.api import ObjectHead, ObjectStore
from ucfuse.store.presence import Presence
from ucfuse.store.troubles import Telling
from ucfuse.volume import Key

__all__ = ["METADATA_TIMEOUT_S", "Done", "Repeater"]

log = logging.getLogger(__name__)

T = TypeVar("T")

METADATA_TIMEOUT_S = 5.0

MAY_PASS = (Throttled, StoreUnavailable, OutcomeUnclear)


@dataclass(frozen=True, slots=True)
class Done(Generic[T]):
    """The change did take place; `result` is what it would have returned."""

    result: T


Judge = Callable[[ObjectHead | None], Done[T] | None]
"""Says from what the key holds now (None: nothing) whether our change took place. None: it did
not, and may be made again. Raises the cause if neither."""


class Repeater:
    """Repeats the requests of one store, which it borrows, as all else that it is given."""

    def __init__(
        self,
        store: ObjectStore,
        rng: random.Random,
        troubles: MutableMapping[str, str],
        presence: Presence,
    ) -> None:
        self._store = store
        self._rng = rng
        self._troubles = troubles
        self._presence = presence

    async def head(self, key: Key) -> ObjectHead:
        """Ask what a key holds, until it is answered."""
        return await self.repeat(key, METADATA_TIMEOUT_S, lambda: self._store.head(key))

    async def repeat(
        self,
        subject: str,
        timeout_s: float,
        call: Callable[[], Awaitable[T]],
        *,
        silence: type[StoreError] = StoreUnavailable,
    ) -> T:
        """Make a request that does no harm when it is made twice, until it is answered."""
        pace = Pace(self._rng, timeout_s)
        with Telling(self._troubles, subject) as telling:
            while True:
                try:
                    return await self._attempt(pace, call, silence, subject)
                except MAY_PASS as error:
                    cause = error
                telling.tell(cause)
                await pace.before_repeat(cause)

    async def once_more_if_corrupt(self, call: Callable[[], Awaitable[T]]) -> T:
        """Do it once more if the bytes came damaged: it may have happened on the way."""
        try:
            return await call()
        except CorruptData as cause:
            log.warning("damaged on the way, once more: %s", cause)
        try:
            return await call()
        except CorruptData as cause:
            log.error("%s", cause)
            raise

    async def settle(
        self, key: Key, timeout_s: float, change: Callable[[], Awaitable[T]], judge: Judge[T]
    ) -> T:
        """Make a change that must not be made twice, until it is known what became of it."""
        pace = Pace(self._rng, timeout_s)
        doubt: StoreError | None = None
        with Telling(self._troubles, key) as telling:
            while True:
                refusal: StoreError | None = None
                try:
                    return await self._attempt(pace, change, OutcomeUnclear, key)
                except MAY_PASS as error:
                    # One unclear attempt leaves the whole unclear, however the later ones failed.
                    doubt = doubt if isinstance(doubt, OutcomeUnclear) else error
                except (ObjectChanged, NoSuchUpload) as error:
                    if doubt is None:
                        raise
                    refusal = error  # perhaps only because an earlier attempt succeeded
                telling.tell(doubt)
                await pace.before_repeat(doubt)
                done = judge(await self._present(key, doubt))
                if done is not None:
                    return done.result
                if isinstance(refusal, NoSuchUpload):
                    raise refusal

    async def _attempt(
        self, pace: Pace, call: Callable[[], Awaitable[T]], silence: type[StoreError], subject: str
    ) -> T:
        try:
            result = await pace.attempt(call, silence, subject)
        except BaseException as error:
            self._presence.tell(error, pace.began_at)
            raise
        self._presence.heard()
        return result

    async def _present(self, key: Key, doubt: StoreError) -> ObjectHead | None:
        """Return what the key holds, None for nothing; raise `doubt` if that cannot be told."""
        try:
            return await self.head(key)
        except ObjectMissing:
            return None
        except StoreError:
            raise doubt from None
