"""Asking the store what names mean: lookups, and the refresh of names that have expired.

`fs` asks here; every answer goes into the `superblock`, which decides what it changes.

Concurrency: trio loop only. Any number of questions at once; of one listed directory one page of
its listing is under way and one waits.
"""

import math
from dataclasses import dataclass, field
from functools import partial

import trio

from ucfuse.errors import NotFound, ObjectMissing
from ucfuse.names.inodes import Directory, File, Node
from ucfuse.names.rules import without_beside
from ucfuse.names.superblock import Superblock
from ucfuse.store.api import ObjectStore
from ucfuse.tasks import Pending
from ucfuse.volume import DIRECTORY_SUFFIX, Key, ObjectInfo

__all__ = ["Lookups"]

# A refresh in a listed directory asks for this many names from the expired one on: whoever walks
# the directory in order then finds the next ones fresh.
REFRESH_KEYS = 1000

# One page tells of a key and of what lies below it, unless as many names sort in between: those
# that go on with `-` or `.`, like the parts of a model. It costs less than to ask twice.
LOOKUP_KEYS = 8


@dataclass(slots=True, eq=False)
class _Refresh:
    """One page of a listing that renews expired names; `told`: those that it told of."""

    names: list[str]
    told: set[str] = field(default_factory=set)
    ended: trio.Event = field(default_factory=trio.Event)


