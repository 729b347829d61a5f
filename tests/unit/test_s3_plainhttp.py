"""GETs over plain HTTP, against a server that says exactly the bytes that a test lays down."""

import trio
import trio.testing

from ucfuse.store.s3.endpoint import Endpoint
from ucfuse.store.s3.messages import Answer, Request
from ucfuse.store.s3.plainhttp import HEAD_BYTES, SILENCE_S, PlainHttp
from ucfuse.volume import MiB

OK = b"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-4/5\r\n"
WHOLE = OK + b"Content-Length: 5\r\n\r\nhello"


class Server:
    """Answers the requests of each connection with the next of `answers`, in these pieces."""

    def __init__(self, answers: list[list[bytes]], *, closes: bool = False) -> None:
        self.answers = answers
        self.closes = closes
        self.connection_count = 0
        self.heard: list[bytes] = []
        self.ended = trio.Event()
        """A connection was closed, by either side."""

    async def serve(self, stream: trio.SocketStream) -> None:
        self.connection_count += 1
        try:
            while request := await stream.receive_some():
                self.heard.append(bytes(request))
                for piece in self.answers.pop(0):
                    await stream.send_all(piece)
                    await trio.testing.wait_all_tasks_blocked()
                if self.closes:
                    break
        except trio.BrokenResourceError:
            pass  # the client closed in the middle of an answer
        finally:
            await trio.aclose_forcefully(stream)
            self.ended.set()


async def connected(server: Server, nursery: trio.Nursery) -> PlainHttp:
    listeners = await nursery.start(trio.serve_tcp, server.serve, 0)
    port = listeners[0].socket.getsockname()[1]
    return PlainHttp(Endpoint("b", f"localhost:{port}", "/b", "us-east-1", tls=False), 100)


async def get(http: PlainHttp, most_bytes: int = 5) -> Answer:
    with trio.fail_after(10):
        request = Request("GetObject", "GET", "/b/k", most_bytes=most_bytes)
        return await http.send(request, None)


async def test_an_answer_may_come_in_any_pieces(nursery: trio.Nursery) -> None:
    pieces = [[WHOLE[at : at + 1] for at in range(len(WHOLE))], [WHOLE[:30], WHOLE[30:]], [WHOLE]]
    server = Server(pieces)
    http = await connected(server, nursery)
    for _ in range(3):
        answer = await get(http)
        assert (answer.status, answer.body, answer.error) == (206, b"hello", None)
        assert answer.headers["content-range"] == "bytes 0-4/5"
    assert server.connection_count == 1


