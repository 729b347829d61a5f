"""What the two ends of a copy have in common: files by name, in directories.

Names are paths below the root of a tree, with `/` between; a directory's ends in `/`, that of the
root is empty.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ucfuse.store.api import Buffer, Bytes
from ucfuse.volume import ETag
from ucfuse.writing.parts import Part

__all__ = ["Draft", "File", "Page", "Trouble", "Tree"]


@dataclass(frozen=True, slots=True)
class File:
    """One file as a listing showed it. Nothing is written over it unless it still is that.

    `etag` is an object's version, `stamp` that of a local file: whatever changes with it.
    """

    name: str
    size: int
    mtime_ns: int
    etag: ETag | None = None
    stamp: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something that is not copied, and why."""

    name: str
    reason: str


@dataclass(slots=True)
class Page:
    """Some of what is in a directory. `others` are there, but can be neither file nor directory."""

    files: list[File] = field(default_factory=list)
    directories: list[str] = field(default_factory=list)
    others: list[Trouble] = field(default_factory=list)


class Draft(Protocol):
    """A large file on its way: nothing of it shows before `finish`, nothing stays without."""

    async def write(self, part: Part, body: Buffer) -> None:
        """Take the bytes of one part; several at a time, in any order."""
        ...

    async def finish(self) -> None:
        """Let the file show. Raises `ObjectChanged`: another came to be there meanwhile."""
        ...

    async def abort(self) -> None:
        """Leave nothing behind."""
        ...


class Tree(Protocol):
    """One end of a copy."""

    def describe(self, name: str) -> str:
        """Return what people call it."""
        ...

    def pages(self, directory: str) -> AsyncIterator[Page]:
        """Yield all that is in a directory; nothing if it is not there."""
        ...

    async def read(self, file: File, start: int, stop: int) -> Bytes:
        """Return bytes of exactly this version of the file. Raises `ObjectChanged`."""
        ...

    def refusal(self, name: str) -> str | None:
        """Say why nothing can be written by this name; None: it can."""
        ...

    async def put(self, name: str, file: File, body: Buffer, present: File | None) -> None:
        """Write a file whole, where `present` is (None: nothing). Raises `ObjectChanged`."""
        ...

    def draft(self, name: str, file: File, present: File | None) -> Draft:
        """Begin to write a file in the parts of `parts`."""
        ...

    def parts(self, size: int) -> Sequence[Part]:
        """Return the parts in which a file of this size is written."""
        ...

    async def make_directory(self, name: str, *, is_empty: bool) -> None:
        """Let the directory be there, if it needs to be before its files are."""
        ...

    async def remove(self, entry: File | str) -> None:
        """Remove a file as it was seen, or a directory with all that is in it."""
        ...
