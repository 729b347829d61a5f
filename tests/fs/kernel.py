"""A stand-in for the kernel: it turns paths into the requests that Linux would send.

Names are looked up component by component; an open that is answered with ESTALE is repeated once,
with fresh lookups (two for the last name), from the same thread, as `open(2)` does.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import trio

from ucfuse.errors import NotFound, ObjectMissing, StaleName
from ucfuse.fs.caller import Caller, DirectoryEntry, OpenIntent
from ucfuse.fs.interface import MountedFilesystem
from ucfuse.names.inodes import ROOT_INODE
from ucfuse.store.api import Fetched, ObjectStore
from ucfuse.store.memory import MemoryStore
from ucfuse.volume import Attributes, HandleId, InodeNo, Key, MiB

__all__ = ["FakeProbe", "Kernel", "bytes_in", "keys_in", "intent"]

ROOT = Attributes(ROOT_INODE, True, 0, 0, 2, 0.0)


class FakeProbe:
    """Descriptors that a test says are open: by opener, how many are writable."""

    def __init__(self) -> None:
        self.still_open: dict[int, int | None] = {}

    def opener_of(self, thread: int) -> int | None:
        return thread or None

    def program_of(self, thread: int) -> str | None:
        return f"program-{thread}"

    def count_writable(self, opener: int, number: InodeNo) -> int | None:
        return self.still_open.get(opener, 0)


def intent(mode: str, *, exclusive: bool = False) -> OpenIntent:
    """Return what `open(path, mode)` asks for: r, r+, w, a."""
    return OpenIntent(
        readable=mode in ("r", "r+"),
        writable=mode != "r",
        truncate=mode == "w",
        append=mode == "a",
        exclusive=exclusive,
    )


async def bytes_in(memory: MemoryStore, key: str) -> bytes | None:
    """Return what another client finds under a key; None: no object."""
    try:
        fetched = await memory.get(Key(key), 0, 1 << 40)
    except ObjectMissing:
        return None
    assert isinstance(fetched, Fetched)
    return fetched.data


async def keys_in(store: ObjectStore) -> list[str]:
    """Return all keys that another client finds."""
    return [info.key for info in (await store.list_page("", delimited=False)).objects]


@dataclass
class Kernel:
    """One thread of a program on the mount."""

    fs: MountedFilesystem
    thread: int = 1000

    def caller(self) -> Caller:
        """Of LOOKUP, OPEN and CREATE."""
        return Caller(self.thread, trio.current_time())

    def other_caller(self) -> Caller:
        """Of any other request: it ends what the thread was at."""
        self.fs.end_ticket(self.thread)
        self.fs.end_lookup(self.thread)
        return self.caller()

    # --- names ---------------------------------------------------------------------------

    async def walk(self, path: str) -> Attributes:
        """Look every component up, as part of a request that follows."""
        attributes = ROOT
        for name in path.split("/") if path else []:
            attributes = await self.fs.lookup(attributes.number, name, self.caller())
        return attributes

    async def lookup(self, path: str) -> Attributes:
        """stat(2) of a path that is in no cache: GETATTR where the lookup's answer is not valid."""
        self.fs.end_ticket(self.thread)
        try:
            return await self._stat_once(path)
        except StaleName:
            return await self._stat_once(path)

    async def _stat_once(self, path: str) -> Attributes:
        found = await self.walk(path)
        if found.is_directory or found.valid_s > 0:
            return found
        return await self.fs.getattr(found.number, self.other_caller())

    async def exists(self, path: str) -> bool:
        try:
            await self.lookup(path)
        except NotFound:
            return False
        return True

    async def parent(self, path: str) -> tuple[InodeNo, str]:
        above, _, name = path.rpartition("/")
        return (await self.walk(above)).number, name

    # --- open and close ------------------------------------------------------------------

    async def open(
        self, path: str, mode: str = "r", *, exclusive: bool = False, number: InodeNo | None = None
    ) -> HandleId:
        """open(2); `number`: the dentry cache already knows this inode for the name."""
        wanted = intent(mode, exclusive=exclusive)
        self.fs.end_ticket(self.thread)
        try:
            if number is not None:
                return await self.fs.open(number, wanted, self.caller())
            return await self._open_once(path, mode, wanted)
        except StaleName:
            return await self._open_once(path, mode, wanted, again=True)

    async def _open_once(
        self, path: str, mode: str, wanted: OpenIntent, *, again: bool = False
    ) -> HandleId:
        parent, name = await self.parent(path)
        try:
            number = (await self.fs.lookup(parent, name, self.caller())).number
            if again:
                self.fs.forget(number, 1)
                number = (await self.fs.lookup(parent, name, self.caller())).number
        except NotFound:
            if mode in ("r", "r+"):
                raise
            handle, _ = await self.fs.create(parent, name, wanted, self.caller())
            return handle
        if wanted.exclusive:
            raise FileExistsError(path)
        return await self.fs.open(number, wanted, self.caller())

    async def close(self, handle: HandleId) -> None:
        try:
            await self.fs.flush(handle)
        finally:
            await self.fs.release(handle)

    @asynccontextmanager
    async def opened(self, path: str, mode: str = "r") -> AsyncIterator[HandleId]:
        handle = await self.open(path, mode)
        try:
            yield handle
        finally:
            await self.close(handle)

    # --- whole programs ------------------------------------------------------------------

    async def begin_file(self, path: str, data: bytes, mode: str = "w") -> HandleId:
        """Open a file and write its first bytes; to close it is left to the test."""
        handle = await self.open(path, mode)
        await self.fs.write(handle, 0, data)
        return handle

    async def write_file(self, path: str, data: bytes, mode: str = "w") -> None:
        handle = await self.open(path, mode)
        try:
            offset = (await self.lookup(path)).size if mode == "a" else 0
            for start in range(0, len(data), MiB):
                await self.fs.write(handle, offset + start, data[start : start + MiB])
        finally:
            await self.close(handle)

    async def read_file(self, path: str) -> bytes:
        handle = await self.open(path)
        try:
            return await self.read_open(handle)
        finally:
            await self.close(handle)

    async def read_open(self, handle: HandleId) -> bytes:
        data = b""
        while piece := bytes(await self.fs.read(handle, len(data), MiB)):
            data += piece
        return data

    async def listdir(self, path: str = "") -> list[str]:
        number = (await self.lookup(path)).number
        handle = await self.fs.opendir(number, self.other_caller())
        try:
            return [entry.name for entry in await self.read_directory(handle)]
        finally:
            await self.fs.releasedir(handle)

    async def read_directory(self, handle: HandleId, start: int = 0) -> list[DirectoryEntry]:
        """READDIR until nothing comes any more; the kernel holds a reference of each entry."""
        entries: list[DirectoryEntry] = []
        while page := list(await self.fs.readdir(handle, start)):
            for entry in page:
                self.fs.remember(entry.attributes.number)
            entries += page
            start = page[-1].next_id
        return entries

    async def truncate(self, path: str, size: int) -> Attributes:
        """truncate(2), which the kernel repeats once after ESTALE."""
        number = (await self.lookup(path)).number
        try:
            return await self.fs.set_size(number, size, None, self.other_caller())
        except StaleName:
            number = (await self.lookup(path)).number
            return await self.fs.set_size(number, size, None, self.other_caller())

    async def link(self, old: str, new: str) -> Attributes:
        """link(2), which the kernel repeats once after ESTALE."""
        try:
            return await self._link_once(old, new)
        except StaleName:
            return await self._link_once(old, new)

    async def _link_once(self, old: str, new: str) -> Attributes:
        number = (await self.lookup(old)).number
        if await self.exists(new):
            raise FileExistsError(new)
        parent, name = await self.parent(new)
        return await self.fs.link(number, parent, name, self.other_caller())

    async def unlink(self, path: str) -> None:
        parent, name = await self.parent(path)
        await self.lookup(path)
        await self.fs.unlink(parent, name, self.other_caller())

    async def mkdir(self, path: str) -> Attributes:
        parent, name = await self.parent(path)
        return await self.fs.mkdir(parent, name, self.other_caller())

    async def mknod(self, path: str) -> Attributes:
        parent, name = await self.parent(path)
        return await self.fs.mknod(parent, name, self.other_caller())

    async def rmdir(self, path: str) -> None:
        parent, name = await self.parent(path)
        await self.lookup(path)
        await self.fs.rmdir(parent, name, self.other_caller())

    async def rename(self, old: str, new: str, *, no_replace: bool = False) -> None:
        await self.lookup(old)
        await self.exists(new)  # the kernel looks the target up too
        old_parent, old_name = await self.parent(old)
        new_parent, new_name = await self.parent(new)
        caller = self.other_caller()
        await self.fs.rename(
            old_parent, old_name, new_parent, new_name, no_replace=no_replace, caller=caller
        )
