"""Every operation on a mounted volume, in our own words: no FUSE, no S3.

The kernel adapter calls `VolumeFilesystem`, once per request. It is the only mediator between
names, reading and writing; `kernel_lookups`, `stats`, `opens`, `reads`, `writes`, `commits`,
`creations`, `removals`, `renames`, `links` and `directories` are its parts, each one side of the
work. All methods raise only causes from `errors.py`.

Concurrency: any number of requests at once, in one trio loop. Work that outlives a request runs in
the service nursery, which this class opens and closes. Everything has a deadline.
"""

import math
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Never, Self

import trio

from ucfuse.budget import MemoryBudget
from ucfuse.config import MountConfig
from ucfuse.errors import NotPermitted, StaleName
from ucfuse.fs.attributes import attributes_of
from ucfuse.fs.caller import (
    Caller,
    Described,
    DescriptorProbe,
    DirectoryEntry,
    OpenIntent,
    Uncommitted,
)
from ucfuse.fs.change_gate import ChangeGate, Permit
from ucfuse.fs.commits import Commits
from ucfuse.fs.creations import Creations
from ucfuse.fs.directories import Directories
from ucfuse.fs.kernel_lookups import KernelLookups
from ucfuse.fs.links import Links
from ucfuse.fs.opens import Opens
from ucfuse.fs.portability_log import Portability
from ucfuse.fs.questions import Questions
from ucfuse.fs.reads import Reads
from ucfuse.fs.recovery import Recovery, open_area
from ucfuse.fs.removals import Removals
from ucfuse.fs.renames import Renames
from ucfuse.fs.repeats import Repeats
from ucfuse.fs.services import build_services, cache_files_of
from ucfuse.fs.stats import Stats
from ucfuse.fs.strict_writes import Ordering
from ucfuse.fs.validation import Validation
from ucfuse.fs.writes import Writes
from ucfuse.metrics import Metrics
from ucfuse.names.inodes import Directory, Node
from ucfuse.portability import Operation
from ucfuse.reading.cache_directory import CacheFiles
from ucfuse.reading.diskcache import DiskCache
from ucfuse.reading.pagecache import PageCache
from ucfuse.store.api import Buffer, ObjectStore
from ucfuse.store.linking import CopyCondition
from ucfuse.tasks import Pending
from ucfuse.volume import Attributes, HandleId, InodeNo
from ucfuse.writing.area import StagingArea

__all__ = ["VolumeFilesystem"]


