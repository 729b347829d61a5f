"""Keys that a catalog vends for a while: those to read with, and, once needed, those to change.

Each request is signed with what is valid then, so an upload goes on over a renewal. Keys are
renewed in the background when half of their life is over, and again if that fails, until they
expire; from then on every request has the catalog asked once more, and what it says is its error.

Concurrency: trio loop only. Questions and renewals run in the mount's nursery and end with it; who
needs the same keys waits for the question that is under way.
"""

import logging
import math
import time
from collections.abc import Callable, MutableMapping
from functools import partial
from typing import Any

import trio
from awscrt.auth import AwsCredentials

from ucfuse.config import Keys, Vend
from ucfuse.errors import AccessDenied, CredentialsExpired, VolumeError
from ucfuse.tasks import Pending, deadline

__all__ = ["TO_CHANGE", "VendedCredentials"]

log = logging.getLogger(__name__)

TO_READ, TO_CHANGE = "read", "change"

RENEW_AT_SHARE = 0.5
# A renewal is given up when the keys expire, so that requests do not wait for it; but a server
# needs some time to answer.
SHORTEST_ASK_S, LONGEST_ASK_S = 1.0, 10.0
# After a failure: at once if the keys live for seconds, now and then if they live for hours.
RETRY_SHARE = 0.05
SHORTEST_RETRY_S, LONGEST_RETRY_S = 0.2, 30.0
# Who needs keys that could not be renewed has the catalog asked, but not more often than this, and
# waits this long: if it is back, nobody notices.
SAME_FAILURE_S = 1.0
GRACE_S = 0.3
# Where our clock is ahead of the catalog's, keys seem to have expired as soon as they come. Whether
# they have, the store knows.
SHORTEST_LIFE_S = 1.0
# A store that refuses every request must not make us ask the catalog for each of them.
RENEW_SPACING_S = 10.0


class VendedCredentials:
    """Implements `Signing` for one volume. `troubles` has why keys cannot be had, by purpose."""

    def __init__(
        self,
        name: str,
        vend: Vend,
        nursery: trio.Nursery,
        troubles: MutableMapping[str, str] | None = None,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        """The deadline of the first question is the caller's, also if others wait for it."""

        told = {} if troubles is None else troubles

        def renewable(*, for_changes: bool) -> _Renewable:
            return _Renewable(name, vend, nursery, told, wall_s, for_changes=for_changes)

        self._to_read = renewable(for_changes=False)
        self._to_change = renewable(for_changes=True)

    async def at_hand(self, *, for_changes: bool) -> AwsCredentials:
        """Return keys that are valid now. Raises what the catalog says if there are none.

        Once they have been had, that they cannot be renewed is `CredentialsExpired`, or
        `AccessDenied` if the catalog refuses it.
        """
        return await (self._to_change if for_changes else self._to_read).at_hand()

    async def renew(self, rejected: Any) -> bool:
        """Ask for others than `rejected`, once for all who ask; return whether there are any."""
        keys = self._to_change if self._to_change.current is rejected else self._to_read
        return await keys.renew(rejected)


class _Renewable:
    """The keys for one kind of request, and their renewal."""

    def __init__(
        self,
        name: str,
        vend: Vend,
        nursery: trio.Nursery,
        troubles: MutableMapping[str, str],
        wall_s: Callable[[], float],
        *,
        for_changes: bool,
    ) -> None:
        self._name = name
        self._vend = vend
        self._nursery = nursery
        self._troubles = troubles
        self._wall_s = wall_s
        self._for_changes = for_changes
        self.current: Any = None
        self._expires_at = math.inf
        self._asking: Pending[None] | None = None
        self._asked_at = -math.inf
        self._failure: VolumeError | None = None
        self._failed_at = -math.inf
        self._is_served = False

    async def at_hand(self) -> AwsCredentials:
        if self.current is not None and trio.current_time() < self._expires_at:
            return self.current
        if self.current is None:
            await self._ask_unless_just_failed()
        else:
            await self._renew_late()
        return self.current

    async def _ask_unless_just_failed(self) -> None:
        if self._failure is not None and self._has_just_failed():
            raise type(self._failure)(self._failure.subject, self._failure.detail)
        left_s = trio.current_effective_deadline() - trio.current_time()
        await self._question(left_s).wait()

    async def _renew_late(self) -> None:
        """Renew what has expired. Raises why that cannot be, at once if that is known."""
        if self._asking is not None or not self._has_just_failed():
            question = self._question(LONGEST_ASK_S)
            with trio.move_on_after(math.inf if self._failure is None else GRACE_S):
                await question.ended()
        cause = self._failure
        if cause is None:
            return
        if isinstance(cause, AccessDenied):
            raise AccessDenied(cause.subject, cause.detail)
        raise CredentialsExpired(self._name, f"and cannot be renewed: {cause}")

    def _has_just_failed(self) -> bool:
        return trio.current_time() < self._failed_at + SAME_FAILURE_S

    async def renew(self, rejected: Any) -> bool:
        if self.current is rejected and trio.current_time() >= self._asked_at + RENEW_SPACING_S:
            try:
                await self._question(LONGEST_ASK_S).wait()
            except VolumeError as cause:
                log.debug("%s: %s", self._name, cause)  # told already
        return self.current is not rejected

    def _question(self, seconds: float) -> Pending[None]:
        """Return the question for new keys that is under way, or begin one for so long."""
        if self._asking is None:
            ask = partial(self._ask, seconds)
            self._asking = Pending(self._nursery, ask, until=math.inf)
        return self._asking

    async def _ask(self, seconds: float) -> None:
        self._asked_at = trio.current_time()
        try:
            with deadline(seconds, self._name):
                keys = await self._vend(for_changes=self._for_changes)
        except VolumeError as cause:
            self._note_failure(cause)
            raise
        finally:
            self._asking = None
        self._take(keys)

    def _take(self, keys: Keys) -> None:
        self.current = AwsCredentials(keys.access_key, keys.secret_key, keys.session_token)
        self._failure = None
        self._troubles.pop(self._purpose, None)
        if keys.expires_at_s is None:
            self._expires_at = math.inf
            return
        life_s = max(SHORTEST_LIFE_S, keys.expires_at_s - self._wall_s())
        self._expires_at = trio.current_time() + life_s
        log.debug("%s: keys to %s renewed", self._name, self._purpose)
        if not self._is_served:
            self._is_served = True
            self._nursery.start_soon(self._serve)

    def _note_failure(self, cause: VolumeError) -> None:
        is_news = self._failure is None or str(self._failure) != str(cause)
        self._failure, self._failed_at = cause, trio.current_time()
        self._troubles[self._purpose] = str(cause)
        if self.current is not None and is_news:
            log.warning("%s: keys to %s cannot be renewed: %s", self._name, self._purpose, cause)

    @property
    def _purpose(self) -> str:
        return TO_CHANGE if self._for_changes else TO_READ

    async def _serve(self) -> None:
        """Renew before the end; when that has come, whoever needs keys asks for them himself."""
        while (life_s := self._expires_at - trio.current_time()) > 0:
            if math.isinf(life_s):
                break
            share = RENEW_AT_SHARE if self._failure is None else RETRY_SHARE
            pause_s = life_s * share
            if self._failure is not None:
                pause_s = min(max(pause_s, SHORTEST_RETRY_S), LONGEST_RETRY_S)
            await trio.sleep(pause_s)
            left_s = max(SHORTEST_ASK_S, self._expires_at - trio.current_time())
            await self._question(min(left_s, LONGEST_ASK_S)).ended()
        self._is_served = False
