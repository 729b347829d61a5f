"""The levels above volumes: their directories, and the place of each volume in the numbering.

`tree` asks for names here; what there is, the catalog knows. A directory keeps its number, and a
volume its index, for as long as the mount lives. A volume is opened when something below it is
first asked for; one that is open, and the directories that lead to it, are shown without waiting
for the catalog, which is asked behind that.

Concurrency: trio loop only. Openings and questions behind a lookup run in the nursery passed in.
"""

import logging
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field

import trio

from ucfuse.catalog.interface import Catalog, Place
from ucfuse.errors import NotFound, NotInCatalog, StoreError, VolumeError
from ucfuse.fs.failed_lookups import FailedLookups
from ucfuse.fs.filesystem import VolumeFilesystem
from ucfuse.names.inodes import ROOT_INODE
from ucfuse.tasks import Pending, deadline
from ucfuse.volume import InodeNo, first_number

__all__ = ["FIRST_VOLUME_INDEX", "Child", "Folder", "Levels", "OpenVolume", "VolumeSlot"]

log = logging.getLogger(__name__)

# What has index 0 is virtual.
FIRST_VOLUME_INDEX = 1
VOLUME_DEPTH = 3
# What one program call asks several times fails with the same cause.
SAME_FAILURE_S = 1.0

OpenVolume = Callable[[Place, int], Awaitable[VolumeFilesystem]]
"""Opens the volume of this place, to have this index. Raises only causes from `errors.py`."""


@dataclass(slots=True, eq=False)
class Folder:
    """A virtual directory: the root, a catalog or a schema. Is never dropped."""

    number: InodeNo
    place: Place
    parent: "Folder | None"
    children: "dict[str, Child]" = field(default_factory=dict)
    """As far as this mount has been told."""
    leads_to_open: bool = False

    @property
    def path(self) -> str:
        """Path from the mount point, without slashes at the ends."""
        return "/".join(self.place)


@dataclass(slots=True, eq=False)
class VolumeSlot:
    """A volume that was seen: its place among the numbers and, once it is open, its files."""

    index: int
    place: Place
    parent: Folder
    fs: VolumeFilesystem | None = None
    opening: "Pending[VolumeFilesystem] | None" = None
    failure: StoreError | None = None
    failed_at: float = 0.0

    @property
    def number(self) -> InodeNo:
        """The inode number of its topmost directory."""
        return InodeNo(first_number(self.index) + ROOT_INODE)

    @property
    def path(self) -> str:
        """Path from the mount point."""
        return "/".join(self.place)


Child = Folder | VolumeSlot


