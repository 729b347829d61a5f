"""A proxy between a daemon and its store that knows S3's requests, and spoils chosen ones.

Where `faultproxy` breaks a link, this one lets a single request go wrong: it is refused, held up,
cut after the store carried it out, damaged. It also plays AWS where the servers of the tests are
kinder: an upload has the place in the order of changes at which it was begun.

Concurrency: threads, one per connection. Rules and history are guarded by one lock.
"""

import hashlib
import math
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Container, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum, auto

from .messages import Message, Reader, kind_of, refusal, reply
from .troubles import TRICKLE_BYTES_PER_S, Standing, Trouble, damaged, spoilt_answer

__all__ = ["Fault", "Message", "RequestProxy", "Trouble", "kind_of"]


class Fault(Enum):
    """What happens to a request."""

    REFUSE = auto()
    """The connection is closed, and the store never sees it."""
    STALL = auto()
    """No answer comes, and the store never sees it."""
    CUT = auto()
    """The store carries it out; its answer is lost."""
    SLOW = auto()
    """It takes a second."""
    CORRUPT = auto()
    """A bit of its body, or of the answer's, is another one."""
    SLOW_DOWN = auto()
    """503."""
    AWAY = auto()
    """503, and so to all that follow, for as long as the rule says."""
    CUT_SENDING = auto()
    """The connection ends when half of the request's body has reached the store."""
    EXPIRED = auto()
    """403: the credentials have expired."""


READS = frozenset({"GET", "HEAD", "COPY", "PARTCOPY"})
"""Requests that need an object that exists."""

HELD_BACK = frozenset(Fault) - {Fault.CUT, Fault.SLOW, Fault.CORRUPT}
"""Faults of requests that the store never sees as a whole."""


@dataclass(slots=True)
class _Rule:
    kind: str
    fault: Fault
    skip: int
    name: str
    lasting_s: float
    met_at: float | None = None

    def meets(self, kind: str, path: str) -> bool:
        """Say whether this request is to go wrong, and count it."""
        if kind != self.kind or self.name not in path:
            return False
        if self.met_at is not None:
            return self.fault is Fault.AWAY and time.monotonic() < self.met_at + self.lasting_s
        self.skip -= 1
        if self.skip < 0:
            self.met_at = time.monotonic()
        return self.met_at is not None


@dataclass(slots=True)
class _History:
    """What AWS would remember: when each upload was begun, and when each key last changed."""

    changes: int = 0
    begun: dict[str, int] = field(default_factory=dict)
    changed: dict[str, int] = field(default_factory=dict)

    def note(self, key: str) -> None:
        self.changes += 1
        self.changed[key] = self.changes


