"""Opening files: from an inode, or a free name, to a handle.

`validation` makes sure that the inode shows the newest version; here the handle is made, and
counted with what it belongs to. `VolumeFilesystem` has asked before whether changes are allowed.

Concurrency: trio loop only, any number of opens at once.
"""

from ucfuse.errors import StaleName
from ucfuse.fs.caller import Caller, OpenIntent
from ucfuse.fs.creations import Creations
from ucfuse.fs.file_content import FileContent
from ucfuse.fs.handles import FileHandle
from ucfuse.fs.reads import Reads
from ucfuse.fs.repeats import Repeats
from ucfuse.fs.services import Services
from ucfuse.fs.strict_writes import Ordering
from ucfuse.fs.validation import Asks, Validation
from ucfuse.fs.writes import Writes
from ucfuse.names.inodes import Directory, File

__all__ = ["Opens"]


class Opens:
    """The part of `VolumeFilesystem` that makes handles of files."""

    def __init__(
        self,
        services: Services,
        validation: Validation,
        reads: Reads,
        repeats: Repeats,
        creations: Creations,
        writes: Writes,
        ordering: Ordering,
    ) -> None:
        self._services = services
        self._validation = validation
        self._reads = reads
        self._repeats = repeats
        self._creations = creations
        self._writes = writes
        self._ordering = ordering

    async def open(self, file: File, intent: OpenIntent, caller: Caller) -> FileHandle:
        """Open the newest committed version. Raises `StaleName` if the name means another file."""
        contents, may_change = self._services.contents, intent.writable or intent.truncate
        asks = Asks.NOTHING if intent.truncate else Asks.VERSION if intent.writable else Asks.BYTES
        content = contents.of(file)
        with contents.pinned(file):
            content.changer_count += may_change
            try:
                await self._validation.confirm(file, caller, asks)
                if not may_change:
                    self._reads.push(content)
                starts_at = self._ordering.before_open(content, intent, caller) if may_change else 0
                handle = self._handle(content, intent, caller, starts_at)
                if intent.truncate:
                    await self._writes.truncate_opened(handle)
                return handle
            finally:
                content.changer_count -= may_change

    async def create(
        self, directory: Directory, name: str, intent: OpenIntent, caller: Caller
    ) -> FileHandle:
        """Make a file and open it, or open the one that came into being meanwhile."""
        superblock = self._services.superblock
        key = superblock.key_below(directory, name)
        while True:
            present = superblock.known(directory, name)
            if present is None or intent.exclusive:
                self._repeats.take_ticket(caller, key)
                content = await self._creations.create_file(
                    directory, name, exclusive=intent.exclusive
                )
                handle = self._handle(content, intent, caller, 0)
                handle.replaces = content.is_replacement = not intent.append
                return handle
            try:
                return await self.open(superblock.inodes.file(present.number), intent, caller)
            except StaleName:
                continue  # the name means a newer file by now: that one

    def _handle(
        self, content: FileContent, intent: OpenIntent, caller: Caller, starts_at: int | None
    ) -> FileHandle:
        services = self._services
        opener = services.probe.opener_of(caller.thread) if intent.writable else None
        content.handle_count += 1
        content.writer_count += intent.writable
        services.contents.pin(content.file)
        return services.handles.add_file(
            content, is_writable=intent.writable, opener=opener, starts_at=starts_at
        )
