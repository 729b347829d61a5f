"""HTTP messages as a proxy between a daemon and its store sees them, and what they ask for."""

import socket
import time
from dataclasses import dataclass
from urllib.parse import parse_qs, unquote, urlsplit

__all__ = ["Message", "Reader", "reply", "kind_of", "refusal"]

CHUNK_BYTES = 256 * 1024


@dataclass(slots=True)
class Message:
    """A request or an answer. Header names are in lower case."""

    start_line: str
    headers: dict[str, str]
    body: bytes

    @property
    def method(self) -> str:
        return self.start_line.split()[0]

    @property
    def path(self) -> str:
        return unquote(urlsplit(self.start_line.split()[1]).path)

    @property
    def query(self) -> dict[str, list[str]]:
        target = urlsplit(self.start_line.split()[1])
        return parse_qs(target.query, keep_blank_values=True)

    @property
    def status(self) -> int:
        return int(self.start_line.split()[1])

    def to_bytes(self) -> bytes:
        lines = [self.start_line, *(f"{name}: {text}" for name, text in self.headers.items())]
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + self.body


def kind_of(request: Message) -> str:
    """Return what `ucfuse status` calls such a request."""
    query, is_copy = request.query, "x-amz-copy-source" in request.headers
    match request.method:
        case "PUT" if "partNumber" in query:
            return "PARTCOPY" if is_copy else "PART"
        case "PUT":
            return "COPY" if is_copy else "PUT"
        case "POST":
            return "CREATE" if "uploads" in query else "COMPLETE"
        case "DELETE":
            return "ABORT" if "uploadId" in query else "DELETE"
        case "GET" if "list-type" in query:
            return "LIST"
        case other:
            return other


class Reader:
    """The messages that come in through one socket."""

    def __init__(self, source: socket.socket) -> None:
        self._source = source
        self._unread = bytearray()

    def message(self, *, has_body: bool = True) -> Message | None:
        """Return the next one; None at the end of the connection."""
        while b"\r\n\r\n" not in self._unread:
            if not self._more():
                return None
        head, rest = bytes(self._unread).split(b"\r\n\r\n", 1)
        self._unread = bytearray(rest)
        start_line, *lines = head.decode("latin-1").split("\r\n")
        headers = {}
        for line in lines:
            name, _, text = line.partition(":")
            headers[name.strip().lower()] = text.strip()
        message = Message(start_line, headers, b"")
        if has_body and headers.get("transfer-encoding", "").lower() == "chunked":
            message.body = self._chunks()
            del headers["transfer-encoding"]
            headers["content-length"] = str(len(message.body))
        elif has_body and not (start_line.startswith("HTTP") and message.status in (204, 304)):
            message.body = self._take(int(headers.get("content-length", "0")))
        return message

    def _chunks(self) -> bytes:
        body = b""
        while True:
            while b"\r\n" not in self._unread and self._more():
                pass
            line, rest = bytes(self._unread).split(b"\r\n", 1)
            self._unread = bytearray(rest)
            size = int(line.split(b";")[0], 16)
            piece = self._take(size + 2)
            if size == 0:
                return body
            body += piece[:-2]

    def _take(self, size: int) -> bytes:
        while len(self._unread) < size and self._more():
            pass
        taken = bytes(self._unread[:size])
        del self._unread[:size]
        return taken

    def _more(self) -> bool:
        piece = self._source.recv(CHUNK_BYTES)
        self._unread += piece
        return bool(piece)


def refusal(status: int, code: str, request: Message) -> Message:
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>by order</Message></Error>"
    return reply(status, code, b"" if request.method == "HEAD" else body.encode())


def reply(status: int, reason: str, body: bytes) -> Message:
    headers = {
        "content-type": "application/xml",
        "content-length": str(len(body)),
        "date": time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime()),
    }
    return Message(f"HTTP/1.1 {status} {reason}", headers, body)
