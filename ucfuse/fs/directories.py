"""Reading directories: opendir, readdir, closedir.

`readdir` answers with what is at hand and waits only where nothing is, so that programs see the
first page of a huge directory while the store still makes up the next one.
"""

from collections.abc import Iterator

from ucfuse.fs.attributes import attributes_of, lacks_mtime, learn_mtime
from ucfuse.fs.caller import DirectoryEntry
from ucfuse.fs.services import Services
from ucfuse.names.inodes import Directory
from ucfuse.names.listing import Listing
from ucfuse.tasks import deadline
from ucfuse.volume import HandleId

__all__ = ["Directories"]


class Directories:
    """The part of `VolumeFilesystem` that reads directories."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def open(self, directory: Directory) -> HandleId:
        """Open a directory for listing."""
        services = self._services
        ttl_s = services.config.metadata_ttl_s
        listing = Listing(services.superblock, services.store, directory, ttl_s)
        return services.handles.add_directory(directory, listing).number

    async def read(self, handle: HandleId, start: int) -> Iterator[DirectoryEntry]:
        """Wait for entries from position `start` on; return those at hand, none at the end.

        To be used before the next await.
        """
        opened, position = self._services.handles.directory(handle), start
        listing = opened.listing
        with deadline(self._services.config.metadata_timeout_s, "readdir"):
            while await listing.reaches(position):
                first = next(listing.at_hand(position))
                if not lacks_mtime(first.node):
                    return self._shown(listing, position)
                await learn_mtime(self._services, first.node)
                if self._services.superblock.known(opened.directory, first.name) is first.node:
                    return self._shown(listing, position)
                position = first.next_position  # it was replaced or removed meanwhile
        return iter(())

    def close(self, handle: HandleId) -> None:
        """End the listing of a directory."""
        self._services.handles.remove(handle)

    def _shown(self, listing: Listing, start: int) -> Iterator[DirectoryEntry]:
        for count, entry in enumerate(listing.at_hand(start)):
            if count and lacks_mtime(entry.node):
                return  # the next call asks for it
            attributes = attributes_of(self._services, entry.node)
            yield DirectoryEntry(entry.name, attributes, entry.next_position)
