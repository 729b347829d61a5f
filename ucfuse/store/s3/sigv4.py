"""AWS's signature, version 4, of a request without a body and without a query.

`plainhttp` signs with it. The key of a day is derived once for each set of credentials; the rest
takes microseconds.
"""

import hashlib
import hmac
import time
from collections.abc import Sequence
from typing import Any

from ucfuse.store.s3.messages import Header

__all__ = ["RequestSigner"]

_SHA256_OF_NOTHING = hashlib.sha256(b"").hexdigest()


class RequestSigner:
    """Signs requests for one host and region."""

    def __init__(self, host: str, region: str) -> None:
        self._host = host
        self._region = region
        self._derived: tuple[Any, str, bytes] | None = None

    def signed(
        self, method: str, path: str, headers: Sequence[Header], credentials: Any, now_s: float
    ) -> list[Header]:
        """Return all headers to send. Names are in lower case, `path` is encoded already.

        `credentials` are awscrt's; None signs nothing. `now_s`: seconds since the epoch.
        """
        if credentials is None:
            return [("host", self._host), *headers]
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now_s))
        complete = [
            ("host", self._host),
            ("x-amz-content-sha256", _SHA256_OF_NOTHING),
            ("x-amz-date", stamp),
            *headers,
        ]
        if credentials.session_token:
            complete.append(("x-amz-security-token", credentials.session_token))
        complete.sort()
        names = ";".join(name for name, _ in complete)
        lines = "".join(f"{name}:{' '.join(value.split())}\n" for name, value in complete)
        canonical = f"{method}\n{path}\n\n{lines}\n{names}\n{_SHA256_OF_NOTHING}"
        scope = f"{stamp[:8]}/{self._region}/s3/aws4_request"
        digest = hashlib.sha256(canonical.encode(errors="surrogateescape")).hexdigest()
        to_sign = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{digest}"
        signature = _hmac(self._key(credentials, stamp[:8]), to_sign).hex()
        authorization = (
            f"AWS4-HMAC-SHA256 Credential={credentials.access_key_id}/{scope},"
            f"SignedHeaders={names},Signature={signature}"
        )
        return [*complete, ("authorization", authorization)]

    def _key(self, credentials: Any, day: str) -> bytes:
        derived = self._derived
        if derived is None or derived[0] is not credentials or derived[1] != day:
            key = f"AWS4{credentials.secret_access_key}".encode()
            for text in (day, self._region, "s3", "aws4_request"):
                key = _hmac(key, text)
            derived = self._derived = (credentials, day, key)
        return derived[2]


def _hmac(key: bytes, text: str) -> bytes:
    return hmac.digest(key, text.encode(), "sha256")
