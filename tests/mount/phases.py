"""A TCP proxy that tells what the daemon is asking of its store at this moment.

Concurrency: threads. One accepts, one per connection carries requests and one answers. They end
with their connections.
"""

import re
import socket
import threading
from collections import Counter
from contextlib import suppress
from enum import Enum

__all__ = ["Phase", "PhaseProxy"]

CHUNK_BYTES = 1 << 18
HEAD_END = b"\r\n\r\n"
_LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")
_PART = re.compile(rb"[?&]partNumber=(\d+)")


class Phase(Enum):
    """The steps of a commit, a rename and a removal that change the bucket."""

    SINGLE_PUT = "single put"
    FIRST_PART = "first part"
    MIDDLE_PART = "middle part"
    COMPLETION = "completion"
    PART_COPY = "part copy"
    COPY = "copy"
    DELETE = "delete"


def phase_of(head: bytes) -> Phase | None:
    """Return the phase that a request belongs to, from its head."""
    line = head.split(b"\r\n", 1)[0]
    is_copy = b"\r\nx-amz-copy-source:" in head.lower()
    if line.startswith(b"DELETE ") and b"uploadId=" not in line:
        return Phase.DELETE
    if line.startswith(b"POST ") and b"uploadId=" in line:
        return Phase.COMPLETION
    if not line.startswith(b"PUT "):
        return None
    part = _PART.search(line)
    if part is None:
        return Phase.COPY if is_copy else Phase.SINGLE_PUT
    if is_copy:
        return Phase.PART_COPY
    return Phase.FIRST_PART if part[1] == b"1" else Phase.MIDDLE_PART


class PhaseProxy:
    """A listener on 127.0.0.1 in front of `target` (host, port); owner of all its sockets."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._under_way: Counter[Phase] = Counter()
        self._changed = threading.Condition()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> "PhaseProxy":
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def under_way(self) -> set[Phase]:
        """Return the phases of all requests that are not answered yet."""
        with self._changed:
            return {phase for phase, count in self._under_way.items() if count > 0}

    def wait_for(self, phase: Phase, deadline_s: float) -> bool:
        """Wait until a request of this phase is under way; False if none came in time."""
        with self._changed:
            return self._changed.wait_for(lambda: self._under_way[phase] > 0, deadline_s)

    def _note(self, phase: Phase | None, change: int) -> None:
        if phase is not None:
            with self._changed:
                self._under_way[phase] += change
                self._changed.notify_all()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError), socket.create_connection(self._target) as server:
            link = _Link(self, client, server)
            answers = threading.Thread(target=link.carry_answers, daemon=True)
            answers.start()
            link.carry_requests()
            answers.join()


class _Link:
    """One connection. A request is under way from its head to the first byte of its answer."""

    def __init__(self, proxy: PhaseProxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._phase: Phase | None = None
        self._lock = threading.Lock()

    def carry_requests(self) -> None:
        received = b""
        with suppress(OSError):
            while True:
                while HEAD_END not in received:
                    piece = self._client.recv(CHUNK_BYTES)
                    if not piece:
                        break
                    received += piece
                if HEAD_END not in received:
                    break
                received = self._carry_one(received)
        self._become(None)
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)

    def _carry_one(self, received: bytes) -> bytes:
        """Carry one request whose head is in `received`; return what came after it."""
        head, _, rest = received.partition(HEAD_END)
        self._become(phase_of(head))
        length = _LENGTH.search(head)
        left = int(length[1]) if length else 0
        self._server.sendall(head + HEAD_END + rest[:left])
        left -= len(rest[:left])
        after = rest[int(length[1]) if length else 0 :]
        while left > 0:
            piece = self._client.recv(min(left, CHUNK_BYTES))
            if not piece:
                raise ConnectionError
            self._server.sendall(piece)
            left -= len(piece)
        return after

    def carry_answers(self) -> None:
        with suppress(OSError):
            while piece := self._server.recv(CHUNK_BYTES):
                if not piece.startswith(b"HTTP/1.1 100"):
                    self._become(None)
                self._client.sendall(piece)
        with suppress(OSError):
            self._client.shutdown(socket.SHUT_RDWR)

    def _become(self, phase: Phase | None) -> None:
        with self._lock:
            before, self._phase = self._phase, phase
        self._proxy._note(before, -1)
        self._proxy._note(phase, 1)
