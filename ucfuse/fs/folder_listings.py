"""What `stat` and listings show of the levels above volumes.

`tree` answers with it; `catalog_folders` knows what there is.

Concurrency: trio loop only, any number of listings at once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import trio

from ucfuse.errors import NotADirectory
from ucfuse.fs.caller import Caller, DirectoryEntry
from ucfuse.fs.catalog_folders import Child, Folder, Levels, VolumeSlot
from ucfuse.names.inodes import UNKNOWN_MTIME_NS
from ucfuse.volume import Attributes, HandleId

__all__ = ["FolderListings", "shown"]


async def shown(child: Child, valid_s: float, caller: Caller) -> Attributes:
    """Return the attributes of what has a name above all volumes; opens none."""
    if isinstance(child, VolumeSlot) and child.fs is not None:
        attributes = await child.fs.getattr(child.fs.root, caller)  # from memory: it always exists
        return replace(attributes, valid_s=valid_s)
    is_fixed = isinstance(child, Folder)
    return Attributes(child.number, True, 0, UNKNOWN_MTIME_NS, 2, valid_s, is_fixed=is_fixed)


@dataclass(slots=True, eq=False)
class _Listing:
    """What one opened folder shows, until it is read anew."""

    folder: Folder
    children: Sequence[tuple[str, Child]]
    valid_s: float
    was_read: bool = False


class FolderListings:
    """The folders of one mount that are open for listing. Owner of their handles."""

    def __init__(self, levels: Levels) -> None:
        self._levels = levels
        self._by_handle: dict[HandleId, _Listing] = {}
        self._last_handle = 0

    async def open(self, folder: Folder) -> HandleId:
        """Ask what is in a folder, and return the handle to read it by."""
        listing = await self._listing_of(folder)
        self._last_handle += 1
        handle = HandleId(self._last_handle)
        self._by_handle[handle] = listing
        return handle

    async def read(self, handle: HandleId, start: int) -> Iterator[DirectoryEntry]:
        """Return the entries from position `start` on; asks anew if it is read from the beginning
        once more. Raises `NotADirectory`."""
        listing = self._by_handle.get(handle)
        if listing is None:
            raise NotADirectory(str(handle))
        if start == 0 and listing.was_read:
            listing = self._by_handle[handle] = await self._listing_of(listing.folder)
        listing.was_read = True
        nobody = Caller(0, trio.current_time())
        entries = [
            (name, await shown(child, listing.valid_s, nobody))
            for name, child in listing.children[start:]
        ]
        return iter([DirectoryEntry(*each, at) for at, each in enumerate(entries, start + 1)])

    def close(self, handle: HandleId) -> None:
        """End a listing."""
        self._by_handle.pop(handle, None)

    async def _listing_of(self, folder: Folder) -> _Listing:
        return _Listing(folder, *await self._levels.list(folder))
