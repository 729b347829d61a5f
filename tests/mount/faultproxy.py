"""A TCP proxy between a daemon and its store that refuses, stalls or answers 503 on command.

Faults belong at the store boundary: what the daemon sees is what a broken network shows.
Concurrency: threads. One accepts, one per connection carries requests and one answers.
"""

import re
import socket
import threading
from contextlib import suppress
from enum import Enum, auto

__all__ = ["FaultProxy", "Link"]

CHUNK_BYTES = 64 * 1024
SLOW_DOWN = (
    b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Reduce your rate</Message></Error>"
)


class Link(Enum):
    """What happens to the bytes between daemon and store."""

    PASSES = auto()
    REFUSES = auto()
    STALLS = auto()
    SLOWS_DOWN = auto()


class FaultProxy:
    """A listener on 127.0.0.1 in front of `target` (host, port); owner of all its sockets."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._state = Link.PASSES
        self._changed = threading.Condition()
        self._open: set[socket.socket] = set()
        self._listener: socket.socket | None = None
        self._listen(0)
        assert self._listener is not None
        self.port: int = self._listener.getsockname()[1]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> "FaultProxy":
        return self

    def __exit__(self, *_: object) -> None:
        self.become(Link.REFUSES)

    def become(self, state: Link) -> None:
        """Change the link for all requests from now on; what is under way is cut."""
        with self._changed:
            before, self._state = self._state, state
        if state is Link.REFUSES:
            self._stop_listening()
        elif before is Link.REFUSES:
            self._listen(self.port)
        if state is not Link.STALLS:
            self._cut_all()
        with self._changed:  # only now: what was held back must not get through after all
            self._changed.notify_all()

    def _listen(self, port: int) -> None:
        self._listener = socket.create_server(("127.0.0.1", port), backlog=512)
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def _stop_listening(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()

    def _cut_all(self) -> None:
        with self._changed:
            cut, self._open = self._open, set()
        for end in cut:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            with self._changed:
                self._open.add(client)
                state = self._state
            if state is Link.SLOWS_DOWN:
                _answer_slow_down(client)
                return
            with socket.create_connection(self._target) as server:
                with self._changed:
                    self._open.add(server)
                answers = threading.Thread(target=self._carry, args=(server, client), daemon=True)
                answers.start()
                self._carry(client, server)
                answers.join()
        with self._changed:
            self._open -= {client}

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(CHUNK_BYTES):
                with self._changed:
                    self._changed.wait_for(lambda: self._state is not Link.STALLS)
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def _answer_slow_down(client: socket.socket) -> None:
    """Read one whole request, so that the client is not cut while it sends, and say 503."""
    request = b""
    while b"\r\n\r\n" not in request:
        piece = client.recv(CHUNK_BYTES)
        if not piece:
            return
        request += piece
    head, body = request.split(b"\r\n\r\n", 1)
    length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
    left = int(length[1]) - len(body) if length else 0
    while left > 0 and (piece := client.recv(CHUNK_BYTES)):
        left -= len(piece)
    client.sendall(
        b"HTTP/1.1 503 Slow Down\r\nContent-Type: application/xml\r\nConnection: close\r\n"
        + b"Content-Length: %d\r\n\r\n" % len(SLOW_DOWN)
        + (b"" if head.startswith(b"HEAD ") else SLOW_DOWN)
    )
