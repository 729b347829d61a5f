"""Whether this user may change a governed volume: asked when somebody first wants to.

A refusal makes the volume read-only for a while; then it is asked again. Where changes are allowed,
the store is first asked whether it honours conditions.

Concurrency: trio loop only.
"""

import logging
import math

import trio

from ucfuse.errors import AccessDenied, ReadOnlyVolume
from ucfuse.store.conditions import IGNORES_CONDITIONS, HeadFirst
from ucfuse.store.s3.credentials import Signing
from ucfuse.tasks import deadline

__all__ = ["ChangePermit"]

log = logging.getLogger(__name__)

# A right that is given is noticed this soon; meanwhile no change of a program asks the catalog.
REFUSED_FOR_S = 3.0


class ChangePermit:
    """The right to change one volume. Borrows its store and what signs for it."""

    def __init__(
        self, name: str, signing: Signing, store: HeadFirst, prefix: str, *, timeout_s: float
    ) -> None:
        self._name = name
        self._signing = signing
        self._store = store
        self._prefix = prefix
        self._timeout_s = timeout_s
        self._refused_at = -math.inf
        self._fitting = trio.Lock()
        self._is_fit = False
        self.refusal = ""
        """Why the volume is read-only; empty: it is not, as far as is known."""

    @property
    def warnings(self) -> list[str]:
        """What the user should know of the store."""
        return [IGNORES_CONDITIONS] if self._store.is_needed else []

    async def require(self) -> None:
        """Return if changes are allowed now. Raises `ReadOnlyVolume`, or why it is not known."""
        if trio.current_time() < self._refused_at + REFUSED_FOR_S:
            raise ReadOnlyVolume(self._name, self.refusal)
        try:
            with deadline(self._timeout_s, self._name):
                await self._signing.at_hand(for_changes=True)
                await self._fit_once()
        except AccessDenied as cause:
            self._refuse(cause)
            raise ReadOnlyVolume(self._name, self.refusal) from cause
        self.refusal = ""

    def _refuse(self, cause: AccessDenied) -> None:
        if self.refusal != cause.detail:
            log.warning("%s is read-only: %s", self._name, cause.detail)
        self.refusal, self._refused_at = cause.detail, trio.current_time()

    async def _fit_once(self) -> None:
        if self._is_fit:
            return
        async with self._fitting:
            if not self._is_fit:
                await self._store.find_out(self._prefix)
                self._is_fit = True