class Levels:
    """All folders and volumes of a mount that were ever seen."""

    def __init__(
        self,
        catalog: Catalog,
        open_volume: OpenVolume,
        nursery: trio.Nursery,
        *,
        ttl_s: float,
        timeout_s: float,
    ) -> None:
        self._catalog = catalog
        self._open_volume = open_volume
        self._nursery = nursery
        self._ttl_s = ttl_s
        self._timeout_s = timeout_s
        self.root = Folder(ROOT_INODE, (), None)
        self._folders = {ROOT_INODE: self.root}
        self._by_identity: dict[tuple[Place, str], Child] = {}
        self._slots: list[VolumeSlot] = []
        self._failures = FailedLookups(lambda: False)  # a catalog is asked whatever happened
        self._renewing: set[Place] = set()

    # --- by number ---------------------------------------------------------------------------

    def folder(self, number: int) -> Folder | None:
        """Return the folder of an inode number; None: there is none."""
        return self._folders.get(InodeNo(number))

    def slot(self, index: int) -> VolumeSlot:
        """Return the volume of an index that was given to one."""
        return self._slots[index - FIRST_VOLUME_INDEX]

    def open_volumes(self) -> Iterator[tuple[VolumeSlot, VolumeFilesystem]]:
        """Yield the volumes that are open."""
        for slot in self._slots:
            if slot.fs is not None:
                yield slot, slot.fs

    # --- by name -----------------------------------------------------------------------------

    async def find(self, folder: Folder, name: str) -> tuple[Child, float]:
        """Return what a name is, and for how many seconds that may be shown.

        Raises `NotFound`, or why the catalog cannot tell.
        """
        child = folder.children.get(name)
        place = (*folder.place, name)
        if child is not None and _leads_to_open(child):
            self._renew_behind(folder, place)
            return child, self._ttl_s
        with self._failures.asking(folder), deadline(self._timeout_s, "/".join(place)):
            return await self._ask(folder, place)

    async def list(self, folder: Folder) -> tuple[list[tuple[str, Child]], float]:
        """Return everything in a folder, and for how many seconds that may be shown."""
        with self._failures.asking(folder), deadline(self._timeout_s, folder.path or "/"):
            names = await self._catalog.names(folder.place)
        found = [
            (name, self._place(folder, (*folder.place, name), identity))
            for name, identity in names.identities.items()
        ]
        folder.children = dict(found)
        return found, min(names.valid_s, self._ttl_s)

    async def _ask(self, folder: Folder, place: Place) -> tuple[Child, float]:
        try:
            found = await self._catalog.find(place)
        except NotFound as cause:
            if folder.children.pop(place[-1], None) is None:
                raise
            raise NotInCatalog("/".join(place), cause.detail or "it is gone") from cause
        return self._place(folder, place, found.identity), min(found.valid_s, self._ttl_s)

    def _place(self, folder: Folder, place: Place, identity: str) -> Child:
        """Return the child of this identity, which is new if it was never seen."""
        known = (place, identity if len(place) == VOLUME_DEPTH else "")
        child = self._by_identity.get(known)
        if child is None:
            child = self._by_identity[known] = self._new_child(folder, place)
        folder.children[place[-1]] = child
        return child

    def _new_child(self, folder: Folder, place: Place) -> Child:
        if len(place) == VOLUME_DEPTH:
            slot = VolumeSlot(len(self._slots) + FIRST_VOLUME_INDEX, place, folder)
            self._slots.append(slot)
            return slot
        number = InodeNo(ROOT_INODE + len(self._folders))
        child = self._folders[number] = Folder(number, place, folder)
        return child

    # --- what leads to an open volume --------------------------------------------------------

    def _renew_behind(self, folder: Folder, place: Place) -> None:
        if place not in self._renewing and not self._catalog.knows(place):
            self._renewing.add(place)
            self._nursery.start_soon(self._renew, folder, place)

    async def _renew(self, folder: Folder, place: Place) -> None:
        try:
            with deadline(self._timeout_s, "/".join(place)):
                await self._ask(folder, place)
        except VolumeError as cause:  # what is open stays usable; a name that is gone was dropped
            log.debug("%s: the catalog does not confirm it: %s", "/".join(place), cause)
        finally:
            self._renewing.discard(place)

    # --- opening -----------------------------------------------------------------------------

    async def opened(self, slot: VolumeSlot) -> VolumeFilesystem:
        """Return the files of a volume, which is opened if it is not. Raises why it cannot be."""
        if slot.fs is not None:
            return slot.fs
        if slot.failure is not None and trio.current_time() < slot.failed_at + SAME_FAILURE_S:
            raise type(slot.failure)(slot.failure.subject, slot.failure.detail)
        if slot.opening is None:
            slot.opening = Pending(self._nursery, lambda: self._open(slot), until=float("inf"))
        with deadline(self._timeout_s, slot.path):
            return await slot.opening.wait()

    async def _open(self, slot: VolumeSlot) -> VolumeFilesystem:
        try:
            slot.fs = await self._open_volume(slot.place, slot.index)
        except StoreError as cause:
            slot.failure, slot.failed_at = cause, trio.current_time()
            raise
        finally:
            slot.opening = None
        above: Folder | None = slot.parent
        while above is not None:
            above.leads_to_open = True
            above = above.parent
        return slot.fs

    def place_open(self, place: Place, identity: str, volume: VolumeFilesystem) -> None:
        """Take in a volume that is open from the start, and was built with the next index."""
        folder = self.root
        for depth in range(1, len(place)):
            child = self._place(folder, place[:depth], "")
            assert isinstance(child, Folder)
            child.leads_to_open = True
            folder = child
        slot = self._place(folder, place, identity)
        assert isinstance(slot, VolumeSlot)
        slot.fs = volume


def _leads_to_open(child: Child) -> bool:
    return child.fs is not None if isinstance(child, VolumeSlot) else child.leads_to_open
