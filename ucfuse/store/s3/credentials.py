"""Credentials from a boto3 session, always at hand and renewed while the mount lives.

The transport reads `current` for every request: that never blocks and never calls botocore. A
service task renews in a worker thread, well before the credentials expire, and once more when
the store rejects them. It never makes requests to the store itself.

Concurrency: `current` may be read anywhere; the rest belongs to the trio loop. The session is
touched by one worker thread at a time.
"""

import logging
import math
from collections.abc import Callable
from typing import Any, Protocol

import boto3
import botocore.exceptions
import trio
from awscrt.auth import AwsCredentials
from botocore.credentials import Credentials, RefreshableCredentials

from ucfuse.config import StoreOptions
from ucfuse.errors import ConfigError
from ucfuse.store.s3.endpoint import new_session

__all__ = ["CredentialsSource", "SessionCredentials", "Signing"]

log = logging.getLogger(__name__)

# botocore renews by itself when asked within the last 15 minutes of a lifetime, so asking every
# minute renews long before the end and costs nothing in between.
REFRESH_EVERY_S = 60.0
# A store that refuses every request must not make us read the profile for each of them.
RENEW_SPACING_S = 10.0

Triple = tuple[str, str, str | None]
"""Access key, secret key, session token."""


class Signing(Protocol):
    """What requests of one store are signed with."""

    async def at_hand(self, *, for_changes: bool) -> Any:
        """Return the credentials for a request now. Raises `StoreError`: there are none."""

    async def renew(self, rejected: Any) -> bool:
        """Ask for others than `rejected`; return whether there are any."""


class SessionCredentials:
    """Reads credentials through a boto3 session. Blocking: for worker threads only."""

    def __init__(self, options: StoreOptions, session: boto3.Session) -> None:
        self._options = options
        self._credentials = _find(session)

    @property
    def expires(self) -> bool:
        """Whether they have to be asked for again and again (SSO, roles)."""
        return isinstance(self._credentials, RefreshableCredentials)

    def load(self, *, anew: bool = False) -> Triple:
        """Return what to sign with; `anew` reads profile and environment again.

        Raises `ConfigError` when there are none or they cannot be renewed.
        """
        if anew:
            self._credentials = _find(new_session(self._options))
        return _freeze(self._credentials)


def _find(session: boto3.Session) -> Credentials:
    try:
        credentials = session.get_credentials()
    except botocore.exceptions.BotoCoreError as error:
        raise ConfigError(f"credentials: {error}; see `aws configure`") from error
    if credentials is None:
        raise ConfigError(
            "credentials: none found in environment, profile or instance role; "
            "set AWS_PROFILE or AWS_ACCESS_KEY_ID, or use --no-sign-request"
        )
    return credentials


def _freeze(credentials: Credentials) -> Triple:
    try:
        frozen = credentials.get_frozen_credentials()
    # A RuntimeError is how botocore says that renewed credentials had expired already.
    except (
        botocore.exceptions.BotoCoreError,
        botocore.exceptions.ClientError,
        RuntimeError,
    ) as error:
        raise ConfigError(f"credentials: cannot be renewed: {error}; sign in again") from error
    return frozen.access_key or "", frozen.secret_key or "", frozen.token


class CredentialsSource:
    """The credentials of one store. `connect` makes it and runs `serve` in the mount's nursery."""

    def __init__(
        self, load: Callable[..., Triple], first: Triple, *, refresh_every_s: float = math.inf
    ) -> None:
        self._load = load
        self._loaded = first
        self.current: Any = AwsCredentials(*first)
        self._refresh_every_s = refresh_every_s
        self._renewal_wanted = trio.Event()
        self._renewal_done = trio.Event()
        self._renewed_at = -math.inf
        self._is_served = False

    async def at_hand(self, *, for_changes: bool) -> Any:
        """Return the credentials: the same for every request."""
        return self.current

    async def serve(self) -> None:
        """Renew until cancelled. A failure is logged; the old credentials stay in use."""
        self._is_served = True
        while True:
            with trio.move_on_after(self._refresh_every_s):
                await self._renewal_wanted.wait()
            await self._renew_now(anew=self._renewal_wanted.is_set())
            self._renewal_wanted = trio.Event()
            self._renewal_done.set()
            self._renewal_done = trio.Event()

    async def renew(self, rejected: Any) -> bool:
        """Ask for others than `rejected`, once for all who ask; return whether there are any.

        Without `serve` there never are.
        """
        if self.current is rejected and self._may_renew():
            self._renewal_wanted.set()
            await self._renewal_done.wait()
        return self.current is not rejected

    def _may_renew(self) -> bool:
        if not self._is_served:
            return False
        running = self._renewal_wanted.is_set()
        return running or trio.current_time() >= self._renewed_at + RENEW_SPACING_S

    async def _renew_now(self, *, anew: bool) -> None:
        try:
            # The thread touches nothing but the session, so shutdown need not wait for it.
            loaded = await trio.to_thread.run_sync(
                lambda: self._load(anew=anew), abandon_on_cancel=True
            )
        except ConfigError as error:
            log.warning("%s", error)
        else:
            self._publish(loaded)
        if anew:
            self._renewed_at = trio.current_time()

    def _publish(self, loaded: Triple) -> None:
        if loaded != self._loaded:
            self._loaded = loaded
            self.current = AwsCredentials(*loaded)
            log.info("credentials renewed (access key %s...)", loaded[0][:8])
