"""One HTTP exchange with the store, awaited under trio: through awscrt's native S3 client, or, for
GETs of objects without TLS, through `plainhttp`.

`client` sends every request through one `Transport`. The body of a request is read straight from
the caller's buffer; the body of an answer arrives as one object.

It never repeats a request and never judges an answer: a refusal is an `Answer` too.

Concurrency: `send` belongs to the trio loop. Callbacks come on native threads, one exchange's
callbacks one after another; the last one hands the exchange over to the loop. The process must
not fork once a `Transport` exists.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import awscrt.exceptions
import trio
from awscrt import http, io, s3

from ucfuse.store.api import Buffer
from ucfuse.store.s3 import crt_signing
from ucfuse.store.s3.crt_signing import Signer
from ucfuse.store.s3.endpoint import Endpoint
from ucfuse.store.s3.messages import Answer, Header, Request
from ucfuse.store.s3.plainhttp import PlainHttp
from ucfuse.volume import MiB

__all__ = ["Transport"]

log = logging.getLogger(__name__)

# The client cuts a range that is longer than this into several requests.
LONGEST_RANGE_BYTES = 16 * MiB
# awscrt's rule. Memory in flight is bounded by whoever asks for ranges.
GBPS_PER_CONNECTION = 0.4
CONNECT_TIMEOUT_MS = 3000
# What waits for a store to move bytes must leave connections to the questions about names: with
# all of them taken by reads that stall, no `stat` was answered any more.
CONNECTIONS_FOR_NAMES = 16
DATA_OPERATIONS = frozenset(
    {"GetObject", "PutObject", "UploadPart", "UploadPartCopy", "CopyObject"}
)
# On the wire, a cancelled request ends within a millisecond. One that still waits for its
# connection ends only when that comes or fails, but is not sent any more: no need to wait for it.
CANCEL_PATIENCE_S = 0.5


class _BodyStream:
    """The stream that awscrt reads a request body from, without a copy of the caller's buffer."""

    def __init__(self, body: Buffer) -> None:
        self._view = memoryview(body).cast("B")
        self._position = 0

    def detach(self) -> None:
        """Let go of the caller's buffer: a native thread that reads later gets nothing."""
        self._view = memoryview(b"")

    def read(self, size: int) -> bytes:
        piece = bytes(self._view[self._position : self._position + size])
        self._position += len(piece)
        return piece

    def readinto1(self, target: memoryview) -> int:
        piece = self._view[self._position : self._position + len(target)]
        target[: len(piece)] = piece
        self._position += len(piece)
        return len(piece)

    def seek(self, offset: int, whence: int) -> int:
        origin = (0, self._position, len(self._view))[whence]
        self._position = origin + offset
        return self._position


@dataclass(slots=True, eq=False)
class _Exchange:
    """One request under way. Written by native threads until `finished`, then by the loop."""

    token: trio.lowlevel.TrioToken
    credentials: Any
    finished: trio.Event = field(default_factory=trio.Event)
    native: Any = None
    signer: Signer | None = None
    was_signed: bool = False
    is_repeat: bool = False
    status: int | None = None
    headers: Sequence[Header] = ()
    chunks: list[bytes] = field(default_factory=list)
    error: Exception | None = None

    def sign_once(self) -> Any:
        """Give the credentials for the first attempt. A second one is awscrt's own hidden repeat:
        cancel it before it leaves, or a change could be made twice."""
        if self.was_signed:
            self.is_repeat = True
            if self.native is not None:
                self.native.cancel()
        self.was_signed = True
        return self.credentials

    def on_headers(self, status_code: int, headers: Sequence[Header], **_: Any) -> None:
        self.status = status_code
        self.headers = headers

    def on_body(self, chunk: bytes, **_: Any) -> None:
        self.chunks.append(chunk)

    def on_done(
        self,
        error: Exception | None,
        error_headers: Sequence[Header] | None,
        error_body: bytes | None,
        status_code: int | None,
        **_: Any,
    ) -> None:
        self.error = error
        if error is not None:
            self.status = status_code
            self.headers = error_headers or ()
            self.chunks = [error_body] if error_body else []
        try:
            self.token.run_sync_soon(self.finished.set)
        except trio.RunFinishedError:
            log.debug("an answer came after the end of the mount")

    def take_answer(self) -> Answer:
        """Build the answer, and break the cycle with the native request that would keep it."""
        self.native = None
        chunks, self.chunks = self.chunks, []
        return Answer(
            status=self.status,
            headers={name.lower(): value for name, value in self.headers},
            body=chunks[0] if len(chunks) == 1 else b"".join(chunks),
            error=self.error,
        )