class VolumeFilesystem:
    """One mounted volume. Owns its inodes, handles, contents, staging area and service nursery.

    The store, the budget and the metrics are the caller's.
    """

    def __init__(
        self,
        config: MountConfig,
        store: ObjectStore,
        budget: MemoryBudget,
        metrics: Metrics,
        probe: DescriptorProbe,
        *,
        volume_index: int = 0,
        page_cache: PageCache | None = None,
        permit: Permit | None = None,
        copy_condition: CopyCondition | None = None,
        portability: Portability | None = None,
    ) -> None:
        """`volume_index` sets the numbers of one volume of a mount apart from those of others.

        `permit` is asked before every change. `copy_condition`: what was found out of the store.
        `portability`: what all volumes of a mount share.
        """
        self._config = config
        self._store = store
        self._budget = budget
        self._metrics = metrics
        self._probe = probe
        self._volume_index = volume_index
        self._page_cache = page_cache
        self._portability = portability or Portability(config.emulation, probe)
        self._ordering = Ordering(self._portability)
        self._copy_condition = copy_condition or CopyCondition(store, config.source.prefix)
        self._gate = ChangeGate(config, permit)
        self._exit = AsyncExitStack()

    async def __aenter__(self) -> Self:
        cache_files = cache_files_of(self._config)  # first: it may refuse, and leaves nothing open
        # Left in reverse: background work ends first, then the files it may have used.
        area = self._exit.enter_context(open_area(self._config))
        self._exit.callback(lambda: self._contents.close())
        self._nursery = await self._exit.enter_async_context(trio.open_nursery())
        self._exit.callback(self._nursery.cancel_scope.cancel)
        self._build(area, cache_files)
        self._nursery.start_soon(area.journal.keep_fresh)
        return self

    def _build(self, area: StagingArea, cache_files: CacheFiles | None) -> None:
        self._services = services = build_services(
            self._config,
            self._store,
            self._budget,
            self._metrics,
            self._nursery,
            area,
            cache_files,
            probe=self._probe,
            page_cache=self._page_cache,
            volume_index=self._volume_index,
        )
        self._superblock = services.superblock
        self._contents = services.contents
        self._handles = services.handles
        self._reads = Reads(services)
        self._repeats = Repeats(services)
        questions = Questions(services, self._reads)
        metrics = self._metrics
        self._lookups = KernelLookups(services, questions, self._repeats, lambda: metrics.is_away)
        self._validation = Validation(services, questions, self._lookups, self._repeats)
        self._stats = Stats(services)
        self._commits = Commits(services)
        self._creations = Creations(services)
        self._directories = Directories(services)
        self._removals = Removals(services)
        self._writes = Writes(services, self._commits, self._removals, self._ordering)
        self._renames = Renames(services, self._removals, self._commits)
        self._links = Links(services, self._commits, self._copy_condition)
        self._recovery = Recovery(self._store, services.uploader, area, self._nursery)
        self._opens = Opens(
            services,
            self._validation,
            self._reads,
            self._repeats,
            self._creations,
            self._writes,
            self._ordering,
        )

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._repeats.close()
        await self._exit.__aexit__(kind, error, trace)

    @property
    def root(self) -> InodeNo:
        """The number of the volume's topmost directory."""
        return self._superblock.inodes.root.number

    # --- names and attributes ----------------------------------------------------------------

    async def require_changes(self, number: InodeNo) -> None:
        """Raise `ReadOnlyVolume` unless what has this number may be changed."""
        await self._gate.require()

    async def lookup(self, parent: InodeNo, name: str, caller: Caller) -> Attributes:
        """Return what a name is, not older than the TTL, and add a reference."""
        directory = self._superblock.inodes.directory(parent)
        node, valid_s = await self._lookups.find(directory, name, caller)
        return replace(self._remembered(node), valid_s=valid_s)

    async def getattr(self, number: InodeNo, caller: Caller) -> Attributes:
        """Return the attributes of an inode, not older than the TTL."""
        node = self._superblock.inodes.get(number)
        if isinstance(node, Directory):
            return self._attributes(node)
        valid_s = await self._stats.renew(node)
        return replace(self._attributes(node), valid_s=valid_s)

    async def set_size(
        self, number: InodeNo, size: int, handle: HandleId | None, caller: Caller
    ) -> Attributes:
        """Truncate or extend a file; without an open writer it is committed at once."""
        await self._gate.require()
        file = self._superblock.inodes.file(number)
        if handle is None and not file.has_name:
            raise StaleName(file.path, "the name means another version by now")
        content = self._contents.of(file)
        opened = None if handle is None else self._handles.file(handle)
        self._ordering.before_resize(content, size, opened, caller)
        self._contents.pin(file)
        content.changer_count += 1
        try:
            await self._writes.set_size(content, size)
            return self._attributes(file)
        finally:
            content.changer_count -= 1
            self._contents.unpin(file)

    async def mknod(self, parent: InodeNo, name: str, caller: Caller) -> Attributes:
        """Make an empty file that is in the store at once, and add a reference."""
        async with self._changing(parent) as directory:
            file = await self._creations.make_node(directory, name)
        return self._remembered(file)

    async def mkdir(self, parent: InodeNo, name: str, caller: Caller) -> Attributes:
        """Make a directory, and add a reference."""
        async with self._changing(parent) as directory:
            return self._remembered(await self._creations.make_directory(directory, name))

    async def link(self, number: InodeNo, parent: InodeNo, name: str, caller: Caller) -> Attributes:
        """Copy a file to a name that is free, in the store, and add a reference to the copy."""
        await self._gate.require()
        directory = self._superblock.inodes.directory(parent)
        self._portability.meet_name(Operation.LINK, directory.path, name, caller.thread)
        if not self._config.hardlinks_copy:
            raise NotPermitted(name, "hard links cannot be objects; see --hardlinks")
        file = self._superblock.inodes.file(number)
        with self._repeats.names_change(directory):
            return self._remembered(await self._links.link(file, directory, name))

    async def symlink(self, parent: InodeNo, name: str, caller: Caller) -> Never:
        """Raise `NotPermitted`, or what the volume's state or mode says before."""
        await self._gate.require()
        directory = self._superblock.inodes.directory(parent)
        self._portability.meet_name(Operation.SYMLINK, directory.path, name, caller.thread)
        raise NotPermitted(name, "symbolic links cannot be objects")

    async def unlink(self, parent: InodeNo, name: str, caller: Caller) -> None:
        """Remove a file."""
        async with self._changing(parent) as directory:
            await self._removals.unlink(directory, name)

    async def rmdir(self, parent: InodeNo, name: str, caller: Caller) -> None:
        """Remove an empty directory."""
        async with self._changing(parent) as directory:
            await self._removals.remove_directory(directory, name)

    async def rename(
        self,
        old_parent: InodeNo,
        old_name: str,
        new_parent: InodeNo,
        new_name: str,
        *,
        no_replace: bool,
        caller: Caller,
    ) -> None:
        """Give a file or directory another name, over what has that name (unless `no_replace`)."""
        await self._gate.require()
        inodes = self._superblock.inodes
        source, target = inodes.directory(old_parent), inodes.directory(new_parent)
        with self._repeats.names_change(source, target):
            node = await self._services.find(source, old_name)
            await self._renames.rename(node, target, new_name, no_replace=no_replace)

    def describe(self, number: InodeNo) -> Described:
        """Return what is known of an inode now; asks nobody."""
        return self._stats.describe(self._superblock.inodes.get(number))

    def remember(self, number: InodeNo) -> None:
        """Add a kernel reference to an inode."""
        self._superblock.inodes.get(number).lookups += 1

    def forget(self, number: InodeNo, count: int) -> None:
        """Take kernel references back."""
        self._contents.forget(number, count)

    def end_ticket(self, thread: int) -> None:
        """A thread went on to something else than repeating an open."""
        self._repeats.end_tickets(thread)

    def end_lookup(self, thread: int) -> None:
        """A thread went on to something else than the open that its lookup was for."""
        self._lookups.end(thread)

    # --- open, read, write, close ------------------------------------------------------------

    async def open(self, number: InodeNo, intent: OpenIntent, caller: Caller) -> HandleId:
        """Open the newest committed version. Raises `StaleName` for the kernel to look again."""
        if intent.writable or intent.truncate:
            await self._gate.require()
        file = self._superblock.inodes.file(number)
        return (await self._opens.open(file, intent, caller)).number

    async def create(
        self, parent: InodeNo, name: str, intent: OpenIntent, caller: Caller
    ) -> tuple[HandleId, Attributes]:
        """Create and open a file, or open the one that came into being meanwhile."""
        async with self._changing(parent) as directory:
            handle = await self._opens.create(directory, name, intent, caller)
        return handle.number, self._remembered(handle.content.file)

    async def read(self, handle: HandleId, offset: int, length: int) -> Buffer:
        """Return up to `length` bytes at `offset`, fewer only at the end of the file."""
        return await self._reads.read(self._handles.file(handle).content, offset, length, handle)

    async def write(self, handle: HandleId, offset: int, data: Buffer) -> int:
        """Put `data` into staging and return its length."""
        await self._writes.write(self._handles.writer(handle), offset, data)
        return len(data)

    async def flush(self, handle: HandleId) -> None:
        """One descriptor of the handle was closed; commit if it was the program's last."""
        await self._writes.flush(self._handles.file(handle))

    async def fsync(self, handle: HandleId) -> None:
        """Return once the store has the file."""
        await self._writes.commit(self._handles.file(handle))

    async def release(self, handle: HandleId) -> None:
        """End a handle. What a mapping changed after the last close is committed behind it."""
        self._writes.end_handle(self._handles.file(handle))

    # --- directories -------------------------------------------------------------------------

    async def opendir(self, number: InodeNo, caller: Caller) -> HandleId:
        """Open a directory for listing."""
        return self._directories.open(self._superblock.inodes.directory(number))

    async def readdir(self, handle: HandleId, start: int) -> Iterator[DirectoryEntry]:
        """Return the entries at hand from position `start` on; none: it was the last one.

        To be used before the next await.
        """
        return await self._directories.read(handle, start)

    async def releasedir(self, handle: HandleId) -> None:
        """End the listing of a directory."""
        self._directories.close(handle)

    # --- the mount as a whole ----------------------------------------------------------------

    async def replay(self, patience_s: float) -> None:
        """Finish the commits that the end of an earlier mount cut off.

        After `patience_s` it goes on in the background.
        """
        if self._config.read_only:
            return
        work = partial(self._recovery.replay, self._config.source.prefix)
        pending = Pending(self._nursery, work, until=math.inf)
        with trio.move_on_after(patience_s):
            await pending.ended()

    @property
    def cache(self) -> DiskCache | None:
        """The disk cache, if the mount has one."""
        return self._services.cache

    def uncommitted(self) -> list[Uncommitted]:
        """Return what the store does not have yet, oldest first."""
        return self._contents.uncommitted()

    def open_handles(self) -> int:
        """Return how many files and directories are open."""
        return len(self._handles)

    async def commit_all(
        self, on_wait: Callable[[list[Uncommitted]], None] | None = None
    ) -> list[Uncommitted]:
        """Commit everything that no program is still writing; return what could not be.

        `on_wait` is told what is left before each file. What stays is kept in its staging file,
        whose path is logged.
        """
        await self._writes.commit_all(on_wait)
        return self.uncommitted()

    # --- inner workings ----------------------------------------------------------------------

    @asynccontextmanager
    async def _changing(self, parent: InodeNo) -> AsyncIterator[Directory]:
        """Give the directory for a block that changes names in it, if that is allowed."""
        await self._gate.require()
        directory = self._superblock.inodes.directory(parent)
        with self._repeats.names_change(directory):
            yield directory

    def _remembered(self, node: Node) -> Attributes:
        node.lookups += 1
        return self._attributes(node)

    def _attributes(self, node: Node) -> Attributes:
        return attributes_of(self._services, node)
