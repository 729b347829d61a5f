"""Signing each request exactly once, which is how awscrt's hidden repeats are switched off.

awscrt asks a credentials provider anew for every attempt. A `Signer` answers the first time and,
when it is asked again, cancels the request before it leaves: a change is never made twice.

Providers are never freed but used again. awscrt 0.38 drops its reference to the Python callback
from a native thread without holding the GIL when the last reference to the provider goes there,
which ends the process ("PyThreadState_Get: the function must be called with the GIL held").

Concurrency: `take` and `give_back` belong to the trio loop; `_sign` runs on native threads.
"""

from collections.abc import Callable
from typing import Any

from awscrt import auth, s3

__all__ = ["Signer", "give_back", "take"]

_idle: dict[str, list["Signer"]] = {}


class Signer:
    """Signs one request at a time. `config` is awscrt's signing configuration for it."""

    def __init__(self, region: str) -> None:
        self.region = region
        self._sign_next: Callable[[], Any] = _nothing
        self.config = s3.create_default_s3_signing_config(
            region=region,
            credential_provider=auth.AwsCredentialsProvider.new_delegate(self._sign),
        )

    def serve(self, sign: Callable[[], Any]) -> None:
        """Let `sign` give the credentials for the next request."""
        self._sign_next = sign

    def _sign(self) -> Any:
        return self._sign_next()


def take(region: str, sign: Callable[[], Any]) -> Signer:
    """Return a signer that nobody else uses; `give_back` it when its request has ended."""
    idle = _idle.setdefault(region, [])
    signer = idle.pop() if idle else Signer(region)
    signer.serve(sign)
    return signer


def give_back(signer: Signer) -> None:
    """Let others use the signer. Its request must have ended."""
    signer.serve(_nothing)
    _idle.setdefault(signer.region, []).append(signer)


def _nothing() -> Any:
    raise AssertionError("asked to sign for a request that has ended")
