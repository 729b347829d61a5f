"""Removing names: unlink and rmdir.

Each holds the claim on its key, so it waits for a commit or rename of the same name and keeps
later ones waiting.
"""

import logging
from contextlib import suppress

from ucfuse.errors import (
    DirectoryNotEmpty,
    IsADirectory,
    NotADirectory,
    ObjectChanged,
    StaleName,
    VolumeError,
)
from ucfuse.fs.file_content import FileContent
from ucfuse.fs.services import Services
from ucfuse.names.inodes import Directory, File
from ucfuse.tasks import deadline
from ucfuse.volume import MiB
from ucfuse.writing.transfer import fetch_missing

__all__ = ["Removals"]

log = logging.getLogger(__name__)

# More than programs keep in files that they write and remove; a removal must not take long.
KEEP_BYTES = 8 * MiB


class Removals:
    """The part of `VolumeFilesystem` that takes files and directories away."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def unlink(self, parent: Directory, name: str) -> None:
        """Remove a file. Open handles keep what they have; it is never committed any more."""
        file = await self._services.find(parent, name)
        if not isinstance(file, File):
            raise IsADirectory(file.path)
        self._services.contents.pin(file)
        try:
            async with self._services.claim_of(file):
                await self._remove_file(file)
        finally:
            self._services.contents.unpin(file)

    async def remove_directory(self, parent: Directory, name: str) -> None:
        """Remove an empty directory. Raises `DirectoryNotEmpty`."""
        directory = await self._services.find(parent, name)
        if not isinstance(directory, Directory):
            raise NotADirectory(directory.path)
        async with self._services.claim_of(directory):
            marker = self._services.superblock.key(directory)
            await self.refuse_filled(directory)
            with deadline(self._services.config.metadata_timeout_s, marker):
                await self._services.store.delete(marker)
            self._services.superblock.removed(directory)

    async def refuse_filled(self, directory: Directory) -> None:
        """Raise `DirectoryNotEmpty` if anything is in the directory, here or in the store."""
        marker = self._services.superblock.key(directory)
        if any(child.is_local for child in directory.children.values()):
            raise DirectoryNotEmpty(marker)
        with deadline(self._services.config.metadata_timeout_s, marker):
            page = await self._services.store.list_page(marker, delimited=False, max_keys=2)
        if any(info.key != marker for info in page.objects):
            raise DirectoryNotEmpty(marker)

    async def keep_bytes(self, file: File) -> None:
        """Fetch what an open, changed file has not of its base, which is about to go."""
        content = self._services.contents.known(file)
        if content is None or not content.is_dirty or not content.handle_count:
            return
        base, staging = content.base, content.staging
        if base is None or staging is None or content.has_placeholder:
            return
        async with content.lock:
            missing = sum(hole.stop - hole.start for hole in staging.holes())
            if not 0 < missing <= KEEP_BYTES:
                return
            key, store = self._services.superblock.key(file), self._services.store
            try:
                with deadline(self._services.config.read_timeout_s, key):
                    await fetch_missing(store, staging, key, base, 0, staging.size)
            except VolumeError as cause:
                log.warning("%s: open, and its unread bytes go with its name: %s", key, cause)

    async def drop_placeholder(self, content: FileContent) -> None:
        """Remove the empty object by which O_EXCL took the name, unless another replaced it."""
        if not content.has_placeholder or content.base is None:
            return
        key = self._services.superblock.key(content.file)
        with suppress(ObjectChanged):  # another client put its own object there: that one stays
            await self._services.store.delete(key, if_match=content.base.etag)
        content.base, content.has_placeholder = None, False

    async def _remove_file(self, file: File) -> None:
        superblock, contents = self._services.superblock, self._services.contents
        key, content = superblock.key(file), contents.known(file)
        if not file.has_name:
            raise StaleName(key, "renamed, removed or replaced meanwhile")
        file.bound += 1
        try:
            await self.keep_bytes(file)
            with deadline(self._services.config.metadata_timeout_s, key):
                if content is not None and content.has_placeholder:
                    await self.drop_placeholder(content)
                elif file.version is not None or _may_be_stored(content):
                    await self._services.store.delete(key)
        finally:
            file.bound -= 1
        superblock.removed(file)
        if content is not None:
            contents.unlinked(content)
            if content.handle_count == 0:
                contents.settled(content)


def _may_be_stored(content: FileContent | None) -> bool:
    """Whether an object may be under the key though the inode shows none: a file that was
    renamed over it, or a commit that was carried out although it failed."""
    return content is not None and (content.base is not None or content.tried_count >= 0)
