"""One program's reading of a directory, from opendir to closedir.

A `Listing` is a snapshot of names that grows page by page as the program reads on; what each name
means is looked up when it is given out. `fs` owns one per open directory.

A listing that is not older than the TTL is answered from memory. Names that only exist here (not
yet committed) come last.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import trio

from ucfuse.names.inodes import Directory, Node
from ucfuse.names.superblock import Superblock
from ucfuse.store.api import ObjectStore

__all__ = ["Listing", "ListingEntry"]


@dataclass(frozen=True, slots=True)
class ListingEntry:
    """One name and its node; the listing goes on at `next_position`."""

    name: str
    node: Node
    next_position: int


class Listing:
    """The names of one directory in a stable order. Positions count from 0."""

    def __init__(
        self, superblock: Superblock, store: ObjectStore, directory: Directory, ttl_s: float
    ) -> None:
        self._superblock = superblock
        self._store = store
        self._directory = directory
        self._ttl_s = ttl_s
        self._lock = trio.Lock()
        self._restart()

    def _restart(self) -> None:
        self._names: dict[str, None] = {}
        self._order: list[str] = []
        self._is_complete = False
        self._begin_pages()

    def _begin_pages(self) -> None:
        self._token: str | None = None
        self._prefix = self._superblock.key(self._directory)
        self._began: float | None = None

    async def reaches(self, position: int) -> bool:
        """Read on until an entry is at hand at `position` or behind it; False: there are no more.

        Asking for position 0 again begins a new snapshot. Raises the store's causes; a listing
        is never cut short silently.
        """
        if position == 0 and self._order:
            self._restart()
        if next(self.at_hand(position), None) is not None:
            return True
        async with self._lock:
            while next(self.at_hand(position), None) is None:
                if self._is_complete:
                    return False
                await self._read_on()
        return True

    def at_hand(self, position: int) -> Iterator[ListingEntry]:
        """Yield the entries from `position` on that need no waiting; to be used before an await."""
        for index in range(position, len(self._order)):
            name = self._order[index]
            node = self._superblock.known(self._directory, name)
            if node is not None:  # else removed since
                yield ListingEntry(name, node, index + 1)

    async def _read_on(self) -> None:
        if self._began is None and self._from_memory():
            return
        began = trio.current_time()
        page = await self._store.list_page(self._prefix, delimited=True, token=self._token)
        if self._superblock.key(self._directory) != self._prefix:
            self._begin_pages()  # the directory was renamed: its pages anew, under the new key
            return
        if self._began is None:
            self._began = began
        self._add(self._superblock.observe_page(self._directory, page, began))
        self._token = page.next_token
        if page.next_token is None:
            self._finish(self._began)

    def _from_memory(self) -> bool:
        directory = self._directory
        if trio.current_time() - directory.listed_at >= self._ttl_s:
            return False
        if any(not self._superblock.is_fresh(child) for child in directory.children.values()):
            return False
        self._add(dict.fromkeys(directory.children))
        self._is_complete = True
        return True

    def _finish(self, began: float) -> None:
        here_only = self._superblock.finish_listing(self._directory, self._names, began)
        self._add(dict.fromkeys(here_only))
        self._is_complete = True

    def _add(self, names: dict[str, None]) -> None:
        for name in names:
            if name not in self._names:
                self._names[name] = None
                self._order.append(name)
