"""Opens the two ends of a copy, and finds out what there is to copy: one file, or a directory.

`copy_commands` uses it, `copy_stores` connects. Everything that cannot work is said here, in one
line, before anything is copied.
"""

import os
import stat
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import trio

from ucfuse.budget import MemoryBudget
from ucfuse.cli.copy_ends import End, is_embedded
from ucfuse.cli.copy_stores import Connections
from ucfuse.copying.files import LocalTree
from ucfuse.copying.objects import ObjectTree
from ucfuse.copying.trees import File, Tree
from ucfuse.errors import ConfigError
from ucfuse.store.api import ObjectStore

__all__ = ["Ends", "What", "opened"]


@dataclass(frozen=True, slots=True, kw_only=True)
class What:
    """What is to be copied: the trees, or one `file` of the source under a name in the target.

    `unready`: files that are asked for, and have bytes which are not committed.
    """

    source: Tree
    target: Tree
    file: File | None = None
    target_name: str = ""
    present: File | None = None
    unready: Sequence[str] = ()


@dataclass(slots=True, kw_only=True)
class Ends:
    """Both ends, connected. `has_paths`: names are paths of some file system."""

    source: End
    target: End
    source_store: ObjectStore | None
    target_store: ObjectStore | None
    budget: MemoryBudget

    @property
    def has_paths(self) -> bool:
        ends = (self.source, self.target)
        return any(end.source is None or end.mountpoint for end in ends)

    async def examine(self, *, recursive: bool, only_directories: bool) -> What:
        """Find out what there is. Raises `ConfigError`: not what was asked for."""
        if recursive and await self._is_directory(self.source):
            return await self._directory()
        if only_directories:
            raise ConfigError(f"{self.source.text}: no such directory; copy a file with `cp`")
        file = await self._file()
        if file is None:
            if await self._is_directory(self.source):
                raise ConfigError(f"{self.source.text}: a directory; copy it with -r")
            raise ConfigError(f"{self.source.text}: no such file or directory")
        if recursive and file.name == self.source.name and self.source.names_directory:
            raise ConfigError(f"{self.source.text}: not a directory")
        return await self._one(file)

    # --- a directory -------------------------------------------------------------------------

    async def _directory(self) -> What:
        self._refuse_overlap()
        target = self.target
        if target.source is None and target.path.exists() and not target.path.is_dir():
            raise ConfigError(f"{target.text}: not a directory")
        if target.source is None:
            _require_writable(_existing(target.path))
        source = self._tree(self.source, self.source_store, self.source.name, self.source.path)
        onto = self._tree(target, self.target_store, target.name, target.path)
        unready = sorted(source.dirty) if isinstance(source, ObjectTree) else ()
        return What(source=source, target=onto, unready=unready)

    def _refuse_overlap(self) -> None:
        """Raise `ConfigError` if one is inside the other."""
        source, target = self.source, self.target
        if source.source is None or target.source is None:
            return
        if source.store.address != target.store.address:
            return
        paths = [
            f"{end.source.prefix}{_directory(end.name)}"
            for end in (source, target)
            if end.source is not None
        ]
        if paths[0].startswith(paths[1]) or paths[1].startswith(paths[0]):
            raise ConfigError(f"{target.text}: the same place as {source.text}, or inside of it")

    def _tree(self, end: End, store: ObjectStore | None, name: str, path: Path) -> Tree:
        """Return the tree of the directory that an end names."""
        if end.source is None:
            return LocalTree(path)
        assert store is not None
        directory = _directory(name)
        return ObjectTree(
            store,
            str(end.source.bucket),
            end.source.prefix + directory,
            has_paths=self.has_paths,
            dirty=[
                name.removeprefix(directory) for name in end.dirty if name.startswith(directory)
            ],
        )

    # --- one file ----------------------------------------------------------------------------

    async def _file(self) -> File | None:
        if self.source.names_directory:
            return None
        tree = self._parent(self.source, self.source_store)
        name = _base(self.source)
        return tree.find(name) if isinstance(tree, LocalTree) else await tree.find(name)

    async def _one(self, file: File) -> What:
        target = self.target
        if target.names_directory or await self._is_directory(target):
            target = replace(
                target,
                name=f"{_directory(target.name)}{_base(self.source)}",
                path=target.path / _base(self.source),
                text=f"{target.text.rstrip('/')}/{_base(self.source)}",
            )
        if target.source is None:
            _require_writable(target.path.parent)
        source = self._parent(self.source, self.source_store)
        onto = self._parent(target, self.target_store)
        name = _base(target)
        present = onto.find(name) if isinstance(onto, LocalTree) else await onto.find(name)
        self._refuse_same(source, file.name, onto, name)
        if reason := onto.refusal(name):
            raise ConfigError(f"{target.text}: {reason}")
        unready = (
            [file.name] if isinstance(source, ObjectTree) and file.name in source.dirty else []
        )
        if unready:
            raise ConfigError(f"{self.source.text}: it has bytes that are not committed; close it")
        return What(source=source, target=onto, file=file, target_name=name, present=present)

    def _refuse_same(self, source: Tree, name: str, target: Tree, target_name: str) -> None:
        if not isinstance(source, ObjectTree) or not isinstance(target, ObjectTree):
            return
        is_one_bucket = self.source.store.address == self.target.store.address
        if is_one_bucket and source.key(name) == target.key(target_name):
            raise ConfigError(f"{self.target.text}: the same file as {self.source.text}")

    def _parent(self, end: End, store: ObjectStore | None) -> LocalTree | ObjectTree:
        """Return the tree of the directory that a file is in."""
        directory, slash, _ = end.name.rpartition("/")
        tree = self._tree(end, store, directory + slash, end.path.parent)
        assert isinstance(tree, LocalTree | ObjectTree)
        return tree

    async def _is_directory(self, end: End) -> bool:
        if end.source is None:
            return _is_local_directory(end.path)
        tree = self._tree(end, self._store_of(end), end.name, end.path)
        assert isinstance(tree, ObjectTree)
        return not end.name or await tree.has_directory("")

    def _store_of(self, end: End) -> ObjectStore | None:
        return self.source_store if end is self.source else self.target_store


@asynccontextmanager
async def opened(
    source: End,
    target: End,
    *,
    memory_bytes: int,
    most_requests: int,
    nursery: trio.Nursery,
) -> AsyncIterator[Ends]:
    """Connect what is in a bucket, each store once. Raises `ConfigError`."""
    stores = Connections(most_requests, nursery)
    try:
        # The credentials of the embedded store go to the environment, so it comes last.
        if is_embedded(source):
            target, source = await stores.connected(target), await stores.connected(source)
        else:
            source, target = await stores.connected(source), await stores.connected(target)
        await stores.fit(target)
        yield Ends(
            source=source,
            target=target,
            source_store=stores.of(source),
            target_store=stores.of(target),
            budget=MemoryBudget(memory_bytes),
        )
    finally:
        with trio.CancelScope(shield=True):
            await stores.aclose()


def _directory(name: str) -> str:
    return name if not name or name.endswith("/") else name + "/"


def _base(end: End) -> str:
    return end.path.name if end.source is None else end.name.rpartition("/")[2]


def _existing(path: Path) -> Path:
    """Return the path, or the next above it that exists."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def _require_writable(directory: Path) -> None:
    if not directory.is_dir():
        raise ConfigError(f"{directory}: no such directory; create it with: mkdir -p {directory}")
    if not os.access(directory, os.W_OK | os.X_OK):
        raise ConfigError(f"{directory}: no permission to write there")


def _is_local_directory(path: Path) -> bool:
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
