"""What the kernel holds open: file handles and directory handles, by number.

`fs` makes and ends them. A file handle remembers which process opened it, since only that tells
whether a FLUSH is the program's last close.

Concurrency: trio loop only, every method is atomic.
"""

from dataclasses import dataclass

from ucfuse.errors import BadHandle, NotPortable
from ucfuse.fs.file_content import FileContent
from ucfuse.fs.write_order import Sequence
from ucfuse.names.inodes import Directory
from ucfuse.names.listing import Listing
from ucfuse.volume import HandleId, first_number

__all__ = ["DirectoryHandle", "FileHandle", "Handles"]


@dataclass(slots=True, eq=False)
class FileHandle:
    """One open file description. `opener`: the process that opened it for writing, if known."""

    number: HandleId
    content: FileContent
    is_writable: bool
    opener: int | None
    sequence: Sequence
    replaces: bool = False
    """It emptied or made the file, and nothing written through it is committed yet: what is
    written keeps no byte of the version before."""
    is_closed: bool = False
    """Its last descriptor is gone; RELEASE has not come yet."""
    refusal: NotPortable | None = None
    """What a strict mode refused first: so is all that follows, up to the close."""
    program: str | None = None
    """Who did something not portable with it, once asked for."""


@dataclass(slots=True, eq=False)
class DirectoryHandle:
    """One open directory."""

    number: HandleId
    directory: Directory
    listing: Listing


class Handles:
    """All open handles of one volume."""

    def __init__(self, volume_index: int = 0) -> None:
        self._by_number: dict[HandleId, FileHandle | DirectoryHandle] = {}
        self._last_number = first_number(volume_index)

    def __len__(self) -> int:
        return len(self._by_number)

    def add_file(
        self,
        content: FileContent,
        *,
        is_writable: bool,
        opener: int | None,
        starts_at: int | None = 0,
    ) -> FileHandle:
        """Register an open file; `starts_at`: where its writes may begin, see `Sequence`."""
        sequence = Sequence(starts_at)
        handle = FileHandle(self._next_number(), content, is_writable, opener, sequence)
        self._by_number[handle.number] = handle
        return handle

    def add_directory(self, directory: Directory, listing: Listing) -> DirectoryHandle:
        """Register an open directory."""
        handle = DirectoryHandle(self._next_number(), directory, listing)
        self._by_number[handle.number] = handle
        return handle

    def file(self, number: HandleId) -> FileHandle:
        """Return the file handle. Raises `BadHandle`."""
        handle = self._by_number.get(number)
        if isinstance(handle, FileHandle):
            return handle
        raise BadHandle(str(number))

    def writer(self, number: HandleId) -> FileHandle:
        """Return the file handle if it is open for writing. Raises `BadHandle`."""
        handle = self.file(number)
        if handle.is_writable:
            return handle
        raise BadHandle(str(number), "not open for writing")

    def directory(self, number: HandleId) -> DirectoryHandle:
        """Return the directory handle. Raises `BadHandle`."""
        handle = self._by_number.get(number)
        if isinstance(handle, DirectoryHandle):
            return handle
        raise BadHandle(str(number))

    def remove(self, number: HandleId) -> FileHandle | DirectoryHandle:
        """End a handle. Raises `BadHandle`."""
        try:
            return self._by_number.pop(number)
        except KeyError:
            raise BadHandle(str(number)) from None

    def other_writers(self, handle: FileHandle) -> int:
        """Return how many other write handles the same process has open on the same file."""
        return sum(
            1
            for other in self._by_number.values()
            if isinstance(other, FileHandle)
            and other is not handle
            and other.is_writable
            and not other.is_closed
            and other.opener == handle.opener
            and other.content is handle.content
        )

    def is_being_written(self, content: FileContent) -> bool:
        """Whether a program may still write to the file: its last close has not come."""
        return any(
            isinstance(handle, FileHandle)
            and handle.is_writable
            and not handle.is_closed
            and handle.content is content
            for handle in self._by_number.values()
        )

    def _next_number(self) -> HandleId:
        self._last_number += 1
        return HandleId(self._last_number)
