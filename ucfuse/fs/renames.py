"""Renames: of a file by one copy inside the store, of a directory key by key.

A file of which nothing is in the store yet only changes its key. Any other is committed under its
old name, copied in the store, and the source is deleted if it still is the version that was
copied. A directory: all copies before any delete, so an interruption loses nothing. Open, dirty
and cached children move along, since inodes are known by parent and name.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import groupby

import trio

from ucfuse.errors import (
    AlreadyExists,
    IsADirectory,
    NotADirectory,
    ObjectChanged,
    ObjectMissing,
    StaleName,
)
from ucfuse.fs.commits import Commits
from ucfuse.fs.copies import Copies
from ucfuse.fs.file_content import FileContent
from ucfuse.fs.removals import Removals
from ucfuse.fs.services import Services
from ucfuse.names.inodes import Directory, Fate, File, Node, files_below
from ucfuse.store.api import ABSENT
from ucfuse.tasks import deadline, in_parallel
from ucfuse.volume import DIRECTORY_SUFFIX, Key, ObjectInfo
from ucfuse.writing.patience import Patience

__all__ = ["Renames"]

log = logging.getLogger(__name__)

# Requests at once while a directory moves: small ones, and the store does the work.
MOVE_WIDTH = 32


class Renames:
    """The rename side of `VolumeFilesystem`."""

    def __init__(
        self, services: Services, removals: Removals, commits: Commits, copies: Copies | None = None
    ) -> None:
        self._services = services
        self._copies = copies or Copies(services)
        self._removals = removals
        self._commits = commits

    async def rename(self, node: Node, parent: Directory, name: str, *, no_replace: bool) -> None:
        """Give `node` the name `name` in `parent`, over what has it now."""
        if node.parent is parent and node.name == name:
            return
        if isinstance(node, File):
            await self._rename_file(node, parent, name, no_replace=no_replace)
        else:
            await self._rename_directory(node, parent, name, no_replace=no_replace)

    # --- a file ------------------------------------------------------------------------------

    async def _rename_file(
        self, file: File, parent: Directory, name: str, *, no_replace: bool
    ) -> None:
        services, old_place = self._services, (file.parent, file.name)

        def keys_now() -> tuple[str, ...]:
            superblock = services.superblock
            return superblock.key(file), superblock.key_below(parent, name)

        async with services.claim_to_copy(file, keys_now):
            source, target = map(Key, keys_now())
            if not file.has_name or (file.parent, file.name) != old_place:
                raise StaleName(source, "renamed or removed meanwhile")
            replaced = self._refuse_target(parent, name, no_replace=no_replace)
            if replaced is not None:
                await self._removals.keep_bytes(replaced)
            content = services.contents.known(file)
            if content is not None and content.is_dirty:
                async with content.lock:
                    if await self._move_unsent(content, parent, name, no_replace=no_replace):
                        return
                    await self._commits.commit_claimed(content)
            await self._copy_over(file, source, target, parent, name, no_replace=no_replace)

    def _refuse_target(self, parent: Directory, name: str, *, no_replace: bool) -> File | None:
        present = self._services.superblock.known(parent, name)
        if present is not None and no_replace:
            raise AlreadyExists(present.path)
        if isinstance(present, Directory):
            raise IsADirectory(present.path)
        return present

    async def _move_unsent(
        self, content: FileContent, parent: Directory, name: str, *, no_replace: bool
    ) -> bool:
        """Move a file of which the store has nothing but a placeholder; False if it has more."""
        services = self._services
        if content.base is not None and not content.has_placeholder:
            return False
        if content.tried_count >= 0:
            return False  # a commit may have been carried out although it failed
        if content.upload is None or content.upload.has_begun:
            return False  # parts belong to the old key for ever
        target = services.superblock.key_below(parent, name)
        if no_replace and await self._copies.is_taken(target):
            raise AlreadyExists(name)
        with deadline(services.config.metadata_timeout_s, content.file.path):
            await self._removals.drop_placeholder(content)
        replaced = self._moved(content.file, parent, name)
        content.file.version = None
        content.base = replaced.version if isinstance(replaced, File) else None
        content.is_replacement = True
        self._note_moved(content)
        if content.writer_count == 0:
            await self._commits.commit_claimed(content)
        return True

    async def _copy_over(
        self,
        file: File,
        source: Key,
        target: Key,
        parent: Directory,
        name: str,
        *,
        no_replace: bool,
    ) -> None:
        services, began = self._services, trio.current_time()
        version = file.version
        if version is None:
            raise StaleName(source, "lost against another version while it was committed")
        shown = replace(version, key=source)
        try:
            copied = await self._copies.copy(shown, target, ABSENT if no_replace else None)
        except (ObjectChanged, ObjectMissing) as cause:
            refusal = self._copies.why_refused(file, source, target, must_be_new=no_replace)
            raise await refusal from cause
        # The inode shows the copy before its source goes: reads never find neither.
        async with self._leaving(file):
            self._moved(file, parent, name)
            services.superblock.committed(file, copied, began)
            self._rebase(file, version, copied)
            with deadline(services.config.commit_timeout_s, source):
                await self._delete_source(source, version)

    async def _delete_moved(self, info: ObjectInfo, patience: Patience) -> None:
        with patience.bound(info.key):
            await self._delete_source(info.key, info)

    async def _delete_source(self, key: Key, version: ObjectInfo) -> None:
        try:
            await self._services.store.delete(key, if_match=version.etag)
        except ObjectChanged:
            log.warning("%s: replaced elsewhere during its rename; that version stays", key)

    def _moved(self, node: Node, parent: Directory, name: str) -> Node | None:
        """Change the name in memory; what was there becomes like an unlinked file."""
        old_parent = node.parent
        replaced = self._services.superblock.renamed(node, parent, name)
        if old_parent is not None:
            self._services.superblock.keep_if_empty(old_parent)
        if isinstance(replaced, File):
            content = self._services.contents.known(replaced)
            if content is not None:
                self._services.contents.unlinked(content)
                if content.handle_count == 0:
                    self._services.contents.settled(content)
        return replaced

    def _rebase(self, file: File, version: ObjectInfo, copied: ObjectInfo) -> None:
        """Let what was written while the file moved grow from the copy: it has the same bytes."""
        content = self._services.contents.known(file)
        base = content.base if content is not None and content.is_dirty else None
        if content is not None and base is not None and base.etag == version.etag:
            content.base = copied
            self._note_moved(content)

    def _note_moved(self, content: FileContent) -> None:
        if content.entry is not None:
            content.entry.moved(
                self._services.superblock.key(content.file),
                base_etag=content.base.etag if content.base is not None else None,
                is_replacement=content.is_replacement,
            )

    @asynccontextmanager
    async def _leaving(self, node: Node) -> AsyncIterator[None]:
        """Hide the old name from the block's beginning until its keys are deleted."""
        parent, name = node.parent, node.name
        assert parent is not None
        self._services.superblock.leaves(parent, name)
        try:
            yield
        finally:
            self._services.superblock.left(parent, name)

    # --- a directory -------------------------------------------------------------------------

    async def _rename_directory(
        self, directory: Directory, parent: Directory, name: str, *, no_replace: bool
    ) -> None:
        services, old_place = self._services, (directory.parent, directory.name)

        def keys_now() -> tuple[str, ...]:
            source = services.superblock.key(directory)
            target = services.superblock.marker_below(parent, name)
            return source.removesuffix("/"), source, target.removesuffix("/"), target

        async with services.claim_to_copy(directory, keys_now):
            _, source, _, target = map(Key, keys_now())
            if directory.fate is not Fate.NAMED or (directory.parent, directory.name) != old_place:
                raise StaleName(source, "renamed or removed meanwhile")
            await self._refuse_directory_target(parent, name, no_replace=no_replace)
            await self._commit_below(directory)
            moves = await self._copy_below(source, target)
            async with self._leaving(directory):
                self._moved(directory, parent, name)
                self._show_copies(directory, moves)
                self._take_along(directory)
                await self._delete_sources(list(moves))

    async def _delete_sources(self, infos: list[ObjectInfo]) -> None:
        """Delete files first, then markers from the deepest up, one level after another.

        SeaweedFS keeps a folder for ever whose marker goes before what is in it.
        """
        markers = [info for info in infos if info.key.endswith(DIRECTORY_SUFFIX)]
        files = [info for info in infos if not info.key.endswith(DIRECTORY_SUFFIX)]
        await self._each(files, self._delete_moved)
        for _, level in groupby(sorted(markers, key=_depth, reverse=True), key=_depth):
            await self._each(list(level), self._delete_moved)

    async def _refuse_directory_target(
        self, parent: Directory, name: str, *, no_replace: bool
    ) -> None:
        present = self._services.superblock.known(parent, name)
        if present is None:
            return
        if no_replace:
            raise AlreadyExists(present.path)
        if isinstance(present, File):
            raise NotADirectory(present.path)
        await self._removals.refuse_filled(present)

    async def _commit_below(self, directory: Directory) -> None:
        """Commit what no program has open any more, but an earlier try left uncommitted."""
        for file in list(files_below(directory)):
            content = self._services.contents.known(file)
            if content is not None and content.is_dirty and not content.writer_count:
                async with content.lock:
                    await self._commits.commit_claimed(content)

    def _take_along(self, directory: Directory) -> None:
        """Let files that are being written change their key: what was sent of them goes again."""
        for file in list(files_below(directory)):
            content = self._services.contents.known(file)
            if content is not None and content.is_dirty and content.upload is not None:
                content.upload.abandon_soon(_nothing)
                self._note_moved(content)

    async def _copy_below(self, source: Key, target: Key) -> dict[ObjectInfo, ObjectInfo]:
        """Copy every key below `source`; return what each version became."""
        moves: dict[ObjectInfo, ObjectInfo] = {}

        async def copy(info: ObjectInfo, patience: Patience) -> None:
            to = Key(target + info.key[len(source) :])
            moves[info] = await self._copy_key(info, to, patience)

        await self._each(await self._all_below(source), copy)
        return moves

    async def _copy_key(self, info: ObjectInfo, to: Key, patience: Patience) -> ObjectInfo:
        if info.size == 0 and info.key.endswith(DIRECTORY_SUFFIX):
            # A marker is made anew: SeaweedFS lists it but has no object there to copy.
            with patience.bound(to):
                return ObjectInfo(to, 0, await self._services.store.put(to, b""), None)
        return await self._copies.copy(info, to, None, patience)

    async def _all_below(self, prefix: Key) -> list[ObjectInfo]:
        infos: list[ObjectInfo] = []
        token: str | None = None
        while True:
            with deadline(self._services.config.commit_timeout_s, prefix):
                page = await self._services.store.list_page(prefix, delimited=False, token=token)
            infos.extend(page.objects)
            token = page.next_token
            if token is None:
                return infos

    def _show_copies(self, directory: Directory, moves: dict[ObjectInfo, ObjectInfo]) -> None:
        """Let every known inode below show what its object became."""
        by_key = {copied.key: (info, copied) for info, copied in moves.items()}
        for file in list(files_below(directory)):
            info, copied = by_key.get(self._services.superblock.key(file), (None, None))
            if info is None or copied is None or file.version is None:
                continue
            if file.version.etag == info.etag:
                file.version = copied
                self._rebase(file, info, copied)
            elif not file.is_local:
                self._services.superblock.superseded(file)  # what moved was put there elsewhere

    async def _each(
        self, infos: list[ObjectInfo], work: Callable[[ObjectInfo, Patience], Awaitable[None]]
    ) -> None:
        """Do `work` for every object side by side; give up when none moved for the deadline."""
        patience = Patience(self._services.config.commit_timeout_s)

        async def one(info: ObjectInfo) -> None:
            await work(info, patience)

        await in_parallel(self._services.nursery, one, infos, MOVE_WIDTH)


def _depth(info: ObjectInfo) -> int:
    return info.key.count(DIRECTORY_SUFFIX)


def _nothing() -> None:
    """The upload is left behind; the journal has the next one by now."""
