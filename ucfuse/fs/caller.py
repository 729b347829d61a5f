"""The words in which the kernel adapter and the file system talk about one request.

`kernel` fills `Caller` and `OpenIntent` and implements `DescriptorProbe`; `VolumeFilesystem` reads
them and answers with `DirectoryEntry` and `Uncommitted`. Plain data: no I/O, no clock.
"""

from dataclasses import dataclass
from typing import Protocol

from ucfuse.volume import Attributes, InodeNo

__all__ = ["Caller", "Described", "DescriptorProbe", "DirectoryEntry", "OpenIntent", "Uncommitted"]


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, and since when.

    `thread` is the thread id of the program, 0 when it lives in another pid namespace.
    `arrived_at` is the trio clock when the request was read from the kernel.
    """

    thread: int
    arrived_at: float


@dataclass(frozen=True, slots=True)
class OpenIntent:
    """What open(2) was asked for, from its flags."""

    readable: bool
    writable: bool
    truncate: bool
    append: bool
    exclusive: bool


@dataclass(frozen=True, slots=True)
class DirectoryEntry:
    """One name of a listing; `next_id` is where a listing that stops after it goes on."""

    name: str
    attributes: Attributes
    next_id: int


@dataclass(frozen=True, slots=True)
class Uncommitted:
    """A file with bytes that the store does not have yet; `error` says why the last try failed."""

    path: str
    bytes: int
    age_s: float
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """What is known of one inode, for people. `source` and `etag` are the store's names."""

    path: str
    source: str | None
    """None: nothing in a store, but a directory above the volumes."""
    etag: str | None = None
    """None: a directory, or the store does not have what the file shows."""
    size: int = 0
    mtime_s: int | None = None
    has_name: bool = True
    """Whether the name still means it: False of an open file that was replaced or removed."""
    handle_count: int = 0
    uncommitted: Uncommitted | None = None


class DescriptorProbe(Protocol):
    """Who still holds a file open: the kernel tells of every close, but not which is the last."""

    def opener_of(self, thread: int) -> int | None:
        """Return the process that this thread belongs to; None: it cannot be told."""

    def program_of(self, thread: int) -> str | None:
        """Return the name of the program that this thread or process runs; None: it is gone."""

    def count_writable(self, opener: int, number: InodeNo) -> int | None:
        """Return how many descriptors of process `opener` are open for writing on this inode.

        Only descriptors on this mount count. None: it cannot be told.
        """
