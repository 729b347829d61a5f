"""`S3Store` against a server that misbehaves on command: one request each, and no trace after."""

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import trio
import trio.testing

from ucfuse.errors import (
    NoSuchUpload,
    ObjectChanged,
    ObjectMissing,
    OutcomeUnclear,
    StoreError,
    StoreUnavailable,
    Throttled,
)
from ucfuse.metrics import Metrics
from ucfuse.store.api import ABSENT, Fetched, NotModified, UploadId
from ucfuse.store.s3.client import S3Store
from ucfuse.store.s3.credentials import CredentialsSource, Triple
from ucfuse.store.s3.endpoint import Endpoint
from ucfuse.volume import ETag, Key, MiB

KEY = Key("a b+ü.bin")
TAG = ETag('"tag"')
KEYS: Triple = ("key", "secret", None)


@dataclass
class Reply:
    """One answer of the server; `stall` waits for the end of the test instead."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    length: int | None = None
    """Promise another length than is sent."""
    cut: bool = False
    stall: bool = False


@dataclass
class Seen:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Misbehaving:
    """An S3 server whose answers are laid down in advance; the last one stays."""

    replies: list[Reply] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    arrived: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)
    port: int = 0

    def next_reply(self) -> Reply:
        return self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]


def _handler_of(server: Misbehaving) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            server.seen.append(Seen(self.command, self.path, headers, body))
            reply = server.next_reply()
            server.arrived.set()
            if reply.stall:
                server.ended.wait()
                reply.cut = True
            if reply.cut and not reply.body:
                self.close_connection = True
                return
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            length = len(reply.body) if reply.length is None else reply.length
            self.send_header("Content-Length", str(length))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(reply.body)
            self.close_connection = reply.cut

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = answer  # noqa: N815

    return Handler


@pytest.fixture
def server() -> Iterator[Misbehaving]:
    misbehaving = Misbehaving()
    http = ThreadingHTTPServer(("127.0.0.1", 0), _handler_of(misbehaving))
    misbehaving.port = http.server_port
    thread = threading.Thread(target=http.serve_forever)
    thread.start()
    yield misbehaving
    misbehaving.ended.set()
    http.shutdown()
    thread.join()
    http.server_close()


@pytest.fixture(params=["own connections", "native client"])
def store(server: Misbehaving, metrics: Metrics, request: pytest.FixtureRequest) -> S3Store:
    """A store that gets objects over connections of its own, as without TLS, or as with TLS."""
    endpoint = Endpoint("bucket", f"127.0.0.1:{server.port}", "/bucket", "us-east-1", tls=False)
    store = S3Store(endpoint, CredentialsSource(lambda **_: KEYS, KEYS), metrics)
    if request.param == "native client":
        store._transport._plain = None
    return store


def part_of(data: bytes, start: int, stop: int, **others: object) -> Reply:
    body = data[start:stop]
    headers = {
        "Content-Range": f"bytes {start}-{start + len(body) - 1}/{len(data)}",
        "etag": TAG,
        "LAST-MODIFIED": "Sun, 29 Nov 2026 14:05:06 GMT",
    }
    return Reply(206, headers, body, **others)  # type: ignore[arg-type]


ERROR = b"<Error><Code>%s</Code><Message>m</Message></Error>"


async def test_a_range_is_one_request_and_comes_whole(store: S3Store, server: Misbehaving) -> None:
    data = bytes(range(256)) * (16 * MiB // 256) + b"end"
    server.replies = [part_of(data, 0, 16 * MiB)]
    answer = await store.get(KEY, 0, 16 * MiB, if_match=TAG)
    assert isinstance(answer, Fetched)
    assert answer.data == data[: 16 * MiB]
    assert (answer.info.size, answer.info.mtime_s) == (len(data), 1795961106)
    assert len(server.seen) == 1
    assert server.seen[0].headers["range"] == f"bytes=0-{16 * MiB - 1}"
    assert server.seen[0].headers["if-match"] == TAG


async def test_a_key_is_encoded_byte_for_byte(store: S3Store, server: Misbehaving) -> None:
    server.replies = [Reply(headers={"ETag": TAG})]
    await store.put(KEY, b"")
    assert server.seen[0].path == "/bucket/a%20b%2B%C3%BC.bin"
    assert server.seen[0].headers["content-length"] == "0"


async def test_a_body_is_read_from_the_callers_buffer(store: S3Store, server: Misbehaving) -> None:
    server.replies = [Reply(headers={"ETag": TAG})]
    data = bytearray(b"0123456789" * 100_000)
    await store.put(KEY, memoryview(data)[10:-10], condition=ABSENT, metadata={"n": "1"})
    assert server.seen[0].body == bytes(data[10:-10])
    assert server.seen[0].headers["if-none-match"] == "*"
    assert server.seen[0].headers["x-amz-meta-n"] == "1"


@pytest.mark.parametrize("cut", [Reply(cut=True), Reply(503), Reply(500)])
async def test_a_change_is_never_sent_twice(
    store: S3Store, server: Misbehaving, cut: Reply
) -> None:
    server.replies = [cut]
    for _ in range(3):
        with pytest.raises((OutcomeUnclear, Throttled)):
            await store.put(KEY, b"body", condition=ABSENT)
    assert len(server.seen) == 3


async def test_a_read_is_not_repeated_here_either(store: S3Store, server: Misbehaving) -> None:
    server.replies = [Reply(cut=True)]
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            await store.head(KEY)
    assert len(server.seen) == 3


async def test_bytes_cut_short_are_no_answer(store: S3Store, server: Misbehaving) -> None:
    server.replies = [part_of(b"0123456789", 0, 5, length=10, cut=True)]
    with pytest.raises(StoreUnavailable):
        await store.get(KEY, 0, 10)


async def test_a_range_that_is_not_the_one_asked_for_is_no_answer(
    store: S3Store, server: Misbehaving
) -> None:
    server.replies = [part_of(b"0123456789", 0, 5)]
    with pytest.raises(StoreUnavailable):
        await store.get(KEY, 0, 8)


async def test_nobody_listens(metrics: Metrics) -> None:
    endpoint = Endpoint("bucket", "127.0.0.1:1", "/bucket", "us-east-1", tls=False)
    store = S3Store(endpoint, CredentialsSource(lambda **_: KEYS, KEYS), metrics)
    with pytest.raises((StoreUnavailable, OutcomeUnclear)):
        await store.put(KEY, b"x")
    with pytest.raises(StoreUnavailable):
        await store.put(KEY, b"x")
    with pytest.raises(StoreUnavailable):
        await store.head(KEY)


async def test_the_same_version_is_told_without_bytes(store: S3Store, server: Misbehaving) -> None:
    server.replies = [Reply(304, {"ETag": TAG})]
    assert await store.get(KEY, 0, 10, if_none_match=TAG) == NotModified(TAG)


@pytest.mark.parametrize(("start", "size"), [(0, 0), (10, 10), (20, 10)])
async def test_no_bytes_still_tell_the_version(
    store: S3Store, server: Misbehaving, metrics: Metrics, start: int, size: int
) -> None:
    server.replies = [
        Reply(416, {"Content-Range": f"bytes */{size}"}, ERROR % b"InvalidRange"),
        Reply(headers={"ETag": TAG}, length=size),
    ]
    answer = await store.get(KEY, start, 30)
    assert isinstance(answer, Fetched)
    assert (answer.data, answer.info.size, answer.info.etag) == (b"", size, TAG)
    assert metrics.store_requests["HEAD"] == 1


async def test_another_version_than_asked_for_is_a_change(
    store: S3Store, server: Misbehaving
) -> None:
    """A store that ignores If-Match sends whatever it has."""
    server.replies = [part_of(b"0123456789", 0, 5)]
    with pytest.raises(ObjectChanged):
        await store.get(KEY, 0, 5, if_match=ETag('"other"'))


async def test_a_missing_key_is_a_change_to_who_knew_its_version(
    store: S3Store, server: Misbehaving
) -> None:
    server.replies = [Reply(404, body=ERROR % b"NoSuchKey")]
    with pytest.raises(ObjectMissing):
        await store.get(KEY, 0, 5)
    with pytest.raises(ObjectChanged):
        await store.get(KEY, 0, 5, if_match=TAG)
    with pytest.raises(ObjectChanged):
        await store.delete(KEY, if_match=TAG)
    await store.delete(KEY)


async def test_a_200_that_carries_an_error_is_that_error(
    store: S3Store, server: Misbehaving
) -> None:
    server.replies = [Reply(200, body=ERROR % b"PreconditionFailed")]
    with pytest.raises(ObjectChanged):
        await store.copy(KEY, TAG, Key("b"))
    server.replies = [Reply(200, body=ERROR % b"NoSuchUpload")]
    with pytest.raises(NoSuchUpload):
        await store.complete_upload(KEY, UploadId("u"), [TAG])


async def test_an_answer_that_makes_no_sense_leaves_a_change_unclear(
    store: S3Store, server: Misbehaving
) -> None:
    server.replies = [Reply(200, body=b"<html>hello</html>")]
    with pytest.raises(OutcomeUnclear):
        await store.complete_upload(KEY, UploadId("u"), [TAG])
    with pytest.raises(OutcomeUnclear):
        await store.put(KEY, b"")
    with pytest.raises(StoreUnavailable):
        await store.list_page("", delimited=True)


@pytest.mark.parametrize("method", ["get", "put"])
async def test_a_cancelled_request_ends_at_once_and_lets_go_of_the_buffer(
    store: S3Store, server: Misbehaving, method: str
) -> None:
    server.replies = [Reply(stall=True)]
    body = bytearray(b"body")
    scope = trio.CancelScope()

    async def ask() -> None:
        with scope:
            await (store.put(KEY, body) if method == "put" else store.get(KEY, 0, 5))

    with trio.fail_after(3):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.to_thread.run_sync(server.arrived.wait)
            scope.cancel()
    assert scope.cancelled_caught
    body.clear()  # a buffer that is still exported cannot be resized
    assert len(server.seen) == 1


async def test_a_request_cancelled_before_it_had_a_connection_is_never_sent(
    metrics: Metrics,
) -> None:
    with socket.socket() as listener, socket.socket() as first, socket.socket() as second:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for other in (first, second):  # they fill the queue: nobody else gets a connection
            other.setblocking(False)
            other.connect_ex(listener.getsockname())
        host = "{}:{}".format(*listener.getsockname())
        endpoint = Endpoint("bucket", host, "/bucket", "us-east-1", tls=False)
        store = S3Store(endpoint, CredentialsSource(lambda **_: KEYS, KEYS), metrics)
        with trio.move_on_after(0.3) as scope:
            await store.put(KEY, b"body")
        assert scope.cancelled_caught
        first.close()
        second.close()
        heard = await trio.to_thread.run_sync(_hear_all, listener)
    assert not any(heard)


def _hear_all(listener: socket.socket) -> list[bytes]:
    """Accept whoever comes until nobody does for longer than a connection may take."""
    listener.settimeout(3.5)
    heard: list[bytes] = []
    with suppress(TimeoutError):
        while True:
            connection, _ = listener.accept()
            with connection, suppress(TimeoutError, ConnectionError):
                connection.settimeout(0.5)
                heard.append(connection.recv(1024))
    return heard


async def test_a_cancelled_scope_sends_nothing(store: S3Store, server: Misbehaving) -> None:
    server.replies = [Reply(headers={"ETag": TAG})]
    with trio.CancelScope() as scope:
        scope.cancel()
        await store.put(KEY, b"x")
    assert scope.cancelled_caught
    assert server.seen == []


async def test_renewed_credentials_are_worth_a_repeat(
    server: Misbehaving, metrics: Metrics, nursery: trio.Nursery
) -> None:
    endpoint = Endpoint("bucket", f"127.0.0.1:{server.port}", "/bucket", "us-east-1", tls=False)
    source = CredentialsSource(lambda **_: ("new", "secret", None), KEYS)
    nursery.start_soon(source.serve)
    await trio.testing.wait_all_tasks_blocked()
    store = S3Store(endpoint, source, metrics)
    server.replies = [Reply(400, body=ERROR % b"ExpiredToken"), Reply(headers={"ETag": TAG})]
    with pytest.raises(Throttled):
        await store.put(KEY, b"x")
    await store.put(KEY, b"x")
    used = [seen.headers["authorization"].split("/")[0][-3:] for seen in server.seen]
    assert used == ["key", "new"]


async def test_unsigned_a_failed_condition_is_unclear(
    server: Misbehaving, metrics: Metrics
) -> None:
    """Nothing can stop the native client's own repeat then, so the 412 may be of our making."""
    endpoint = Endpoint("bucket", f"127.0.0.1:{server.port}", "/bucket", "us-east-1", tls=False)
    store = S3Store(endpoint, None, metrics)
    server.replies = [Reply(412, body=ERROR % b"PreconditionFailed")]
    cause: type[StoreError] = OutcomeUnclear
    with pytest.raises(cause):
        await store.put(KEY, b"x", condition=ABSENT)
    assert "authorization" not in server.seen[0].headers