async def test_a_long_body_comes_whole_and_the_connection_serves_again(
    nursery: trio.Nursery,
) -> None:
    data = bytes(range(256)) * (5 * MiB // 256)
    server = Server([[OK + b"Content-Length: %d\r\n\r\n" % len(data), data], [WHOLE]])
    http = await connected(server, nursery)
    assert (await get(http, len(data))).body == data
    assert (await get(http)).body == b"hello"
    assert server.connection_count == 1


async def test_a_body_in_chunks_is_put_together(nursery: trio.Nursery) -> None:
    chunks = b"2\r\nhe\r\n3;name=value\r\nllo\r\n0\r\n\r\n"
    head = OK + b"Transfer-Encoding: chunked\r\n\r\n"
    server = Server([[head + chunks], [head, chunks[:4], chunks[4:]]])
    http = await connected(server, nursery)
    assert (await get(http)).body == b"hello"
    assert (await get(http)).body == b"hello"


async def test_a_body_without_a_length_ends_with_the_connection(nursery: trio.Nursery) -> None:
    server = Server([[b"HTTP/1.0 404 Not Found\r\n\r\n<Error>", b"</Error>"]], closes=True)
    http = await connected(server, nursery)
    answer = await get(http)
    assert (answer.status, answer.body) == (404, b"<Error></Error>")
    assert answer.error is not None


async def test_a_preliminary_answer_is_passed_over(nursery: trio.Nursery) -> None:
    http = await connected(Server([[b"HTTP/1.1 100 Continue\r\n\r\n" + WHOLE]]), nursery)
    assert (await get(http)).body == b"hello"


async def test_more_than_was_asked_for_is_not_read(nursery: trio.Nursery) -> None:
    """A store that ignores ranges would send all of a huge object."""
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n"
    server = Server([[head, b"x" * MiB]])
    http = await connected(server, nursery)
    answer = await get(http)
    assert (answer.status, answer.body) == (None, b"")
    with trio.fail_after(10):
        await server.ended.wait()


async def test_a_connection_that_the_server_closed_meanwhile_is_not_used(
    nursery: trio.Nursery,
) -> None:
    server = Server([[WHOLE], [WHOLE]], closes=True)
    http = await connected(server, nursery)
    for _ in range(2):
        assert (await get(http)).body == b"hello"
        with trio.fail_after(10):
            await server.ended.wait()
        server.ended = trio.Event()
    assert server.connection_count == 2


async def test_a_connection_is_closed_where_the_server_asks_for_it(nursery: trio.Nursery) -> None:
    server = Server([[OK + b"Connection: close\r\nContent-Length: 5\r\n\r\nhello"]])
    http = await connected(server, nursery)
    assert (await get(http)).body == b"hello"
    with trio.fail_after(10):
        await server.ended.wait()


async def test_what_is_not_http_is_no_answer(nursery: trio.Nursery) -> None:
    for text in (
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 206 OK\r\nContent-Length: many\r\n\r\n",
        b"HTTP/1.1 206 OK\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 206 OK\r\nContent-Length: 2\r\n\r\nhello",
        b"x" * HEAD_BYTES,
    ):
        answer = await get(await connected(Server([[text]], closes=True), nursery))
        assert (answer.status, answer.body) == (None, b"")
        assert answer.error is not None


async def test_a_cancelled_request_closes_its_connection(nursery: trio.Nursery) -> None:
    server = Server([[OK], [WHOLE]])
    http = await connected(server, nursery)
    with trio.move_on_after(0.1) as scope:
        await http.send(Request("GetObject", "GET", "/b/k", most_bytes=5), None)
    assert scope.cancelled_caught
    with trio.fail_after(10):
        await server.ended.wait()
    assert (await get(http)).body == b"hello"
    assert server.connection_count == 2


async def test_a_header_with_a_line_of_its_own_is_never_sent(nursery: trio.Nursery) -> None:
    server = Server([])
    http = await connected(server, nursery)
    request = Request("GetObject", "GET", "/b/k", [("if-match", '"a"\r\nx: y')], most_bytes=5)
    assert (await http.send(request, None)).error is not None
    assert server.connection_count == 0


async def test_bytes_that_are_no_text_go_back_in_a_condition_as_they_came(
    nursery: trio.Nursery,
) -> None:
    head = OK + b'ETag: "\xe9\xff"\r\nContent-Length: 5\r\n\r\nhello'
    server = Server([[head], [WHOLE]])
    http = await connected(server, nursery)
    etag = (await get(http)).headers["etag"]
    await http.send(Request("GetObject", "GET", "/b/k", [("if-match", etag)], most_bytes=5), None)
    assert b'if-match: "\xe9\xff"\r\n' in server.heard[1]


async def test_after_a_long_silence_no_other_old_connection_is_tried(
    nursery: trio.Nursery, mock_clock: trio.testing.MockClock
) -> None:
    """A server that lost its power closes nothing."""
    server = Server([[], [WHOLE]])
    http = await connected(server, nursery)
    for connection in [await http._connection() for _ in range(2)]:
        http._give_back(connection)

    with trio.CancelScope() as scope:
        async with trio.open_nursery() as asking:
            asking.start_soon(get, http)
            await trio.testing.wait_all_tasks_blocked()
            mock_clock.jump(SILENCE_S + 1)
            scope.cancel()
    assert len(server.heard) == 1
    assert http._idle == []
    assert (await get(http)).body == b"hello"
