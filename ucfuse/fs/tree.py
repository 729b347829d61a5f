"""Many volumes in one mount: catalogs and schemas above them, and the way of each request.

`/main/default/images/...`: the levels above a volume are virtual directories that nobody can
change (`catalog_folders` knows them, `folder_listings` shows them); below, everything is the
volume's. The number of an inode or handle tells its volume, so no table grows here. Every volume
has its own store, inodes and tickets; what one of them waits for, no other does. `assembly` builds
the tree where a mount has more than one volume.

Concurrency: trio loop only. Whatever outlives a request runs in the nursery that is passed in.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Never

import trio

from ucfuse.catalog.interface import Catalog
from ucfuse.errors import AcrossVolumes, BadHandle, IsADirectory, NotSupported, StaleName
from ucfuse.fs.caller import Caller, Described, DirectoryEntry, OpenIntent, Uncommitted
from ucfuse.fs.catalog_folders import Folder, Levels, OpenVolume, VolumeSlot
from ucfuse.fs.filesystem import VolumeFilesystem
from ucfuse.fs.folder_listings import FolderListings, shown
from ucfuse.fs.portability_log import Portability
from ucfuse.portability import Operation
from ucfuse.store.api import Buffer
from ucfuse.tasks import Pending
from ucfuse.volume import Attributes, HandleId, InodeNo, index_of

__all__ = ["VolumeTree"]

# One entry per thread that asked something of a volume; the oldest are the least needed.
MOST_THREADS = 4096


class VolumeTree:
    """Implements `MountedFilesystem` over the volumes of a catalog, which it borrows.

    `served`, by name (`catalog.schema.volume`), are open from the start: the first of them was
    built with the index `FIRST_VOLUME_INDEX`, the others follow. All others are opened by
    `open_volume` when they are first used.
    """

    def __init__(
        self,
        catalog: Catalog,
        open_volume: OpenVolume,
        nursery: trio.Nursery,
        portability: Portability,
        *,
        ttl_s: float,
        timeout_s: float,
        served: Mapping[str, VolumeFilesystem],
    ) -> None:
        self._nursery = nursery
        self._portability = portability
        self._ttl_s = ttl_s
        self._levels = Levels(catalog, open_volume, nursery, ttl_s=ttl_s, timeout_s=timeout_s)
        self._listings = FolderListings(self._levels)
        self._asked_last: dict[int, VolumeFilesystem] = {}
        for name, volume in served.items():
            place = tuple(name.split("."))
            self._levels.place_open(place, place[-1], volume)

    # --- which volume ------------------------------------------------------------------------

    def _slot_of(self, number: int) -> VolumeSlot | None:
        """Return the volume of an inode or handle; None: it is virtual."""
        index = index_of(number)
        return self._levels.slot(index) if index else None

    async def _volume_of(self, number: int) -> VolumeFilesystem | None:
        """Return the files of that volume, which is opened if it is not; None: it is virtual."""
        slot = self._slot_of(number)
        return None if slot is None else slot.fs or await self._levels.opened(slot)

    async def _changeable(self, number: int) -> VolumeFilesystem:
        volume = await self._volume_of(number)
        if volume is None:
            raise NotSupported(self._folder(number).path, "catalogs and schemas cannot be changed")
        return volume

    def _folder(self, number: int) -> Folder:
        folder = self._levels.folder(number)
        if folder is None:
            raise StaleName(str(number), "no such inode")
        return folder

    def _of_handle(self, handle: HandleId) -> VolumeFilesystem:
        slot = self._slot_of(handle)
        if slot is None or slot.fs is None:
            raise BadHandle(str(handle))
        return slot.fs

    def _goes_to(self, volume: VolumeFilesystem, thread: int) -> None:
        """A thread that asks another volume has given up the open that it was at in the last."""
        last = self._asked_last.get(thread)
        if last is volume or not thread:
            return
        self._leaves(last, thread)
        self._asked_last[thread] = volume
        if len(self._asked_last) > MOST_THREADS:
            oldest = next(iter(self._asked_last))
            self._leaves(self._asked_last.pop(oldest), oldest)

    def _leaves(self, volume: VolumeFilesystem | None, thread: int) -> None:
        if volume is not None:
            volume.end_ticket(thread)
            volume.end_lookup(thread)

    # --- names and attributes ----------------------------------------------------------------

    async def require_changes(self, number: InodeNo) -> None:
        await (await self._changeable(number)).require_changes(number)

    async def lookup(self, parent: InodeNo, name: str, caller: Caller) -> Attributes:
        volume = await self._volume_of(parent)
        if volume is not None:
            self._goes_to(volume, caller.thread)
            return await volume.lookup(parent, name, caller)
        child, valid_s = await self._levels.find(self._folder(parent), name)
        return await shown(child, valid_s, caller)

    async def getattr(self, number: InodeNo, caller: Caller) -> Attributes:
        slot = self._slot_of(number)
        if slot is None or slot.fs is None:
            return await shown(slot or self._folder(number), self._ttl_s, caller)
        return await slot.fs.getattr(number, caller)

    async def set_size(
        self, number: InodeNo, size: int, handle: HandleId | None, caller: Caller
    ) -> Attributes:
        volume = await self._changeable(number)
        return await volume.set_size(number, size, handle, caller)

    async def mknod(self, parent: InodeNo, name: str, caller: Caller) -> Attributes:
        volume = await self._changeable(parent)
        return await volume.mknod(parent, name, caller)

    async def mkdir(self, parent: InodeNo, name: str, caller: Caller) -> Attributes:
        if self._slot_of(parent) is None:
            above = self.describe(parent).path
            self._portability.meet_name(Operation.MKDIR, above, name, caller.thread)
        volume = await self._changeable(parent)
        return await volume.mkdir(parent, name, caller)

    async def link(self, number: InodeNo, parent: InodeNo, name: str, caller: Caller) -> Attributes:
        volume = await self._changeable(parent)
        if self._slot_of(number) is not self._slot_of(parent):
            above = self.describe(parent).path
            self._portability.meet_name(Operation.LINK, above, name, caller.thread)
            raise AcrossVolumes(name, "the file is in another volume")
        return await volume.link(number, parent, name, caller)

    async def symlink(self, parent: InodeNo, name: str, caller: Caller) -> Never:
        volume = await self._changeable(parent)
        await volume.symlink(parent, name, caller)

    async def unlink(self, parent: InodeNo, name: str, caller: Caller) -> None:
        volume = await self._changeable(parent)
        await volume.unlink(parent, name, caller)

    async def rmdir(self, parent: InodeNo, name: str, caller: Caller) -> None:
        volume = await self._changeable(parent)
        await volume.rmdir(parent, name, caller)

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
        volume = await self._changeable(old_parent)
        if self._slot_of(new_parent) is not self._slot_of(old_parent):
            await self._changeable(new_parent)
            above = self.describe(old_parent).path
            self._portability.meet_name(Operation.RENAME, above, old_name, caller.thread)
            raise AcrossVolumes(new_name, f"{old_name} is in another volume")
        await volume.rename(
            old_parent, old_name, new_parent, new_name, no_replace=no_replace, caller=caller
        )

    def describe(self, number: InodeNo) -> Described:
        slot = self._slot_of(number)
        if slot is None or slot.fs is None:
            return Described(path=(slot or self._folder(number)).path, source=None)
        found, above = slot.fs.describe(number), slot.path
        return replace(
            found,
            path=f"{above}/{found.path}".rstrip("/"),
            uncommitted=found.uncommitted and _moved_below(above, found.uncommitted),
        )

    def remember(self, number: InodeNo) -> None:
        slot = self._slot_of(number)
        if slot is not None and slot.fs is not None:  # else it is the topmost directory: it stays
            slot.fs.remember(number)

    def forget(self, number: InodeNo, count: int) -> None:
        slot = self._slot_of(number)
        if slot is not None and slot.fs is not None:
            slot.fs.forget(number, count)

    def end_ticket(self, thread: int) -> None:
        if (volume := self._asked_last.get(thread)) is not None:
            volume.end_ticket(thread)

    def end_lookup(self, thread: int) -> None:
        if (volume := self._asked_last.get(thread)) is not None:
            volume.end_lookup(thread)

    # --- open, read, write, close ------------------------------------------------------------

    async def open(self, number: InodeNo, intent: OpenIntent, caller: Caller) -> HandleId:
        volume = await self._volume_of(number)
        if volume is None:
            raise IsADirectory(self._folder(number).path)
        self._goes_to(volume, caller.thread)
        return await volume.open(number, intent, caller)

    async def create(
        self, parent: InodeNo, name: str, intent: OpenIntent, caller: Caller
    ) -> tuple[HandleId, Attributes]:
        volume = await self._changeable(parent)
        self._goes_to(volume, caller.thread)
        return await volume.create(parent, name, intent, caller)

    async def read(self, handle: HandleId, offset: int, length: int) -> Buffer:
        return await self._of_handle(handle).read(handle, offset, length)

    async def write(self, handle: HandleId, offset: int, data: Buffer) -> int:
        return await self._of_handle(handle).write(handle, offset, data)

    async def flush(self, handle: HandleId) -> None:
        await self._of_handle(handle).flush(handle)

    async def fsync(self, handle: HandleId) -> None:
        await self._of_handle(handle).fsync(handle)

    async def release(self, handle: HandleId) -> None:
        await self._of_handle(handle).release(handle)

    # --- directories -------------------------------------------------------------------------

    async def opendir(self, number: InodeNo, caller: Caller) -> HandleId:
        volume = await self._volume_of(number)
        if volume is not None:
            return await volume.opendir(number, caller)
        return await self._listings.open(self._folder(number))

    async def readdir(self, handle: HandleId, start: int) -> Iterator[DirectoryEntry]:
        if (slot := self._slot_of(handle)) is not None and slot.fs is not None:
            return await slot.fs.readdir(handle, start)
        return await self._listings.read(handle, start)

    async def releasedir(self, handle: HandleId) -> None:
        if (slot := self._slot_of(handle)) is not None and slot.fs is not None:
            await slot.fs.releasedir(handle)
        else:
            self._listings.close(handle)

    # --- the mount as a whole ----------------------------------------------------------------

    async def replay(self, patience_s: float) -> None:
        """Finish what an earlier mount left, volume after volume, in those that are open.

        One after another, because who looks at what an ended session left keeps others from it.
        """

        async def replay_all() -> None:
            for _, volume in self._levels.open_volumes():
                await volume.replay(float("inf"))

        pending = Pending(self._nursery, replay_all, until=float("inf"))
        with trio.move_on_after(patience_s):
            await pending.ended()

    def uncommitted(self) -> list[Uncommitted]:
        """Return what the stores do not have yet, oldest first; paths begin with the volume's."""
        return sorted(self._all_uncommitted(), key=lambda file: -file.age_s)

    def _all_uncommitted(self) -> Iterator[Uncommitted]:
        for slot, volume in self._levels.open_volumes():
            yield from (_moved_below(slot.path, file) for file in volume.uncommitted())

    async def commit_all(
        self, on_wait: Callable[[list[Uncommitted]], None] | None = None
    ) -> Sequence[Uncommitted]:
        """Commit everything, all volumes side by side; return what could not be."""

        def tell(_: list[Uncommitted]) -> None:
            if on_wait is not None:
                on_wait(self.uncommitted())

        running = [
            Pending(self._nursery, partial(volume.commit_all, tell))
            for _, volume in self._levels.open_volumes()
        ]
        for pending in running:
            await pending.ended()
        return self.uncommitted()


def _moved_below(above: str, file: Uncommitted) -> Uncommitted:
    return replace(file, path=f"{above}/{file.path}")
