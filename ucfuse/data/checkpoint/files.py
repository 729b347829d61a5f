"""Writing the files of a checkpoint so that no error is lost and nothing is seen half done.

Works in any POSIX directory: a file is published by `rename`, which takes its old place in one
step. On a volume that is a copy in the store, with the same effect.
"""

import errno
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.distributed.checkpoint.filesystem import FileSystem

__all__ = ["Beat", "CheckedFiles", "DataFile", "publish", "remove_quietly", "sync_directory"]

Beat = Callable[[], None]

# One write, and what is gathered of small ones. The kernel cuts it into requests of 1 MiB.
BLOCK_BYTES = 4 << 20

# What file systems say that do not sync directories.
NO_SYNC = frozenset({errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EBADF})


class DataFile(io.RawIOBase):
    """A file that is written once, from front to back; what was in it is gone.

    `flush` does nothing: torch calls it after each tensor. `fileno`, asked for `fsync`, and `close`
    send everything. `beat` is called before each system call.
    """

    def __init__(self, path: str | os.PathLike[str], beat: Beat) -> None:
        super().__init__()
        self._fd: int | None = None
        beat()
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        self._beat = beat
        self._gathered = bytearray()
        self._sent = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._sent + len(self._gathered)

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        if len(self._gathered) + len(view) > BLOCK_BYTES:
            self._send_gathered()
        if len(view) > BLOCK_BYTES:
            self._send(view)
        else:
            self._gathered += view
        return len(view)

    def fileno(self) -> int:
        if self._fd is None:
            raise ValueError("the file is closed")
        self._send_gathered()
        self._beat()
        return self._fd

    def flush(self) -> None:
        pass

    def close(self) -> None:
        """Send the rest and close. Raises `OSError`, also that of the close itself."""
        if self._fd is None:
            return
        try:
            self._send_gathered()
            self._beat()
        except BaseException:
            self.discard()
            raise
        self._close()

    def discard(self) -> None:
        """Close without sending the rest; the file is not going to be used."""
        self._gathered.clear()
        if self._fd is not None:
            self._close()

    def _close(self) -> None:
        fd, self._fd = self._fd, None
        super().close()
        if fd is not None:
            os.close(fd)

    def _send_gathered(self) -> None:
        if self._gathered:
            gathered, self._gathered = self._gathered, bytearray()
            self._send(memoryview(gathered))

    def _send(self, view: memoryview) -> None:
        assert self._fd is not None
        while view:
            self._beat()
            count = os.write(self._fd, view[:BLOCK_BYTES])
            self._sent += count
            view = view[count:]


class CheckedFiles(FileSystem):
    """What torch's writer sees of the file system: `DataFile`s, and a list of those it made."""

    def __init__(self, beat: Beat) -> None:
        super().__init__()
        self._beat = beat
        self.made: list[str] = []

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[io.IOBase]:
        """Open a new file. Raises `OSError`."""
        if mode != "wb":
            raise ValueError(f"{mode}: data files are written only")
        self.made.append(os.fspath(path))
        file = DataFile(path, self._beat)
        try:
            yield file
        except BaseException:
            file.discard()
            raise
        file.close()


def sync_directory(path: str | os.PathLike[str]) -> None:
    """Make names in a directory lasting, where its file system can. Raises `OSError`."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in NO_SYNC:
            raise
    finally:
        os.close(fd)


def publish(path: str, data: bytes, draft: str, *, sync: bool, beat: Beat) -> None:
    """Put `data` at `path` in one step, over what is there; `draft` is a name nobody else uses.

    Raises `OSError`: it was not done, or (only where the directory could not be synced after it) is
    not certain to outlast a crash of the machine.
    """
    directory = os.path.dirname(path)
    try:
        file = DataFile(draft, beat)
        try:
            file.write(data)
            if sync:
                os.fsync(file.fileno())
        except BaseException:
            file.discard()
            raise
        file.close()
        if sync:
            beat()
            sync_directory(directory)
        beat()
        os.replace(draft, path)
    except BaseException:
        remove_quietly(draft)
        raise
    if sync:
        beat()
        sync_directory(directory)


def remove_quietly(path: str) -> OSError | None:
    """Remove a file of which nothing depends; return why it is still there."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        return error
    return None
