"""`UnityCatalog`: the names and volumes of a Unity Catalog server, not older than the TTL.

`assembly` makes one for a mount. A level is listed as a whole, page by page, and then serves every
question about its names until it is too old. A name in a level that nobody has listed is asked for
alone, and so is one that the last listing does not have: that a name does not exist is never
remembered.

It opens no volume and keeps no keys: `vend` of an entry asks anew each time.

Concurrency: trio loop only. Questions run in the nursery that is passed in, each with a deadline;
who asks for the same thing meanwhile waits for the one that is under way.
"""

import math
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote

import trio

from ucfuse.catalog.interface import Found, Names, Place, text_of
from ucfuse.catalog.sources import can_be_part
from ucfuse.catalog.unity.answers import (
    LEVELS,
    Entry,
    entries_of,
    entry_of,
    keys_of,
    next_token,
    source_of,
)
from ucfuse.catalog.unity.client import Client
from ucfuse.catalog.unity.token import Token
from ucfuse.config import CatalogOptions, Keys, StoreOptions, VolumeEntry
from ucfuse.errors import NotFound, NotInCatalog, NotUnderstood, StoreRefused
from ucfuse.tasks import Pending, deadline

__all__ = ["UnityCatalog", "connected"]

T = TypeVar("T")

NAMES_PATH = "/2.1/unity-catalog"
# Where credentials are: on the open-source server, and on those that Databricks hosts.
CREDENTIALS_PATHS = ("/2.1/unity-catalog", "/2.0/unity-catalog")
# What open-source servers cut a page to; a hosted one may give less.
PAGE_SIZE = 100
# How long a question goes on if whoever asked it waits no longer.
MOST_PATIENCE_S = 60.0
CLOSE_TIMEOUT_S = 2.0


@dataclass(slots=True)
class _Level:
    """What is known of the names directly below a place."""

    listed: dict[str, Entry] | None = None
    listed_at: float = 0.0
    single: dict[str, tuple[Entry, float]] = field(default_factory=dict)
    """Names that were asked for alone, and when."""


@asynccontextmanager
async def connected(
    catalog: CatalogOptions, store: StoreOptions, nursery: trio.Nursery, *, ttl_s: float = 0.0
) -> AsyncIterator["UnityCatalog"]:
    """Have connections to a server for the block; `store` reaches the stores of its volumes."""
    token = Token(catalog.token, catalog.token_file)
    client = Client(catalog.url, token, random.Random())
    try:
        yield UnityCatalog(client, store, nursery, ttl_s=ttl_s)
    finally:
        with trio.move_on_after(CLOSE_TIMEOUT_S, shield=True):  # TLS says good-bye
            await client.aclose()


