"""GETs of objects over plain HTTP, received straight into the buffer that is handed out.

`transport` sends these itself where the endpoint has no TLS: awscrt needs four calls into the
interpreter for each request and one copy more of each byte. Measured on 2 cores, loopback, against
the same store: see tests/bench. With TLS, and for everything else, awscrt is used.

It never repeats a request and never follows a redirect. A connection on which anything went wrong,
or that was cancelled in the middle of an answer, is closed, never used again.

Concurrency: trio loop only. Bytes move in the loop, at memory speed: a thread for each part would
cost more than it brings.
"""

import ctypes
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import trio

from ucfuse.store.s3.endpoint import Endpoint
from ucfuse.store.s3.messages import Answer, Header, Request
from ucfuse.store.s3.sigv4 import RequestSigner
from ucfuse.volume import KiB, MiB

__all__ = ["PlainHttp"]

CONNECT_TIMEOUT_S = 3.0
# Servers close what was idle for long; nobody needs so many connections then either.
MOST_IDLE_S = 30.0
# After this long without an answer the way to the server may be gone, without a word.
SILENCE_S = 5.0
# A head has some 600 bytes. What is read with it of the body is copied once more.
HEAD_BYTES = 16 * KiB
# The loop is woken for this much at a time, instead of for every few packets.
WAKE_BYTES = 1 * MiB
# An answer that is no success is read up to here; an error of S3 has some 500 bytes.
LONGEST_REFUSAL_BYTES = 1 * MiB
NO_BODY = (204, 304)
# Headers are UTF-8, as awscrt has them; what is not goes back as it came.
OTHER_BYTES = "surrogateescape"
DEFAULT_PORT = 80


class _Unusable(Exception):
    """There is no answer, or none that could be used. `name`: as awscrt calls it, if it does."""

    def __init__(self, reason: str, name: str = "") -> None:
        super().__init__(reason)
        self.name = name


@dataclass(slots=True)
class _Head:
    status: int
    headers: dict[str, str]
    keeps_alive: bool

    @property
    def length(self) -> int | None:
        """Length of the body; None: the answer does not tell it beforehand."""
        if self.status in NO_BODY:
            return 0
        if self.is_chunked or "content-length" not in self.headers:
            return None
        return int(self.headers["content-length"])

    @property
    def is_chunked(self) -> bool:
        return self.headers.get("transfer-encoding", "").lower() == "chunked"


@dataclass(slots=True, eq=False)
class _Connection:
    """One connection. Between two requests nothing of an answer is left to be read."""

    socket: socket.socket
    idle_since: float = 0.0
    scratch: bytearray = field(default_factory=lambda: bytearray(HEAD_BYTES))
    wakes_at: int = 1

    def is_dead(self) -> bool:
        """Whether the server closed it, or said something unasked."""
        try:
            self.socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True

    def close(self) -> None:
        trio.lowlevel.notify_closing(self.socket)
        self.socket.close()

    async def send(self, data: bytes) -> None:
        while data:
            try:
                data = data[self.socket.send(data) :]
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self.socket)

    async def receive(self, target: memoryview, wanted: int = 1) -> int:
        """Receive at least one byte, best `wanted` at once. Raises `_Unusable` at the end."""
        while True:
            try:
                count = self.socket.recv_into(target)
            except BlockingIOError:
                await self._wait_for(wanted)
                continue
            if not count:
                raise _Unusable("the connection was cut")
            return count

    async def _wait_for(self, wanted: int) -> None:
        if wanted != self.wakes_at:
            with suppress(OSError):  # not every kernel can; the loop then wakes more often
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wanted)
            self.wakes_at = wanted
        await trio.lowlevel.wait_readable(self.socket)


class PlainHttp:
    """The plain connections to one endpoint. Owner: the transport; `close` ends the idle ones.

    Who asks for ranges bounds the bytes in flight.
    """

    def __init__(self, endpoint: Endpoint, most_connections: int) -> None:
        parts = urlsplit(f"//{endpoint.host}")
        self._address = (parts.hostname or "", parts.port or DEFAULT_PORT)
        self._signer = RequestSigner(endpoint.host, endpoint.region)
        self._room = trio.Semaphore(most_connections)
        self._idle: list[_Connection] = []  # longest idle first

    async def send(self, request: Request, credentials: Any) -> Answer:
        """Send once and return whatever came of it; `credentials` None sends unsigned."""
        headers = self._signer.signed(
            request.method, request.path, request.headers, credentials, time.time()
        )
        text = _request_text(request, headers)
        if text is None:
            await trio.lowlevel.checkpoint()
            return _failed(_Unusable("a header cannot be sent"))
        try:
            self._room.acquire_nowait()  # without the turn of the loop that `acquire` takes
        except trio.WouldBlock:
            await self._room.acquire()
        try:
            return await self._exchange(text, request)
        except (_Unusable, OSError) as error:
            return _failed(error)
        finally:
            self._room.release()

    def close(self) -> None:
        """Close the connections that no request uses."""
        while self._idle:
            self._idle.pop().close()

    async def _exchange(self, text: bytes, request: Request) -> Answer:
        connection = await self._connection()
        keeps_alive, is_answered, began = False, False, trio.current_time()
        try:
            await connection.send(text)
            head, rest = await _receive_head(connection)
            is_answered = True
            body = await _receive_body(connection, head, rest, request.most_bytes)
            keeps_alive = head.keeps_alive
        except ValueError as error:
            raise _Unusable(f"an answer that is not HTTP: {error}") from error
        finally:
            if keeps_alive:
                self._give_back(connection)
            else:
                connection.close()
            if not is_answered and trio.current_time() - began > SILENCE_S:
                self.close()  # the others may be as dead: a repeat shall not try one by one
        return Answer(head.status, head.headers, body, _error_of(head, request))

    async def _connection(self) -> _Connection:
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_dead():
                return connection
            connection.close()
        with trio.move_on_after(CONNECT_TIMEOUT_S):
            stream = await trio.open_tcp_stream(*self._address)
            native = socket.socket(fileno=stream.socket.detach())
            native.setblocking(False)
            return _Connection(native)
        raise _Unusable("no connection came about in time")

    def _give_back(self, connection: _Connection) -> None:
        connection.idle_since = now = trio.current_time()
        self._idle.append(connection)
        if self._idle[0].idle_since < now - MOST_IDLE_S:
            self._idle.pop(0).close()


