"""Whether a volume may be changed: not if it is mounted read-only, or its permit says no."""

from collections.abc import Awaitable, Callable

from ucfuse.config import MountConfig
from ucfuse.errors import AccessDenied, ReadOnlyVolume

__all__ = ["ChangeGate", "Permit"]

Permit = Callable[[], Awaitable[None]]
"""Returns if the user may change the volume. Raises `ReadOnlyVolume`, or why that is not known."""


class ChangeGate:
    """Asked before every change of one volume. `permit` None: everybody may."""

    def __init__(self, config: MountConfig, permit: Permit | None) -> None:
        self._config = config
        self._permit = permit

    async def require(self) -> None:
        """Return if changes are allowed now. Raises what the mode of the mount makes of it."""
        if self._config.read_only:
            raise ReadOnlyVolume(str(self._config.source))
        if self._permit is None:
            return
        try:
            await self._permit()
        except ReadOnlyVolume as cause:
            if self._config.emulation.is_strict:  # where nobody mounted it read-only
                raise AccessDenied(cause.subject, cause.detail) from cause
            raise
