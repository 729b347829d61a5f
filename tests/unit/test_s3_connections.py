"""What stalls must not hold up what does not: the connections of one native client."""

import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

import pytest
import trio

from ucfuse.errors import StoreError
from ucfuse.metrics import Metrics
from ucfuse.store.s3.client import MOST_CONNECTIONS, S3Store
from ucfuse.store.s3.endpoint import Endpoint
from ucfuse.store.s3.transport import CONNECTIONS_FOR_NAMES
from ucfuse.volume import Key

MOST_DATA_REQUESTS = MOST_CONNECTIONS - CONNECTIONS_FOR_NAMES
ANSWER_TO_HEAD = (
    b'HTTP/1.1 200 OK\r\nContent-Length: 5\r\nETag: "e"\r\n'
    b"Last-Modified: Sun, 29 Nov 2026 00:00:00 GMT\r\n\r\n"
)


class StallsData:
    """A store that answers HEAD, and nothing else ever."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self.is_full = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.host = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._open.append(connection)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        received = b""
        with suppress(OSError):
            while piece := connection.recv(65536):
                received += piece
                while b"\r\n\r\n" in received:
                    head, received = received.split(b"\r\n\r\n", 1)
                    method = head.split(b" ")[0].decode()
                    self.seen[method] += 1
                    if self.seen["PUT"] == MOST_DATA_REQUESTS:
                        self.is_full.set()
                    if method == "HEAD":
                        connection.sendall(ANSWER_TO_HEAD)

    def close(self) -> None:
        self._listener.close()
        for connection in self._open:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def stalling() -> Iterator[StallsData]:
    server = StallsData()
    yield server
    server.close()


@pytest.mark.promise("P39")
async def test_questions_about_names_are_answered_while_data_stalls(stalling: StallsData) -> None:
    """README, What you can rely on: `stat` does not wait for data."""
    answers: list[float] = []
    endpoint = Endpoint("bucket", stalling.host, "/bucket", "us-east-1", tls=False)
    store = S3Store(endpoint, None, Metrics(), lambda: answers.append(trio.current_time()))

    async def write(number: int) -> None:
        with suppress(StoreError):
            await store.put(Key(f"k{number}"), b"x")

    async with trio.open_nursery() as nursery:
        for number in range(150):
            nursery.start_soon(write, number)
        with trio.fail_after(30):
            assert await trio.to_thread.run_sync(stalling.is_full.wait, 20)
            for _ in range(5):
                assert (await store.head(Key("h"))).info.size == 5
        assert stalling.seen["PUT"] == MOST_DATA_REQUESTS
        assert len(answers) == 5
        stalling.close()
        nursery.cancel_scope.cancel()
    await store.aclose()
