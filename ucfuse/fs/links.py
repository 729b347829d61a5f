"""Hard links as copies: a second object with the same bytes, made only if its name is free.

Programs publish a file by linking it to its final name: of many that do, one must win, on
whichever host they are. The store decides that, so a link here is a conditional copy inside the
store; where that ignores the condition of a copy, a small file goes through here, and a large one
is copied by an upload. It is not a second name of one file: it has an inode of its own, and what
is written to one does not show in the other.
"""

import trio

from ucfuse.errors import AlreadyExists, ObjectChanged, ObjectMissing, StaleName
from ucfuse.fs.commits import Commits
from ucfuse.fs.copies import Copies
from ucfuse.fs.services import Services
from ucfuse.names.inodes import Directory, File
from ucfuse.store.api import ABSENT, IN_FLIGHT_COPIES, Buffer, Fetched
from ucfuse.store.checksums import checksum_of
from ucfuse.store.linking import CopyCondition
from ucfuse.tasks import deadline
from ucfuse.volume import Key, MiB, ObjectInfo

__all__ = ["Links"]

# Of a smaller object the store copies no ranges (S3 UploadPartCopy).
RANGE_SOURCE_BYTES = 5 * MiB


class Links:
    """The part of `VolumeFilesystem` that links files."""

    def __init__(self, services: Services, commits: Commits, copy_condition: CopyCondition) -> None:
        self._services = services
        self._commits = commits
        self._copy_condition = copy_condition
        self._copies = Copies(services)
        self._uploads = Copies(services, limit_bytes=0)

    async def link(self, file: File, parent: Directory, name: str) -> File:
        """Copy what `file` shows to a name that nobody has; what is not stored yet goes first.

        Raises `AlreadyExists`, `NotPermitted` of a store that lets several win, and `StaleName` if
        another version is in the store by now.
        """
        superblock = self._services.superblock

        def keys_now() -> tuple[str, ...]:
            return superblock.key(file), superblock.key_below(parent, name)

        async with self._services.claim_to_copy(file, keys_now):
            source, target = map(Key, keys_now())
            if not file.has_name:
                raise StaleName(source, "removed or replaced meanwhile")
            if superblock.known(parent, name) is not None:
                raise AlreadyExists(target)
            began = trio.current_time()
            copied = await self._copy(await self._stored(file), source, target, file)
            linked = superblock.created(parent, name, None)
            superblock.committed(linked, copied, began)
            return linked

    async def _stored(self, file: File) -> ObjectInfo:
        """Return the version to copy, which has everything that was written so far."""
        content = self._services.contents.known(file)
        if content is not None and content.is_dirty:
            async with content.lock:
                await self._commits.commit_claimed(content)
        if file.version is None:
            raise StaleName(file.path, "lost against another version while it was committed")
        return file.version

    async def _copy(self, version: ObjectInfo, source: Key, target: Key, file: File) -> ObjectInfo:
        shown = ObjectInfo(source, version.size, version.etag, version.mtime_s)
        try:
            return await self._copy_if_absent(shown, target)
        except (ObjectChanged, ObjectMissing) as cause:
            raise await self._copies.why_refused(file, source, target, must_be_new=True) from cause

    async def _copy_if_absent(self, version: ObjectInfo, target: Key) -> ObjectInfo:
        is_ignored = await self._copy_condition.is_ignored()
        if version.size and not is_ignored:
            return await self._copies.copy(version, target, ABSENT)
        if version.size > RANGE_SOURCE_BYTES:
            return await self._uploads.copy(version, target, ABSENT)
        with deadline(self._services.config.commit_timeout_s, target):
            return await self._put_if_absent(version, target)

    async def _put_if_absent(self, version: ObjectInfo, target: Key) -> ObjectInfo:
        """Copy a small file, or an empty one, by its bytes."""
        store, size = self._services.store, version.size
        reservation = await self._services.budget.reserve(size * IN_FLIGHT_COPIES)
        try:
            data: Buffer = b""
            if size:
                fetched = await store.get(version.key, 0, size, if_match=version.etag)
                assert isinstance(fetched, Fetched)
                data = fetched.data
            etag = await store.put(target, data, condition=ABSENT, checksum=checksum_of(data))
        finally:
            reservation.release()
        return ObjectInfo(target, size, etag, None)
