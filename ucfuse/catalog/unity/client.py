"""HTTP exchanges with a Unity Catalog server: one question, its answer or its cause.

`unity.catalog` asks through one `Client`. What may pass (429, 5xx, no answer) is tried again until
the caller's deadline. An error is told apart by its status and by the server's code, never by its
text; the text is for people, in one line and without the token.

Concurrency: trio loop only, any number of questions at once.
"""

import random
from collections.abc import Mapping
from typing import Any

import httpx

from ucfuse.catalog.unity.token import Token
from ucfuse.errors import (
    AccessDenied,
    NotInCatalog,
    NotUnderstood,
    StoreError,
    StoreRefused,
    StoreUnavailable,
    Throttled,
    Unauthenticated,
)
from ucfuse.retry_policy import Pace

__all__ = ["Client"]

ATTEMPT_TIMEOUT_S = 5.0
# What a server may ask for with Retry-After; a longer wait is cut off by the deadline anyway.
LONGEST_RETRY_AFTER_S = 60.0
MOST_CONNECTIONS = 16
LONGEST_REASON = 300

_BY_STATUS: dict[int, type[StoreError]] = {
    400: NotUnderstood,
    401: Unauthenticated,
    403: AccessDenied,
    404: NotInCatalog,
    408: Throttled,
    429: Throttled,
}
# How servers say that it is the path which does not exist, not the thing: a hosted one by this
# code, the open-source one without any.
NO_SUCH_PATH = ("", "ENDPOINT_NOT_FOUND")


class Client:
    """The connections to one server. Owner: the catalog; `aclose` ends them."""

    def __init__(self, url: str, token: Token, rng: random.Random) -> None:
        self.url = url
        self._token = token
        self._rng = rng
        self._http = httpx.AsyncClient(
            timeout=None,  # every attempt has a deadline of its own
            limits=httpx.Limits(max_connections=MOST_CONNECTIONS),
        )

    async def ask(
        self,
        subject: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, str] | None = None,
    ) -> Mapping[str, Any]:
        """Return the object that the server answers a GET, or a POST of `body`, with.

        `path` begins after `/api`. Raises the `StoreError` that the answer, or its lack, means.
        """
        answer = await self.ask_if_there(subject, path, query=query, body=body)
        if answer is None:
            raise NotInCatalog(subject, f"{self.url} has no {path}")
        return answer

    async def ask_if_there(
        self,
        subject: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, str] | None = None,
    ) -> Mapping[str, Any] | None:
        """Do the same; None: the server knows no such path at all."""
        pace = Pace(self._rng, ATTEMPT_TIMEOUT_S)
        while True:
            wait_s = 0.0
            try:
                answer = await pace.attempt(
                    lambda: self._send_known(subject, path, query, body), StoreUnavailable, subject
                )
                wait_s = _retry_after_s(answer)
                return self._meaning(subject, answer)
            except (Throttled, StoreUnavailable) as cause:
                await pace.before_repeat(cause, wait_s)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def _send_known(
        self,
        subject: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Mapping[str, str] | None,
    ) -> httpx.Response:
        """Send; if the token is refused, once more with the one that its file has by now."""
        token = await self._token.current()
        answer = await self._send(subject, path, query, body, token)
        if answer.status_code == httpx.codes.UNAUTHORIZED:
            newer = await self._token.current(anew=True)
            if newer != token:
                answer = await self._send(subject, path, query, body, newer)
        return answer

    async def _send(
        self,
        subject: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Mapping[str, str] | None,
        token: str | None,
    ) -> httpx.Response:
        if self._http.is_closed:
            raise StoreUnavailable(subject, "the mount is ending")
        try:
            return await self._http.request(
                "GET" if body is None else "POST",
                f"{self.url}/api{path}",
                params=query,
                json=body,
                headers={} if token is None else {"authorization": f"Bearer {token}"},
            )
        except httpx.RequestError as error:
            reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            raise StoreUnavailable(subject, f"{self.url}: {reason}") from error

    def _meaning(self, subject: str, answer: httpx.Response) -> Mapping[str, Any] | None:
        content = _object_of(answer)
        if answer.is_success:
            if content is None:
                raise StoreRefused(subject, f"{self.url} does not answer as a Unity Catalog does")
            return content
        code = str((content or {}).get("error_code", ""))
        message = str((content or {}).get("message", ""))
        status = answer.status_code
        if status == httpx.codes.NOT_FOUND and code in NO_SUCH_PATH:
            return None
        cause = _BY_STATUS.get(status, Throttled if status >= 500 else StoreRefused)
        raise cause(subject, _in_one_line(f"{code or f'HTTP {status}'}: {message}", answer))


def _object_of(answer: httpx.Response) -> Mapping[str, Any] | None:
    try:
        content = answer.json()
    except ValueError:  # not JSON, not text
        return None
    return content if isinstance(content, dict) else None


def _in_one_line(text: str, answer: httpx.Response) -> str:
    """Return what the server said without line breaks, and without our token if it repeats it."""
    token = answer.request.headers.get("authorization", "").removeprefix("Bearer ")
    if token:
        text = text.replace(token, "...")
    return " ".join(text.split())[:LONGEST_REASON].rstrip(": ")


def _retry_after_s(answer: httpx.Response) -> float:
    text = answer.headers.get("retry-after", "")
    return min(float(text), LONGEST_RETRY_AFTER_S) if text.isdecimal() else 0.0