class Lookups:
    """The questions of one volume about its names."""

    def __init__(self, superblock: Superblock, store: ObjectStore, nursery: trio.Nursery) -> None:
        self._superblock = superblock
        self._store = store
        self._nursery = nursery
        self._running: dict[Directory, _Refresh] = {}
        self._waiting: dict[Directory, _Refresh] = {}
        self._asked: dict[Directory, trio.Event] = {}

    async def find(self, parent: Directory, name: str, *, trust_memory: bool = False) -> Node:
        """Return the node of a name, not older than the TTL. Raises `NotFound`.

        `trust_memory`: any age will do, the caller validates at the open that follows.
        """
        node = parent.children.get(name)
        if node is not None and (trust_memory or self._superblock.is_fresh(node)):
            return node
        if isinstance(node, File) and self._superblock.lacks_only_mtime(node):
            await self.refresh(node)  # by HEAD alone: that it is a file is known
        elif node is not None and parent.was_listed and not _is_beside(node):
            await self._refresh_page(parent, name)
        elif isinstance(node, Directory):
            await self._ask_together(node, parent, name)
        else:
            await self._ask(parent, name)
        node = parent.children.get(name)
        if node is None:
            raise NotFound(self._superblock.key_below(parent, name))
        return node

    async def renew(self, file: File) -> None:
        """Ask about a known file that has expired: by a page of its directory if that was listed,
        since those who stat one name stat the next ones too, else by one HEAD."""
        if file.parent.was_listed and not _is_beside(file):
            await self._refresh_page(file.parent, file.name)
        else:
            await self.refresh(file)

    async def refresh(self, file: File) -> None:
        """Ask the store about a file that is open or was found before, by one HEAD."""
        began, key = trio.current_time(), self._superblock.key(file)
        try:
            info: ObjectInfo | None = (await self._store.head(key)).info
        except ObjectMissing:
            info = None
        if self._superblock.key(file) != key:
            return  # renamed meanwhile, by which it is confirmed
        if info is None:
            self._superblock.observe_missing(file, began)
        else:
            self._superblock.observe_version(file, info, began)

    async def _ask_together(self, node: Directory, parent: Directory, name: str) -> None:
        """Ask for a known directory. Who comes meanwhile waits, and asks himself only if the
        answer did not confirm it: that a name is gone is never taken from an older question."""
        running = self._asked.get(node)
        if running is not None:
            await running.wait()
            if parent.children.get(name) is not node or not self._superblock.is_fresh(node):
                await self._ask(parent, name)
            return
        ended = self._asked[node] = trio.Event()
        try:
            await self._ask(parent, name)
        finally:
            del self._asked[node]
            ended.set()

    async def _ask(self, parent: Directory, name: str) -> None:
        """Ask for one name whatever it is: a file, a directory, or nothing."""
        began, key = trio.current_time(), self._superblock.key_below(parent, name)
        if await self._is_still_directory(parent, name, key, began):
            return
        file_info, is_directory = await self._ask_key(key)
        if self._superblock.key_below(parent, name) != key:
            await self._ask(parent, name)  # a directory above was renamed meanwhile
            return
        base = without_beside(name)
        if file_info is None and not is_directory and base is not None:
            beside, shadowed = await self._ask_key(self._superblock.key_below(parent, base))
            if beside is not None and shadowed:
                self._superblock.observe(parent, base, beside, True, began)
                return
        self._superblock.observe(parent, name, file_info, is_directory, began)

    async def _is_still_directory(
        self, parent: Directory, name: str, key: Key, began: float
    ) -> bool:
        """Whether a known directory still has a key below it: one request, the usual case."""
        known = parent.children.get(name)
        if not isinstance(known, Directory):
            return False
        page = await self._store.list_page(key + DIRECTORY_SUFFIX, delimited=False, max_keys=1)
        if not page.objects or self._superblock.key_below(parent, name) != key:
            return False
        self._superblock.observe(parent, name, None, True, began)
        return True

    async def _ask_key(self, key: Key) -> tuple[ObjectInfo | None, bool]:
        """Return the object under this key, and whether there are keys below it."""
        below = key + DIRECTORY_SUFFIX
        page = await self._store.list_page(key, delimited=False, max_keys=LOOKUP_KEYS)
        info = next((each for each in page.objects if each.key == key), None)
        if any(each.key.startswith(below) for each in page.objects):
            return info, True
        if page.next_token is None or any(each.key > below for each in page.objects):
            return info, False
        page = await self._store.list_page(below, delimited=False, max_keys=1)
        return info, bool(page.objects)

    async def _refresh_page(self, parent: Directory, name: str) -> None:
        """Renew an expired name, and those after it, by one page of the directory's listing.

        Of one directory one page is under way and one waits, from the first of the names that
        expired meanwhile: programs that walk a directory side by side share them.
        """
        refresh = self._join_refresh(parent, name)
        await refresh.ended.wait()
        if name not in refresh.told:
            await self._ask(parent, name)

    def _join_refresh(self, parent: Directory, name: str) -> _Refresh:
        if parent not in self._running:
            refresh = _Refresh([name])
            self._begin_refresh(parent, refresh)
            return refresh
        waiting = self._waiting.setdefault(parent, _Refresh([]))
        waiting.names.append(name)
        return waiting

    def _begin_refresh(self, parent: Directory, refresh: _Refresh) -> None:
        self._running[parent] = refresh
        # With a deadline of its own (`retrying` ends it): others than its first caller wait for it.
        work = partial(self._run_refresh, parent, refresh)
        Pending(self._nursery, work, until=math.inf)

    async def _run_refresh(self, parent: Directory, refresh: _Refresh) -> None:
        try:
            expired = [name for name in refresh.names if not self._is_known_fresh(parent, name)]
            if expired:
                await self._read_page(parent, refresh, expired)
            refresh.told.update(set(refresh.names).difference(expired))
        finally:
            del self._running[parent]
            refresh.ended.set()
            waiting = self._waiting.pop(parent, None)
            if waiting is not None:
                self._begin_refresh(parent, waiting)

    async def _read_page(self, parent: Directory, refresh: _Refresh, expired: list[str]) -> None:
        began, base = trio.current_time(), self._superblock.key(parent)
        page = await self._store.list_page(
            base, delimited=True, start_after=base + _before(min(expired)), max_keys=REFRESH_KEYS
        )
        if self._superblock.key(parent) != base:
            return  # a directory above was renamed meanwhile: everyone asks for himself
        shown = self._superblock.observe_page(parent, page, began)
        last = max(shown, default="")
        for name in expired:
            if name not in shown:
                if page.next_token is not None and last <= name + DIRECTORY_SUFFIX:
                    continue  # the page ended before it could tell
                self._superblock.observe(parent, name, None, False, began)
            refresh.told.add(name)

    def _is_known_fresh(self, parent: Directory, name: str) -> bool:
        node = parent.children.get(name)
        return node is not None and self._superblock.is_fresh(node)


def _is_beside(node: Node) -> bool:
    """Whether the node is an object beside a directory, which sorts under its own name."""
    return isinstance(node, File) and node.object_name != node.name


def _before(name: str) -> str:
    """Return a string that sorts just before `name`, for a listing that begins with it."""
    head, last = name[:-1], ord(name[-1])
    if last <= 1:
        return head
    previous = last - 1
    if 0xD800 <= previous <= 0xDFFF:  # surrogates are no characters
        previous = 0xD7FF
    return head + chr(previous) + "\U0010fffd"