class Transport:
    """The connections to one endpoint. Owner: the store; `close` ends them.

    `on_answer` is told of every answer, whatever it says.
    """

    def __init__(
        self, endpoint: Endpoint, on_answer: Callable[[], None], most_connections: int
    ) -> None:
        self._host = ("host", endpoint.host)
        self._region = endpoint.region
        self._client: Any = _new_client(endpoint, most_connections)
        self._plain = None if endpoint.tls else PlainHttp(endpoint, most_connections)
        self._on_answer = on_answer
        self._data_room = trio.Semaphore(most_connections - CONNECTIONS_FOR_NAMES)

    async def send(self, request: Request, credentials: Any) -> Answer:
        """Send once and return whatever came of it; `credentials` None sends unsigned.

        Unsigned, awscrt's one hidden repeat cannot be prevented. When this is cancelled, the
        request is dead and the body let go of before it returns.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._plain is not None and request.operation == "GetObject":
            answer = await self._plain.send(request, credentials)
            if answer.status is not None:
                self._on_answer()
            return answer
        if request.operation not in DATA_OPERATIONS:
            return await self._exchange(request, credentials)
        try:
            self._data_room.acquire_nowait()  # without a turn of the loop, as nearly always
        except trio.WouldBlock:
            await self._data_room.acquire()
        try:
            return await self._exchange(request, credentials)
        finally:
            self._data_room.release()

    async def _exchange(self, request: Request, credentials: Any) -> Answer:
        stream = _BodyStream(request.body) if request.body else None
        exchange = _Exchange(trio.lowlevel.current_trio_token(), credentials)
        try:
            self._start(request, stream, exchange)
        except awscrt.exceptions.AwsCrtError as error:
            await trio.lowlevel.cancel_shielded_checkpoint()
            return Answer(None, {}, b"", error)
        try:
            await exchange.finished.wait()
        except trio.Cancelled:
            await _give_up(exchange)
            raise
        finally:
            if exchange.status is not None:
                self._on_answer()
            if stream is not None:
                stream.detach()
            if exchange.signer is not None and exchange.finished.is_set():
                crt_signing.give_back(exchange.signer)
        return exchange.take_answer()

    def close(self) -> None:
        """Drop the native client; its connections end once no request needs them."""
        self._client = None
        if self._plain is not None:
            self._plain.close()

    def _start(self, request: Request, stream: _BodyStream | None, exchange: _Exchange) -> None:
        headers = http.HttpHeaders([self._host, *request.headers])
        if exchange.credentials is not None:
            exchange.signer = crt_signing.take(self._region, exchange.sign_once)
        is_get = request.operation == "GetObject"
        exchange.native = self._client.make_request(
            # GET_OBJECT hands the whole range over in one callback.
            type=s3.S3RequestType.GET_OBJECT if is_get else s3.S3RequestType.DEFAULT,
            operation_name=None if is_get else request.operation,
            request=http.HttpRequest(request.method, request.path, headers, stream),
            signing_config=exchange.signer.config if exchange.signer is not None else None,
            on_headers=exchange.on_headers,
            on_body=exchange.on_body,
            on_done=exchange.on_done,
        )
        if exchange.is_repeat:  # the first attempt failed before we knew whom to cancel
            exchange.native.cancel()


@cache
def _bootstrap() -> Any:
    """Return the native threads of the process: a mount of a thousand volumes needs no more."""
    loops = io.EventLoopGroup()
    return io.ClientBootstrap(loops, io.DefaultHostResolver(loops))


def _new_client(endpoint: Endpoint, most_connections: int) -> Any:
    return s3.S3Client(
        bootstrap=_bootstrap(),
        region=endpoint.region,
        tls_mode=s3.S3RequestTlsMode.ENABLED if endpoint.tls else s3.S3RequestTlsMode.DISABLED,
        tls_connection_options=_tls_options(endpoint),
        part_size=LONGEST_RANGE_BYTES,
        throughput_target_gbps=GBPS_PER_CONNECTION * most_connections,
        connect_timeout_ms=CONNECT_TIMEOUT_MS,
        # Zero would mean awscrt's defaults, so this is as near to no repeats as it can be told;
        # `sign_once` does the rest.
        retry_config=s3.S3RetryConfig(
            max_retries=1,
            backoff_scale_factor_ms=1,
            max_backoff_secs=1,
            initial_bucket_capacity=1,
        ),
    )


def _tls_options(endpoint: Endpoint) -> Any:
    if not endpoint.tls or endpoint.ca_file is None:
        return None
    options = io.TlsContextOptions()
    options.override_default_trust_store_from_path(None, endpoint.ca_file)
    return io.ClientTlsContext(options).new_connection_options()


async def _give_up(exchange: _Exchange) -> None:
    exchange.native.cancel()
    with trio.CancelScope(shield=True, deadline=trio.current_time() + CANCEL_PATIENCE_S):
        await exchange.finished.wait()
    exchange.native = None
    if not exchange.finished.is_set():
        log.debug("left a cancelled request to wait for its connection alone")