def _request_text(request: Request, headers: Sequence[Header]) -> bytes | None:
    """Return the bytes to send; None: a header has a line of its own."""
    if any("\r" in value or "\n" in value for _, value in headers):
        return None
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
    return f"{request.method} {request.path} HTTP/1.1\r\n{lines}\r\n".encode(errors=OTHER_BYTES)


async def _receive_head(connection: _Connection) -> tuple[_Head, memoryview]:
    """Return the head of the final answer, and what of its body came with it."""
    view, filled, searched = memoryview(connection.scratch), 0, 0
    await connection._wait_for(1)  # there is no answer yet: no need to look
    while True:
        if filled == HEAD_BYTES:
            raise _Unusable("an endless head")
        filled += await connection.receive(view[filled:])
        stop = connection.scratch.find(b"\r\n\r\n", searched, filled)
        while stop >= 0:
            head = _parse_head(bytes(view[searched:stop]))
            searched = stop + 4
            if head.status >= 200:
                return head, view[searched:filled]
            stop = connection.scratch.find(b"\r\n\r\n", searched, filled)


def _parse_head(text: bytes) -> _Head:
    """Read status line and headers. Raises `ValueError`."""
    first, *lines = text.decode(errors=OTHER_BYTES).split("\r\n")
    version, _, rest = first.partition(" ")
    if not version.startswith("HTTP/1."):
        raise ValueError(version[:20])
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    connection = headers.get("connection", "").lower()
    return _Head(int(rest[:3]), headers, version == "HTTP/1.1" and connection != "close")


async def _receive_body(
    connection: _Connection, head: _Head, rest: memoryview, most_bytes: int | None
) -> bytes | bytearray:
    length = head.length
    limit = most_bytes if head.status < 300 else LONGEST_REFUSAL_BYTES
    if length is None:
        head.keeps_alive = False
        longest = MiB + (limit or 0)
        return await _receive_unmeasured(connection, head, bytes(rest), longest)
    if limit is not None and length > limit:
        raise _Unusable(f"{length} bytes, {limit} were asked for")
    if len(rest) > length:
        raise _Unusable("more bytes than the answer has")
    if length == len(rest):
        return bytes(rest)
    body = _uninitialised(length)
    view, filled = memoryview(body), len(rest)
    view[:filled] = rest
    while filled < length:
        left = length - filled
        filled += await connection.receive(view[filled:], min(left, WAKE_BYTES))
    return body


async def _receive_unmeasured(
    connection: _Connection, head: _Head, received: bytes, longest: int
) -> bytes:
    """Receive a body in chunks, or one that ends with the connection."""
    buffer, raw = bytearray(64 * KiB), bytearray(received)
    while len(raw) < longest:
        if head.is_chunked and (whole := _unchunk(raw)) is not None:
            return whole
        try:
            raw += memoryview(buffer)[: await connection.receive(memoryview(buffer))]
        except _Unusable:
            if head.is_chunked:
                raise
            return bytes(raw)
    raise _Unusable("more bytes than were asked for")


def _unchunk(raw: bytearray) -> bytes | None:
    """Return the body that was sent in chunks; None: its end is not there yet."""
    pieces: list[bytearray] = []
    position = 0
    while (line_stop := raw.find(b"\r\n", position)) >= 0:
        size = int(raw[position:line_stop].partition(b";")[0], 16)
        if size == 0:
            return b"".join(pieces)
        start = line_stop + 2
        pieces.append(raw[start : start + size])
        position = start + size + 2
    return None


def _uninitialised(length: int) -> bytearray:
    """Return a buffer that is not filled with zeros first: every byte of it is received."""
    return _new_bytearray(None, length)  # type: ignore[no-any-return]


_new_bytearray = ctypes.pythonapi.PyByteArray_FromStringAndSize
_new_bytearray.restype = ctypes.py_object
_new_bytearray.argtypes = [ctypes.c_char_p, ctypes.c_ssize_t]


def _error_of(head: _Head, request: Request) -> Exception | None:
    is_ranged = any(name == "range" for name, _ in request.headers)
    if is_ranged and head.status == 200 and "content-range" not in head.headers:
        # As awscrt says it: the range was not understood, or there is no byte in it.
        return _Unusable("a range without its place", "AWS_ERROR_S3_MISSING_CONTENT_RANGE_HEADER")
    return None if head.status < 300 else _Unusable(f"HTTP {head.status}")


def _failed(error: Exception) -> Answer:
    return Answer(None, {}, b"", error)
