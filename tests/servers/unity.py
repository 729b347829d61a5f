"""A Unity Catalog server for tests, made from what is publicly known of the real ones.

It pages (with empty pages in between that have a token), hides what a user may not see, vends keys
that expire, and gets into any trouble that a test wants. The keys are real identities of the
tests' SeaweedFS, limited to the prefix of their volume.

Concurrency: a thread for every connection; one lock guards everything.
"""

import json
import socket
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.servers.identities import BUCKET, vended_keys
from tests.servers.server import HOST

__all__ = ["Kind", "Trouble", "UnityServer", "Volume"]

API = "/api/2.1/unity-catalog/"
HOSTED_API = "/api/2.0/unity-catalog/"
CREDENTIALS = "temporary-volume-credentials"
LEVELS = ("catalogs", "schemas", "volumes")
MOST_PER_PAGE = 100


class Kind(Enum):
    """What is asked."""

    LIST = auto()
    NAME = auto()
    READ = auto()
    WRITE = auto()


class Trouble(Enum):
    """What a question of some kind is answered with."""

    UNAUTHENTICATED = (401, "UNAUTHENTICATED", "the token is not valid")
    DENIED = (403, "PERMISSION_DENIED", "you lack the privilege")
    MISSING = (404, "VOLUME_NOT_FOUND", "there is no such thing")
    THROTTLED = (429, "RESOURCE_EXHAUSTED", "slow down")
    FAILING = (500, "INTERNAL", "it broke")
    STALL = (0, "", "no answer comes")
    DIE = (-1, "", "the connection ends")
    NONSENSE = (200, "", "it is another kind of server")
    AZURE = (200, "", "keys for another store")


@dataclass(slots=True)
class Volume:
    """One volume: where it lies, and what its keys may do."""

    name: str
    location: str
    id: str = field(default_factory=lambda: str(uuid.uuid4()))
    may_read: bool = True
    may_write: bool = True
    is_shown: bool = True

    @property
    def info(self) -> dict[str, object]:
        catalog, schema, name = self.name.split(".")
        return {
            "catalog_name": catalog,
            "schema_name": schema,
            "name": name,
            "full_name": self.name,
            "volume_id": self.id,
            "volume_type": "EXTERNAL",
            "storage_location": self.location,
            "created_at": 1_700_000_000_000,
        }