class UnityCatalog:
    """Implements `Catalog`. Borrows its client; `options` reach the store of every volume."""

    def __init__(
        self, client: Client, options: StoreOptions, nursery: trio.Nursery, *, ttl_s: float
    ) -> None:
        self._client = client
        self._options = options
        self._nursery = nursery
        self._ttl_s = ttl_s
        self._levels: dict[Place, _Level] = {}
        self._asking: dict[object, Pending[Any]] = {}
        self._credentials_paths: Sequence[str] = CREDENTIALS_PATHS

    async def names(self, above: Place) -> Names:
        level = self._level(above)
        if level.listed is None or not self._left_s(level.listed_at):
            await self._once("list", above, self._list)
        assert level.listed is not None
        identities = {name: entry.identity for name, entry in level.listed.items()}
        return Names(identities, self._left_s(level.listed_at))

    async def find(self, place: Place) -> Found:
        if not can_be_part(place[-1]):  # what programs look for everywhere: `.git` and the like
            raise NotFound(text_of(place))
        entry, known_at = await self._entry(place)
        if entry.name != place[-1]:  # a hosted server takes any case, and stores lower case
            raise NotFound(text_of(place), f"the catalog calls it {entry.name!r}")
        return Found(entry.identity, self._left_s(known_at))

    async def volume(self, place: Place) -> VolumeEntry:
        entry, _ = await self._entry(place)
        name = ".".join((*place[:-1], entry.name))
        return VolumeEntry(
            name=name,
            source=source_of(entry, place),
            store=replace(self._options, catalog_url=self._client.url, volume=name),
            read_only=False,
            vend=partial(self._vend, place, entry.id),
        )

    def knows(self, place: Place) -> bool:
        return self._known(place) is not None

    # --- what is known -----------------------------------------------------------------------

    def _level(self, above: Place) -> _Level:
        return self._levels.setdefault(above, _Level())

    def _left_s(self, known_at: float) -> float:
        return max(0.0, known_at + self._ttl_s - trio.current_time())

    def _known(self, place: Place) -> tuple[Entry, float] | None:
        """Return what is known of a name that exists, and since when; None: nothing, or too old."""
        level, name = self._level(place[:-1]), place[-1]
        if level.listed is not None and name in level.listed and self._left_s(level.listed_at):
            return level.listed[name], level.listed_at
        alone = level.single.get(name)
        return alone if alone is not None and self._left_s(alone[1]) else None

    async def _entry(self, place: Place) -> tuple[Entry, float]:
        if (known := self._known(place)) is not None:
            return known
        level = self._level(place[:-1])
        if level.listed is not None and not self._left_s(level.listed_at):
            # Whoever looks at many names of a level in turn, as `ls -l` does, costs one listing.
            await self.names(place[:-1])
            if place[-1] in level.listed:
                return level.listed[place[-1]], level.listed_at
        return await self._once("name", place, self._ask_name)

    # --- questions ---------------------------------------------------------------------------

    async def _once(self, kind: str, place: Place, ask: Callable[[Place], Awaitable[T]]) -> T:
        """Wait for the answer to a question, which is asked once for all who ask it meanwhile."""
        what = (kind, place)
        pending = self._asking.get(what)
        if pending is None:
            left_s = trio.current_effective_deadline() - trio.current_time()

            async def asking() -> T:
                try:
                    with deadline(min(left_s, MOST_PATIENCE_S), text_of(place)):
                        return await ask(place)
                finally:
                    del self._asking[what]

            pending = self._asking[what] = Pending(self._nursery, asking, until=math.inf)
        return await pending.wait()  # type: ignore[no-any-return]

    async def _list(self, above: Place) -> None:
        found: dict[str, Entry] = {}
        query = {"max_results": str(PAGE_SIZE)}
        query |= dict(zip(("catalog_name", "schema_name"), above, strict=False))
        tokens: set[str] = set()
        while True:
            answer = await self._listing_page(above, query)
            found.update((entry.name, entry) for entry in entries_of(answer, above))
            token = next_token(answer)
            if not token:
                break
            if token in tokens:
                raise StoreRefused(text_of(above), "a listing that never ends")
            tokens.add(token)
            query["page_token"] = token
        level = self._level(above)
        level.listed, level.listed_at = found, trio.current_time()
        level.single.clear()

    async def _listing_page(self, above: Place, query: Mapping[str, str]) -> Mapping[str, Any]:
        path = f"{NAMES_PATH}/{LEVELS[len(above)]}"
        return await self._client.ask(text_of(above), path, query=query)

    async def _ask_name(self, place: Place) -> tuple[Entry, float]:
        path = f"{NAMES_PATH}/{LEVELS[len(place) - 1]}/{quote('.'.join(place), safe='')}"
        level = self._level(place[:-1])
        try:
            entry = entry_of(await self._client.ask(text_of(place), path), place)
        except (NotInCatalog, NotUnderstood) as cause:
            level.single.pop(place[-1], None)
            raise NotFound(text_of(place), cause.detail) from cause
        known = level.single[place[-1]] = entry, trio.current_time()
        return known

    async def _vend(self, place: Place, volume_id: str, *, for_changes: bool) -> Keys:
        operation = "WRITE_VOLUME" if for_changes else "READ_VOLUME"
        body = {"volume_id": volume_id, "operation": operation}
        for api in self._credentials_paths:
            path = f"{api}/temporary-volume-credentials"
            answer = await self._client.ask_if_there(text_of(place), path, body=body)
            if answer is not None:
                self._credentials_paths = (api,)
                return keys_of(answer, place)
        raise NotInCatalog(text_of(place), "the server gives no credentials for volumes")
