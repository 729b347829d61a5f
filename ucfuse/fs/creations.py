"""Making names: create, mknod and mkdir.

Each holds the claim on its key, so it waits for a commit or rename of the same name and keeps
later ones waiting. The store decides who gets a name that must be new.
"""

import secrets
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import trio

from ucfuse.errors import AlreadyExists, ObjectChanged
from ucfuse.fs.file_content import FileContent
from ucfuse.fs.services import Services
from ucfuse.names.inodes import Directory, File
from ucfuse.store.api import ABSENT
from ucfuse.tasks import deadline
from ucfuse.volume import ETag, Key, ObjectInfo

__all__ = ["CREATE_METADATA", "Creations"]

# The only metadata that is ever written: it tells a lost answer from a lost race, and is gone
# with the first commit.
CREATE_METADATA = "ucfuse-create"


class Creations:
    """The part of `VolumeFilesystem` that makes files and directories."""

    def __init__(
        self, services: Services, new_nonce: Callable[[], str] = secrets.token_hex
    ) -> None:
        self._services = services
        self._new_nonce = new_nonce

    async def create_file(self, parent: Directory, name: str, *, exclusive: bool) -> FileContent:
        """Make a file that is not in the store yet, except for the placeholder of `exclusive`.

        Raises `AlreadyExists` if the name is taken, here or in the store.
        """
        services = self._services
        takes_name = exclusive and not services.config.exclusive_at_close
        async with self._claim_file(parent, name):
            self._refuse_taken(parent, name)
            key = self._key(parent, name)
            nonce = self._new_nonce() if takes_name else None
            staging, entry = services.contents.prepare(key, key, nonce)
            try:
                placeholder = await self._take_name(key, nonce) if nonce is not None else None
            except BaseException as cause:
                staging.close()
                if isinstance(cause, AlreadyExists):
                    entry.dropped()
                raise
            file = services.superblock.created(parent, name, placeholder)
            content = services.contents.begin_new(file, staging, entry)
            content.has_placeholder = takes_name
            content.must_be_new = exclusive and not takes_name
            return content

    async def make_node(self, parent: Directory, name: str) -> File:
        """Make an empty file that is in the store at once. Raises `AlreadyExists`."""
        superblock = self._services.superblock
        async with self._claim_file(parent, name):
            self._refuse_taken(parent, name)
            began, key = trio.current_time(), self._key(parent, name)
            etag = await self._put_new(key, metadata=None)
            file = superblock.created(parent, name, None)
            superblock.committed(file, ObjectInfo(key, 0, etag, None), began)
        return file

    async def make_directory(self, parent: Directory, name: str) -> Directory:
        """Make a directory by its marker. Raises `AlreadyExists`."""
        superblock = self._services.superblock
        async with self._services.claim_on(parent, name):
            self._refuse_taken(parent, name)
            await self._put_new(superblock.marker_below(parent, name), metadata=None)
            return superblock.made_directory(parent, name)

    def _refuse_taken(self, parent: Directory, name: str) -> None:
        if self._services.superblock.known(parent, name) is not None:
            raise AlreadyExists(self._key(parent, name))

    async def _take_name(self, key: Key, nonce: str) -> ObjectInfo:
        etag = await self._put_new(key, metadata={CREATE_METADATA: nonce})
        return ObjectInfo(key, 0, etag, None)

    async def _put_new(self, key: Key, *, metadata: dict[str, str] | None) -> ETag:
        try:
            with deadline(self._services.config.metadata_timeout_s, key):
                return await self._services.store.put(key, b"", condition=ABSENT, metadata=metadata)
        except ObjectChanged as cause:
            raise AlreadyExists(key) from cause

    def _claim_file(self, parent: Directory, name: str) -> AbstractAsyncContextManager[object]:
        return self._services.claims.hold_current(lambda: (self._key(parent, name),))

    def _key(self, parent: Directory, name: str) -> Key:
        return self._services.superblock.key_below(parent, name)