class UnityServer:
    """Listens on 127.0.0.1. `hosted`: answers as those do that Databricks runs."""

    def __init__(self, *, hosted: bool = False) -> None:
        self.hosted = hosted
        self.volumes: dict[str, Volume] = {}
        self.empty: set[str] = set()
        """Catalogs and schemas that have nothing in them."""
        self.tokens: set[str] | None = None
        """Which are valid; None: anybody may ask."""
        self.lifetime_s: float | None = None
        """Of the keys; None: they do not expire."""
        self.on_vend: Callable[[str, float | None], None] = lambda key, lifetime_s: None
        self.counts: Counter[str] = Counter()
        """Questions by path after the API's, listings with the place that they are of."""
        self.vended: list[tuple[str, str]] = []
        self._troubles: dict[Kind, Trouble] = {}
        self._is_over = threading.Event()
        self._lock = threading.RLock()
        self.connections: set[socket.socket] = set()
        self._start(0)

    def _start(self, port: int) -> None:
        handler = type("Handler", (_Handler,), {"unity": self})
        self._http = ThreadingHTTPServer((HOST, port), handler)
        self._http.daemon_threads = True
        self.port = self._http.server_address[1]
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def url(self) -> str:
        """What `--catalog-url` is given."""
        return f"http://{HOST}:{self.port}"

    def __enter__(self) -> "UnityServer":
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._stop()

    def _stop(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        for connection in list(self.connections):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    # --- what tests say ----------------------------------------------------------------------

    def add(self, name: str, prefix: str = "", *, location: str = "") -> Volume:
        """Register a volume in a prefix of the tests' bucket, or elsewhere."""
        volume = Volume(name, location or f"s3://{BUCKET}/{prefix}")
        with self._lock:
            self.volumes[name] = volume
        return volume

    def remove(self, name: str) -> None:
        """Drop a volume."""
        with self._lock:
            del self.volumes[name]

    @contextmanager
    def troubled(self, trouble: Trouble, *kinds: Kind) -> Iterator[None]:
        """Answer all questions (of these kinds) so for the block."""
        self._is_over = threading.Event()
        self._troubles = dict.fromkeys(kinds or Kind, trouble)
        try:
            yield
        finally:
            self._troubles = {}
            self._is_over.set()

    @contextmanager
    def down(self) -> Iterator[None]:
        """Refuse connections for the block."""
        self._stop()
        try:
            yield
        finally:
            self._start(self.port)

    # --- answers -----------------------------------------------------------------------------

    def answer(
        self, path: str, query: Mapping[str, str], body: Mapping[str, str] | None, token: str
    ) -> tuple[int, object] | None:
        """Return status and content; None: the connection ends without an answer."""
        kind = _kind_of(path, query, body)
        if kind is None or not self._has(path):
            return self._no_such_path()
        with self._lock:
            self.counts[_label(path, query, body)] += 1
        trouble = self._troubles.get(kind)
        if trouble is Trouble.STALL:
            self._is_over.wait(120)
        if trouble in (Trouble.STALL, Trouble.DIE):
            return None
        if trouble is Trouble.NONSENSE:
            return 200, "<html>"
        if trouble is not None and trouble is not Trouble.AZURE:
            return _refusal(trouble)
        if self.tokens is not None and token not in self.tokens:
            return _refusal(Trouble.UNAUTHENTICATED)
        with self._lock:
            if body is not None:
                return self._credentials(body, is_azure=trouble is Trouble.AZURE)
            level, _, name = path.removeprefix(API).partition("/")
            return self._named(level, unquote(name)) if name else self._listed(level, query)

    def _has(self, path: str) -> bool:
        if not path.endswith(CREDENTIALS):
            return path.startswith(API)
        return path.startswith(HOSTED_API if self.hosted else API)

    def _no_such_path(self) -> tuple[int, object]:
        if self.hosted:
            return 404, {"error_code": "ENDPOINT_NOT_FOUND", "message": "No API found"}
        return 404, "Not Found"

    def _names(self, level: str) -> list[str]:
        depth = LEVELS.index(level) + 1
        shown = [volume.name for volume in self.volumes.values() if volume.is_shown]
        places = [name.split(".") for name in (*shown, *self.empty)]
        names = dict.fromkeys(".".join(place[:depth]) for place in places if len(place) >= depth)
        return list(names)

    def _info(self, name: str) -> dict[str, object]:
        if name in self.volumes:
            return self.volumes[name].info
        catalog, _, schema = name.partition(".")
        return {"name": schema or catalog, "full_name": name, "id": f"id of {name}"}

    def _named(self, level: str, name: str) -> tuple[int, object]:
        name = name.lower() if self.hosted else name
        if name in self.volumes and not self.volumes[name].is_shown:
            return _refusal(Trouble.DENIED)
        if name not in self._names(level):
            return 404, {"error_code": f"{level[:-1].upper()}_NOT_FOUND", "message": name}
        return 200, self._info(name)

    def _listed(self, level: str, query: Mapping[str, str]) -> tuple[int, object]:
        above = [query[name] for name in ("catalog_name", "schema_name") if name in query]
        if len(above) != LEVELS.index(level):
            return 400, {"error_code": "INVALID_ARGUMENT", "message": "name what is above"}
        place = ".".join(above)
        if above and place not in self._names(LEVELS[len(above) - 1]):
            return 404, {"error_code": "SCHEMA_NOT_FOUND", "message": place}
        start = f"{place}." if above else ""
        names = [name for name in self._names(level) if name.startswith(start)]
        size = min(int(query.get("max_results", MOST_PER_PAGE)), MOST_PER_PAGE)
        token = query.get("page_token", "0")
        if token.startswith("empty-"):
            return 200, {level: [], "next_page_token": token.removeprefix("empty-")}
        stop = int(token) + size
        page: dict[str, object] = {level: [self._info(name) for name in names[int(token) : stop]]}
        if stop < len(names):
            page["next_page_token"] = f"empty-{stop}"
        return 200, page

    def _credentials(self, body: Mapping[str, str], *, is_azure: bool) -> tuple[int, object]:
        known = {volume.id: volume for volume in self.volumes.values()}
        volume = known.get(body["volume_id"])
        if volume is None:
            return _refusal(Trouble.MISSING)
        for_changes = body["operation"] == "WRITE_VOLUME"
        if not (volume.may_write if for_changes else volume.may_read):
            return _refusal(Trouble.DENIED)
        if is_azure:
            return 200, {"azure_user_delegation_sas": {"sas_token": "x"}, "url": volume.location}
        prefix = volume.location.removeprefix(f"s3://{BUCKET}/")
        keys = vended_keys(prefix.partition("/")[0] + "/", for_changes=for_changes)
        access_key, secret_key = keys[len(self.vended) % len(keys)]
        self.vended.append((volume.name, body["operation"]))
        self.on_vend(access_key, self.lifetime_s)
        answer: dict[str, object] = {
            "aws_temp_credentials": {"access_key_id": access_key, "secret_access_key": secret_key},
            "url": volume.location,
        }
        if self.lifetime_s is not None:
            answer["expiration_time"] = int((time.time() + self.lifetime_s) * 1000)
        return 200, answer


def _refusal(trouble: Trouble) -> tuple[int, object]:
    status, code, message = trouble.value
    return status, {"error_code": code, "message": message, "details": []}


def _kind_of(path: str, query: Mapping[str, str], body: Mapping[str, str] | None) -> Kind | None:
    if body is not None:
        return Kind.WRITE if body.get("operation") == "WRITE_VOLUME" else Kind.READ
    level, _, name = path.removeprefix(API).partition("/")
    if level not in LEVELS:
        return None
    return Kind.NAME if name else Kind.LIST


def _label(path: str, query: Mapping[str, str], body: Mapping[str, str] | None) -> str:
    if body is not None:
        return body["operation"]
    above = [query[name] for name in ("catalog_name", "schema_name") if name in query]
    return " ".join([path.removeprefix(API), *above])


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    unity: UnityServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def handle(self) -> None:
        self.unity.connections.add(self.connection)
        with suppress(ConnectionError):
            super().handle()
        self.unity.connections.discard(self.connection)

    def do_GET(self) -> None:
        self._serve(None)

    def do_POST(self) -> None:
        self._serve(json.loads(self.rfile.read(int(self.headers["content-length"]))))

    def _serve(self, body: Any) -> None:
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        token = self.headers.get("authorization", "").removeprefix("Bearer ")
        answer = self.unity.answer(url.path, query, body, token)
        if answer is None:
            self.close_connection = True
            return
        status, content = answer
        text = content if isinstance(content, str) else json.dumps(content)
        with suppress(ConnectionError):
            self.send_response(status)
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
        """Keep quiet: pytest shows what the daemon logged."""