class RequestProxy:
    """Listens on 127.0.0.1 in front of `target` (host, port). Owner of its sockets."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._lock = threading.Lock()
        self._answered = threading.Condition(self._lock)
        self._rules: list[_Rule] = []
        self._standing: Standing | None = None
        self._history = _History()
        self._ended = threading.Event()
        self._open: set[socket.socket] = set()
        self._expires_at: dict[str, float] = {}
        self.hides_missing = False
        """Whether 404 is 403, as AWS answers to who may list nothing but a prefix."""
        self.counts: Counter[str] = Counter()
        self.waiting_count = 0
        """How many requests get no answer now, about."""
        self.carried: Counter[tuple[str, str]] = Counter()
        """Requests that reached the store, by access key and kind."""
        self.refused: Counter[str] = Counter()
        """Requests that were refused since their access key had expired."""
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> "RequestProxy":
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._listener.close()
        self._cut_all()

    def _cut_all(self) -> None:
        with self._lock:
            left, self._open = self._open, set()
        for end in left:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def spoil(
        self,
        kind: str,
        fault: Fault,
        *,
        skip: int = 0,
        name: str = "",
        lasting_s: float = math.inf,
    ) -> None:
        """Let the next request of the kind go wrong, after `skip` others.

        `name`: only those with this in their path. `lasting_s`: how long `AWAY` goes on.
        """
        with self._lock:
            self._rules.append(_Rule(kind, fault, skip, name, lasting_s))

    @contextmanager
    def troubled(self, trouble: Trouble, kinds: Container[str] | None = None) -> Iterator[None]:
        """Spoil every request (of these kinds) for the block; those under way then end at once."""
        self._standing = standing = Standing(trouble, kinds)
        try:
            yield
        finally:
            self._standing = None
            standing.is_over.set()
            self._cut_all()

    def was_met(self) -> bool:
        """Say whether the requests to be spoilt have come; forget them."""
        with self._lock:
            rules, self._rules = self._rules, []
        return all(rule.met_at is not None for rule in rules)

    def expire(self, access_key: str, in_s: float = 0.0) -> None:
        """Refuse all requests that are signed with this key, from then on."""
        with self._lock:
            self._expires_at[access_key] = time.monotonic() + in_s

    def wait_for(self, kind: str, count: int, deadline_s: float = 20.0) -> None:
        """Wait until so many requests of the kind have been answered."""
        with self._answered:
            assert self._answered.wait_for(
                lambda: sum(n for (_, each), n in self.carried.items() if each == kind) >= count,
                deadline_s,
            ), f"not {count} requests of kind {kind}: {self.carried}"

    def changed_elsewhere(self, key: str) -> None:
        """Note that another client changed a key (with its bucket) without the proxy's seeing."""
        with self._lock:
            self._history.note(f"/{key}")

    # --- one connection ----------------------------------------------------------------------

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with self._lock:
            self._open.add(client)
        with client, suppress(OSError):
            self._carry(client)
        with self._lock:
            self._open.discard(client)

    def _carry(self, client: socket.socket) -> None:
        with socket.create_connection(self._target) as server:
            server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            reader, answers = Reader(client), Reader(server)
            while (request := reader.message()) is not None:
                standing = self._standing
                if standing and (standing.kinds is None or kind_of(request) in standing.kinds):
                    answer = self._spoilt(standing, request, server, answers, client)
                else:
                    answer = self._answer(request, server, answers)
                if answer is None:
                    return
                client.sendall(answer.to_bytes())

    def _spoilt(
        self,
        standing: Standing,
        request: Message,
        server: socket.socket,
        answers: Reader,
        client: socket.socket,
    ) -> Message | None:
        match standing.trouble:
            case Trouble.SLOW_DOWN:
                return refusal(503, "SlowDown", request)
            case Trouble.EXPIRED:
                return refusal(403, "ExpiredToken", request)
            case Trouble.DENIED:
                return refusal(403, "AccessDenied", request)
            case Trouble.STALL:
                self.waiting_count += 1
                standing.is_over.wait(120)
                self.waiting_count -= 1
                return None
            case Trouble.CUT if request.body:
                return None
            case Trouble.TRICKLE:
                if standing.is_over.wait(len(request.body) / TRICKLE_BYTES_PER_S):
                    return None
        is_damaged = standing.trouble is Trouble.CORRUPT and bool(request.body)
        if is_damaged:
            request.body = damaged(request.body)
        answer = self._forward(request, server, answers)
        if answer is None or not answer.body or is_damaged:
            return answer
        return spoilt_answer(standing, answer, client)

    def _answer(self, request: Message, server: socket.socket, answers: Reader) -> Message | None:
        kind, key = kind_of(request), _access_key(request)
        fault = self._fault_for(kind, request.path)
        if self._has_expired(key):
            fault = Fault.EXPIRED
        if fault in HELD_BACK:
            return self._hold_back(fault, request, server)
        if fault is Fault.SLOW:
            self._ended.wait(1)
        if fault is Fault.CORRUPT and request.body:
            request.body = damaged(request.body)
        outdated = self._lost_place(kind, request)
        if outdated is not None:
            return outdated
        answer = self._forward(request, server, answers)
        if self.hides_missing and answer and answer.status == 404 and kind in READS:
            answer = refusal(403, "AccessDenied", request)
        self._remember(kind, request, answer)
        with self._answered:
            self.carried[key, kind] += 1
            self._answered.notify_all()
        if fault is Fault.CUT or answer is None:
            return None
        if fault is Fault.CORRUPT and kind == "GET" and answer.body:
            answer.body = damaged(answer.body)
        return answer

    def _hold_back(self, fault: Fault, request: Message, server: socket.socket) -> Message | None:
        """Answer a request that the store never sees as a whole; None ends the connection."""
        match fault:
            case Fault.SLOW_DOWN | Fault.AWAY:
                return refusal(503, "SlowDown", request)
            case Fault.EXPIRED:
                return refusal(403, "ExpiredToken", request)
            case Fault.STALL:
                self._ended.wait(120)
            case Fault.CUT_SENDING:
                whole = request.to_bytes()
                server.sendall(whole[: len(whole) - len(request.body) // 2 - 1])
        return None

    def _forward(self, request: Message, server: socket.socket, answers: Reader) -> Message | None:
        server.sendall(request.to_bytes())
        return answers.message(has_body=request.method != "HEAD")

    def _fault_for(self, kind: str, path: str) -> Fault | None:
        with self._lock:
            self.counts[kind] += 1
            for rule in self._rules:
                if rule.meets(kind, path):
                    return rule.fault
        return None

    def _has_expired(self, access_key: str) -> bool:
        with self._lock:
            if time.monotonic() < self._expires_at.get(access_key, math.inf):
                return False
            self.refused[access_key] += 1
            return True

    # --- as AWS would ------------------------------------------------------------------------

    def _lost_place(self, kind: str, request: Message) -> Message | None:
        """Answer a completion that another change has overtaken since the upload was begun."""
        if kind != "COMPLETE":
            return None
        with self._lock:
            began = self._history.begun.get(request.query["uploadId"][0])
            is_lost = began is not None and self._history.changed.get(request.path, 0) > began
        if not is_lost:
            return None
        if {"if-match", "if-none-match"} & set(request.headers):
            return refusal(409, "ConditionalRequestConflict", request)
        etag = hashlib.md5(request.body, usedforsecurity=False).hexdigest()
        root = "CompleteMultipartUploadResult"
        return reply(200, "OK", f"<{root}><ETag>{etag}-2</ETag></{root}>".encode())

    def _remember(self, kind: str, request: Message, answer: Message | None) -> None:
        if answer is None or answer.status >= 300:
            return
        with self._lock:
            if kind == "CREATE":
                found = re.search(rb"<UploadId>([^<]*)<", answer.body)
                assert found is not None
                self._history.changes += 1
                self._history.begun[found[1].decode()] = self._history.changes
            elif kind in ("PUT", "COPY", "DELETE"):
                self._history.note(request.path)


def _access_key(request: Message) -> str:
    """Return the key that a request is signed with; empty if it is not."""
    found = re.search("Credential=([^/]*)/", request.headers.get("authorization", ""))
    return found[1] if found else ""
