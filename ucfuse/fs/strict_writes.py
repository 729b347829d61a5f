"""Changes of a file's bytes that are not portable, and what a strict mode makes of them.

`VolumeFilesystem` and `writes` ask here before bytes change. What a strict mode has refused to a
handle stays refused: every later write, fsync and close of it fails alike, so that no program
takes half a file for a whole one. If the handle had written before, nothing of the file is
committed any more; `writes` drops it with its last handle.

Concurrency: trio loop only, every method is atomic.
"""

from ucfuse.errors import NotPortable
from ucfuse.fs.caller import Caller, OpenIntent
from ucfuse.fs.file_content import FileContent
from ucfuse.fs.handles import FileHandle
from ucfuse.fs.portability_log import Portability
from ucfuse.portability import Operation

__all__ = ["Ordering", "raise_refusal"]


class Ordering:
    """Watches over the order of writes; has no state of its own."""

    def __init__(self, portability: Portability) -> None:
        self._portability = portability

    def before_open(self, content: FileContent, intent: OpenIntent, caller: Caller) -> int | None:
        """Return where the writes of the new handle may begin, see `Sequence`."""
        if intent.truncate or content.size == 0:
            return 0
        if not intent.append:
            return None
        program = self._portability.program_of(caller.thread)
        self._portability.meet(Operation.APPEND, content.file.path, program)
        return content.size

    def before_write(self, handle: FileHandle, offset: int) -> None:
        """Raise `NotPortable` unless a write at `offset` is fine."""
        raise_refusal(handle)
        content = handle.content
        if content.refusal is not None:
            raise content.refusal.again()
        operation = handle.sequence.judge(offset, content.size)
        if operation is not None:
            self._meet(operation, handle)

    def before_resize(
        self, content: FileContent, size: int, handle: FileHandle | None, caller: Caller
    ) -> None:
        """Raise `NotPortable` unless the file may get this size. Nothing, or no change, is fine."""
        if handle is not None:
            raise_refusal(handle)
        if content.refusal is not None:
            raise content.refusal.again()
        if size in (0, content.size):
            return
        operation = Operation.SPARSE if size > content.size else Operation.SHORTEN
        if handle is not None:
            self._meet(operation, handle)
        else:
            program = self._portability.program_of(caller.thread)
            self._portability.meet(operation, content.file.path, program)

    def _meet(self, operation: Operation, handle: FileHandle) -> None:
        if handle.program is None:
            handle.program = self._portability.program_of(handle.opener)
        content = handle.content
        try:
            self._portability.meet(operation, content.file.path, handle.program)
        except NotPortable as refusal:
            handle.refusal = refusal.again()
            if content.is_dirty and (handle.replaces or handle.sequence.has_begun):
                content.refusal = refusal.again()
            raise


def raise_refusal(handle: FileHandle) -> None:
    """Raise `NotPortable` if something was refused to this handle before."""
    if handle.refusal is not None:
        raise handle.refusal.again()
