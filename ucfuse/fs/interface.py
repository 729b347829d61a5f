"""What the kernel adapter and `mount` ask of a file system: one volume, or a tree of them.

`VolumeFilesystem` is one volume and says what each operation promises; `VolumeTree` puts many
below virtual directories. Whoever calls them need not know which it is.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Never, Protocol

from ucfuse.fs.caller import Caller, Described, DirectoryEntry, OpenIntent, Uncommitted
from ucfuse.store.api import Buffer
from ucfuse.volume import Attributes, HandleId, InodeNo

__all__ = ["MountedFilesystem"]


class MountedFilesystem(Protocol):
    """Every operation on a mount. All raise only causes from `errors.py`."""

    async def require_changes(self, number: InodeNo) -> None:
        """Raise the cause unless what has this number may be changed by those who have the right.

        Raises `ReadOnlyVolume`, `NotSupported`, or why it cannot be known.
        """

    async def lookup(self, parent: InodeNo, name: str, caller: Caller) -> Attributes: ...

    async def getattr(self, number: InodeNo, caller: Caller) -> Attributes: ...

    async def set_size(
        self, number: InodeNo, size: int, handle: HandleId | None, caller: Caller
    ) -> Attributes: ...

    async def mknod(self, parent: InodeNo, name: str, caller: Caller) -> Attributes: ...

    async def mkdir(self, parent: InodeNo, name: str, caller: Caller) -> Attributes: ...

    async def link(
        self, number: InodeNo, parent: InodeNo, name: str, caller: Caller
    ) -> Attributes: ...

    async def symlink(self, parent: InodeNo, name: str, caller: Caller) -> Never: ...

    async def unlink(self, parent: InodeNo, name: str, caller: Caller) -> None: ...

    async def rmdir(self, parent: InodeNo, name: str, caller: Caller) -> None: ...

    async def rename(
        self,
        old_parent: InodeNo,
        old_name: str,
        new_parent: InodeNo,
        new_name: str,
        *,
        no_replace: bool,
        caller: Caller,
    ) -> None: ...

    def describe(self, number: InodeNo) -> Described:
        """Return what is known of an inode now; asks nobody. Raises `StaleName`."""

    def remember(self, number: InodeNo) -> None: ...

    def forget(self, number: InodeNo, count: int) -> None: ...

    def end_ticket(self, thread: int) -> None: ...

    def end_lookup(self, thread: int) -> None: ...

    async def open(self, number: InodeNo, intent: OpenIntent, caller: Caller) -> HandleId: ...

    async def create(
        self, parent: InodeNo, name: str, intent: OpenIntent, caller: Caller
    ) -> tuple[HandleId, Attributes]: ...

    async def read(self, handle: HandleId, offset: int, length: int) -> Buffer: ...

    async def write(self, handle: HandleId, offset: int, data: Buffer) -> int: ...

    async def flush(self, handle: HandleId) -> None: ...

    async def fsync(self, handle: HandleId) -> None: ...

    async def release(self, handle: HandleId) -> None: ...

    async def opendir(self, number: InodeNo, caller: Caller) -> HandleId: ...

    async def readdir(self, handle: HandleId, start: int) -> Iterator[DirectoryEntry]: ...

    async def releasedir(self, handle: HandleId) -> None: ...

    async def replay(self, patience_s: float) -> None: ...

    def uncommitted(self) -> list[Uncommitted]: ...

    async def commit_all(
        self, on_wait: Callable[[list[Uncommitted]], None] | None = None
    ) -> Sequence[Uncommitted]: ...
