"""Commits: making what was written the object in the store, under a condition.

`fs` commits at fsync, at a program's last close, and where a change has no close (truncate by
path). Every commit is conditional, so that nobody's version is replaced unseen: an *update* keeps
bytes of its base and fails if the base is gone; a *replacement* has all bytes new, and the last
writer wins. `upload` moves the bytes and `store` repeats requests; this module decides what a
failed condition means.

Concurrency: a commit holds the claim on its key, then the lock of the content. Other commits of
the key, renames and unlinks wait for the claim, writes for the lock.
"""

import logging
import random

import trio

from ucfuse.errors import (
    AlreadyExists,
    ObjectChanged,
    ObjectMissing,
    StagingFull,
    StoreUnavailable,
    VolumeError,
)
from ucfuse.fs.file_content import FileContent
from ucfuse.fs.services import Services
from ucfuse.names.inodes import Fate
from ucfuse.store.api import ABSENT, Condition
from ucfuse.tasks import deadline
from ucfuse.volume import Key, ObjectInfo

__all__ = ["Commits", "lost_before"]

log = logging.getLogger(__name__)

# Between tries to replace a version while others do the same, drawn up to this long.
FIRST_PAUSE_S = 0.01
LONGEST_PAUSE_S = 1.0


class Commits:
    """The commit side of `VolumeFilesystem`."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def commit(self, content: FileContent) -> None:
        """Bring the file's bytes to the store; nothing to do if it is clean.

        Raises `ObjectChanged` if an update lost (for ever), any other cause if this try failed:
        the bytes then stay, and the next fsync or close tries again.
        """
        if not content.is_dirty:
            return
        self._services.contents.pin(content.file)
        try:
            async with self._services.claim_of(content.file), content.lock:
                await self.commit_claimed(content)
        finally:
            self._services.contents.unpin(content.file)

    async def commit_claimed(self, content: FileContent) -> None:
        """Commit while claim and lock are held."""
        if not content.is_dirty or content.file.fate is Fate.UNLINKED:
            return
        if content.has_conflict:
            raise lost_before(content)
        if content.refusal is not None:
            raise content.refusal.again()
        tried, began = content.change_count, trio.current_time()
        try:
            if content.refused:
                raise StagingFull(content.file.path, "bytes were refused: write again or truncate")
            version = await self._upload(content)
        except VolumeError as cause:
            content.tried_count = tried
            raise await self._failed(content, cause) from cause
        self._services.superblock.committed(content.file, version, began)
        self._services.contents.committed(content)

    async def _upload(self, content: FileContent) -> ObjectInfo:
        """Send the bytes; a replacement goes on until no other writer comes in between."""
        key = self._services.superblock.key(content.file)
        upload, base = content.upload, content.base
        assert upload is not None
        condition: Condition = base.etag if base is not None else ABSENT
        pause_s = FIRST_PAUSE_S
        give_up_at = trio.current_time() + self._services.config.commit_timeout_s
        ours = await self._found_ours(content, key)
        while ours is None:
            try:
                return await upload.commit(key, condition, base)
            except ObjectMissing as cause:
                raise ObjectChanged(key, "the version that it grew from was deleted") from cause
            except ObjectChanged as cause:
                if not self._overrides(content):
                    raise
                if trio.current_time() > give_up_at:
                    raise StoreUnavailable(key, "other writers came first each time") from cause
            await trio.sleep(pause_s * random.random())
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            condition = await self._present_version(key)
        return ours

    def _overrides(self, content: FileContent) -> bool:
        """Whether the file goes over a version from elsewhere: the last writer wins."""
        always = self._services.config.conditional_always
        return content.is_replacement and not content.must_be_new and not always

    async def _found_ours(self, content: FileContent, key: Key) -> ObjectInfo | None:
        """Return the store's version if an earlier try of the same bytes made it after all."""
        if content.tried_count != content.change_count or content.upload is None:
            return None
        return await content.upload.find_committed(key)

    async def _present_version(self, key: Key) -> Condition:
        try:
            with deadline(self._services.config.commit_timeout_s, key):
                return (await self._services.store.head(key)).info.etag
        except ObjectMissing:
            return ABSENT

    async def _failed(self, content: FileContent, cause: VolumeError) -> VolumeError:
        """Keep the bytes for the user or the next try; return the cause to answer."""
        if isinstance(cause, ObjectChanged) and content.must_be_new:
            cause = AlreadyExists(content.file.path, "created elsewhere meanwhile")
        content.error = cause
        if content.refused and content.is_replacement:
            return cause  # nothing of it will be kept
        staging, entry = content.staging, content.entry
        assert staging is not None
        assert entry is not None
        if content.has_conflict:
            reason = f"not committed, because another version is in the store ({cause})"
            if content.has_own_bytes:
                staging.keep(reason)
        else:
            reason = f"not committed: {cause}"
            log.warning(
                "%s: %s. The bytes are in %s; the next fsync or close tries again",
                content.file.path,
                reason,
                staging.path,
            )
        if content.has_own_bytes:
            await entry.promise(reason)
        if content.has_conflict:
            self._services.superblock.superseded(content.file)
        return cause


def lost_before(content: FileContent) -> VolumeError:
    """Return the cause of every further request on a file whose commit met a conflict."""
    kind = AlreadyExists if isinstance(content.error, AlreadyExists) else ObjectChanged
    return kind(content.file.path, "lost against another version before")
