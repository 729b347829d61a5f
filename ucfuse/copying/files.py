"""A local directory, as one end of a copy.

A file shows once all of its bytes are there, with the time of its object, and a note of the
version (an extended attribute, where the disk keeps such): by these a copy that is repeated knows
what it need not do again. Until then it has no name at all, so a kill leaves nothing behind.

Links are never followed below the root: nothing is written or removed outside of it.

Concurrency: `DiskWork` waits for the disk, in worker threads unless that costs more than the work.
"""

import errno
import os
import secrets
import shutil
import stat
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from ucfuse.copying.disk_work import DiskWork
from ucfuse.copying.trees import File, Page, Trouble
from ucfuse.errors import ObjectChanged
from ucfuse.store.api import Buffer, Bytes
from ucfuse.volume import ETag, MiB
from ucfuse.writing.parts import Part

__all__ = ["LocalTree", "recorded_etag"]

ETAG_ATTRIBUTE = "user.ucfuse.etag"
PART_BYTES = 8 * MiB

# How file systems say that they have no nameless files.
NO_NAMELESS = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT)
NOT_A_FILE = "neither file nor directory"
A_LINK = "a symbolic link, which no object can be; copy what it leads to by itself"


class LocalTree:
    """What is below one directory."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._disk = DiskWork()

    def describe(self, name: str) -> str:
        return str(self.path(name))

    def path(self, name: str) -> Path:
        return self._root / name

    async def pages(self, directory: str) -> AsyncIterator[Page]:
        yield await self._disk.run(partial(self._page, directory))

    def _page(self, directory: str) -> Page:
        page = Page()
        try:
            entries = os.scandir(self.path(directory))
        except FileNotFoundError:
            return page
        with entries:
            for entry in entries:
                self._put_entry(page, directory, entry)
        return page

    def _put_entry(self, page: Page, directory: str, entry: "os.DirEntry[str]") -> None:
        name = directory + entry.name
        try:
            name.encode()
        except UnicodeEncodeError:
            shown = os.fsencode(name).decode(errors="backslashreplace")
            page.others.append(Trouble(shown, "its name is not UTF-8, which keys are"))
            return
        if entry.is_dir(follow_symlinks=False):
            page.directories.append(name + "/")
        elif entry.is_file(follow_symlinks=False):
            page.files.append(_file(name, entry.stat(follow_symlinks=False)))
        else:
            page.others.append(Trouble(name, A_LINK if entry.is_symlink() else NOT_A_FILE))

    def find(self, name: str) -> File | None:
        """Return the file of this name, None if there is none. Follows links: the user named it."""
        try:
            found = os.stat(self.path(name))
        except FileNotFoundError:
            return None
        return _file(name, found) if stat.S_ISREG(found.st_mode) else None

    async def read(self, file: File, start: int, stop: int) -> Bytes:
        return await self._disk.run(partial(self._read, file, start, stop), stop - start)

    def _read(self, file: File, start: int, stop: int) -> bytes:
        with open(self.path(file.name), "rb", buffering=0) as opened:
            opened.seek(start)
            data = _read_full(opened.fileno(), stop - start)
            found = os.fstat(opened.fileno())
        if len(data) != stop - start or _stamp(found) != file.stamp:
            raise ObjectChanged(str(self.path(file.name)), "it was written while it was copied")
        return data

    def refusal(self, name: str) -> str | None:
        return None

    async def put(self, name: str, file: File, body: Buffer, present: File | None) -> None:
        await self._disk.run(partial(self._put, name, file, body, present), len(body))

    def _put(self, name: str, file: File, body: Buffer, present: File | None) -> None:
        draft = _Draft(self.path(name), file, present, self._disk)
        try:
            draft.write_at(0, body)
            draft.publish()
        finally:
            draft.close()

    def draft(self, name: str, file: File, present: File | None) -> "_Draft":
        return _Draft(self.path(name), file, present, self._disk)

    def parts(self, size: int) -> Sequence[Part]:
        starts = range(0, size, PART_BYTES)
        return [Part(n, at, min(at + PART_BYTES, size)) for n, at in enumerate(starts, 1)]

    async def make_directory(self, name: str, *, is_empty: bool) -> None:
        path = self.path(name)
        if name:
            with suppress(FileExistsError):
                path.mkdir()
        else:
            path.mkdir(parents=True, exist_ok=True)
        if name and not stat.S_ISDIR(path.lstat().st_mode):
            raise NotADirectoryError(errno.ENOTDIR, "in the way of a directory", str(path))

    async def remove(self, entry: File | str) -> None:
        if isinstance(entry, str) and entry.endswith("/"):
            await self._disk.run(partial(shutil.rmtree, self.path(entry)))
            return
        path = self.path(entry if isinstance(entry, str) else entry.name)
        if isinstance(entry, File):
            _require(path, entry)
        path.unlink()


def recorded_etag(path: Path) -> ETag | None:
    """Return the version that a copy noted at the file; None: it has no note."""
    try:
        return ETag(os.getxattr(path, ETAG_ATTRIBUTE, follow_symlinks=False).decode())
    except OSError:
        return None


class _Draft:
    """A file without a name, or where the disk has no such, with one that nobody asks for."""

    def __init__(self, target: Path, file: File, present: File | None, disk: DiskWork) -> None:
        self._target = target
        self._file = file
        self._present = present
        self._disk = disk
        self._name: Path | None = None
        try:
            self._fd = os.open(target.parent, os.O_TMPFILE | os.O_WRONLY, 0o666)
        except OSError as error:
            if error.errno not in NO_NAMELESS:
                raise
            self._name = _other_name(target)
            self._fd = os.open(self._name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)

    async def write(self, part: Part, body: Buffer) -> None:
        await self._disk.run(partial(self.write_at, part.start, body))

    def write_at(self, offset: int, body: Buffer) -> None:
        view = memoryview(body)
        while view:
            written = os.pwrite(self._fd, view, offset)
            view, offset = view[written:], offset + written

    async def finish(self) -> None:
        await self._disk.run(self.publish)
        self.close()

    async def abort(self) -> None:
        self.close()

    def publish(self) -> None:
        """Give it its name. Raises `ObjectChanged`: what is there is not what was seen."""
        if self._file.etag is not None:
            with suppress(OSError):  # a disk that keeps no notes
                os.setxattr(self._fd, ETAG_ATTRIBUTE, self._file.etag.encode())
        os.utime(self._fd, ns=(self._file.mtime_ns, self._file.mtime_ns))
        if self._present is None:
            try:
                self._link(self._target)
            except FileExistsError as error:
                raise ObjectChanged(str(self._target), "it came to be there meanwhile") from error
            return
        _require(self._target, self._present)
        if self._name is None:
            name = _other_name(self._target)
            self._link(name)
            self._name = name
        self._name.replace(self._target)
        self._name = None

    def _link(self, name: Path) -> None:
        own = f"/proc/self/fd/{self._fd}" if self._name is None else str(self._name)
        # With a directory descriptor, which an absolute path makes no use of, Python asks for
        # links to be followed: this one leads to the file.
        os.link(own, name, src_dir_fd=self._fd, follow_symlinks=True)

    def close(self) -> None:
        """Let go of it; what has no name of its own is gone."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        if self._name is not None:
            with suppress(FileNotFoundError):
                self._name.unlink()
            self._name = None


def _other_name(target: Path) -> Path:
    return target.with_name(f".{secrets.token_hex(8)}.ucfuse-copy")


def _require(path: Path, seen: File) -> None:
    try:
        present: tuple[int, ...] = _stamp(path.lstat())
    except FileNotFoundError:
        present = ()
    if present != seen.stamp:
        raise ObjectChanged(str(path), "it was changed meanwhile")


def _file(name: str, found: os.stat_result) -> File:
    return File(name, found.st_size, found.st_mtime_ns, stamp=_stamp(found))


def _stamp(found: os.stat_result) -> tuple[int, ...]:
    return (found.st_ino, found.st_size, found.st_mtime_ns)


def _read_full(descriptor: int, length: int) -> bytes:
    data = os.read(descriptor, length)
    while len(data) < length and (more := os.read(descriptor, length - len(data))):
        data += more
    return data
