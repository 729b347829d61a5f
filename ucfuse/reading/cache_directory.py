"""The files of the disk cache: pieces of object versions in one private directory.

`DiskCache` asks and stores here. A piece is one file that carries what it is a piece of, its
bytes and a checksum of both, so no index can be wrong: what does not check out is removed and was
never there. A file appears whole under its name or not at all, whenever a process is killed.

Any number of mounts may share the directory. Who stores takes the lock, makes room by removing
what was used longest ago, and claims the bytes before they are written: all files together never
exceed the limit. Reading takes no lock; a file that another mount removes meanwhile is not there.

It never decides whether a version is the newest; its caller asked the store.

Concurrency: blocking calls, for any number of worker threads: all state is on the disk.
"""

import errno
import fcntl
import logging
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from ucfuse.errors import ConfigError
from ucfuse.reading.pieces import PIECE_SUFFIX, Piece, checked, read_all
from ucfuse.store.api import Buffer
from ucfuse.store.checksums import WIDTH_BYTES, checksum_of, combined

__all__ = ["CacheFiles"]

log = logging.getLogger(__name__)

Pwrite = Callable[[int, Buffer, int], int]
"""The system call `pwrite`. A parameter, so that a full disk can be had for a test."""

FOLDER = "ucfuse-parts"
LOCK_NAME = "lock"
USAGE_NAME = "usage"
DRAFT_PREFIX = "draft-"

# File systems give space in blocks, so that many small files take more than their bytes.
BLOCK_BYTES = 4096
BLOCK_COUNT_BITS = 32

# Making room reads the whole directory, so it makes some for the files to come as well.
SURPLUS_SHARE = 16


class CacheFiles:
    """The directory. `limit_bytes` bounds what all files in it take from the disk together.

    `used_bytes` is what they took when this mount last stored or removed something.
    """

    def __init__(
        self,
        directory: Path,
        limit_bytes: int,
        wall_ns: Callable[[], int] = time.time_ns,
        pwrite: Pwrite = os.pwrite,
    ) -> None:
        """Make the directory, or take it over. Raises `ConfigError`."""
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._folder = directory / FOLDER
        self._wall_ns = wall_ns
        self._pwrite = pwrite
        try:
            self._make_folder()
            with self._locked():
                self._write_usage(self._read_usage())
        except OSError as error:
            raise ConfigError(
                f"{directory}: cannot be used as a cache: {error.strerror};"
                " choose another with --cache-dir"
            ) from error

    def fit(self) -> None:
        """Make the directory keep the limit, also one that was filled under a larger one."""
        with self._locked():
            used = self._read_usage()
            if used is None or used > self.limit_bytes:
                self._write_usage(self._make_room(0))

    def read(self, piece: Piece) -> memoryview | None:
        """Return the bytes of a piece if they are here and undamaged, and note the use.

        Raises `OSError` if the disk fails.
        """
        path = self._folder / piece.name
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return None
        try:
            content = read_all(fd, piece.file_bytes)
            data = checked(content, piece) if content is not None else None
            if data is not None:
                self._note_use(fd)
                return data
        finally:
            os.close(fd)
        log.warning("%s: damaged, so it is removed from the cache", path)
        self._remove(path)
        return None

    def write(self, piece: Piece, data: Buffer) -> bool:
        """Keep the bytes of a piece; False: it is here already, or there is no room for it.

        No room: it is larger than the cache, or than what others leave who store just now.
        Raises `OSError` if the disk is full or fails; nothing of it is left then.
        """
        path = self._folder / piece.name
        if path.exists() or _on_disk(piece.file_bytes) > self.limit_bytes:
            return False
        claimed = self._claim(piece.file_bytes)
        if claimed is None:
            return False
        fd, draft = claimed
        try:
            checksum = combined(checksum_of(piece.head), checksum_of(data), len(data))
            self._write_all(fd, [piece.head, data, checksum.to_bytes(WIDTH_BYTES, "big")])
            self._note_use(fd)
            self._publish(draft, path)
        except BaseException:
            self._remove(draft)
            raise
        finally:
            os.close(fd)
        return True

    # --- the directory -----------------------------------------------------------------------

    def _make_folder(self) -> None:
        """Make both directories for this user alone; of one that exists the permissions stay."""
        self._folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder.mkdir(mode=0o700, exist_ok=True)
        found = os.lstat(self._folder)
        is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
        if not is_ours or found.st_mode & 0o077:
            raise PermissionError(errno.EPERM, f"{FOLDER} in it is not private to this user")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep all other mounts that share the directory from changing what it holds."""
        fd = os.open(self._folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def _note_use(self, fd: int) -> None:
        now_ns = self._wall_ns()  # the kernel's own stamps are too coarse to tell an order
        os.utime(fd, ns=(now_ns, now_ns))

    def _claim(self, file_bytes: int) -> tuple[int, Path] | None:
        """Make an empty file that already counts in full, after making room for it.

        Its lock tells that its writer lives. Returns its descriptor and path; None: no room.
        """
        needed = _on_disk(file_bytes)
        try:
            with self._locked():
                used = self._read_usage()
                if used is None or used + needed > self.limit_bytes:
                    used = self._make_room(needed)
                if used + needed > self.limit_bytes:
                    self._write_usage(used)
                    return None
                self._write_usage(used + needed)  # first: too much is noticed, too little is not
                return self._new_draft(file_bytes)
        except FileNotFoundError:
            self._make_folder()  # somebody removed it: the next piece finds it again
            raise

    def _new_draft(self, file_bytes: int) -> tuple[int, Path]:
        fd, path = tempfile.mkstemp(prefix=DRAFT_PREFIX, dir=self._folder)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            os.ftruncate(fd, file_bytes)
        except BaseException:
            os.close(fd)
            os.unlink(path)
            raise
        return fd, Path(path)

    def _write_all(self, fd: int, buffers: Sequence[Buffer]) -> None:
        offset = 0
        for buffer in buffers:
            view = memoryview(buffer)
            while view:
                count = self._pwrite(fd, view, offset)
                offset += count
                view = view[count:]

    def _publish(self, draft: Path, path: Path) -> None:
        """Give a complete file its name; another mount may have been faster with the same."""
        with self._locked():
            replaced = _bytes_at(path)
            os.rename(draft, path)
            self._give_back(replaced)

    def _remove(self, path: Path) -> None:
        with self._locked():
            removed = _bytes_at(path)
            path.unlink(missing_ok=True)
            self._give_back(removed)

    def _give_back(self, freed: int) -> None:
        used = self._read_usage()
        self._write_usage(max(0, used - freed) if used is not None else None)

    def _make_room(self, needed: int) -> int:
        """Remove what was used longest ago until `needed` bytes fit; return what is left.

        The caller holds the lock.
        """
        while True:
            ages, drafts_bytes = self._survey()
            used = drafts_bytes + sum(map(_size_in, ages))
            if used + needed <= self.limit_bytes or not ages:
                return used
            excess = used + needed - self.limit_bytes
            freed = self._remove_until(self._last_to_go(sorted(ages), excess))
            if freed >= excess:  # else some were read since, and others must go
                return used - freed

    def _last_to_go(self, ages: Sequence[int], excess: int) -> int:
        """Return the age until which pieces must go so that `excess` bytes, and more, come free."""
        surplus_count, freed = len(ages) // SURPLUS_SHARE, 0
        for count, age in enumerate(ages, 1):
            freed += _size_in(age)
            if freed >= excess and count >= surplus_count:
                return age
        return ages[-1]

    def _survey(self) -> tuple[list[int], int]:
        """Return age and size of every piece, and the bytes of those that are being written.

        Drafts of writers that died are removed. One integer for each piece: there may be millions.
        """
        ages: list[int] = []
        drafts_bytes = 0
        with os.scandir(self._folder) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):  # somebody cleans up by hand
                    if entry.name.endswith(PIECE_SUFFIX):
                        ages.append(_age(entry.stat(follow_symlinks=False)))
                    elif entry.name.startswith(DRAFT_PREFIX):
                        drafts_bytes += _draft_bytes(entry.path)
        return ages, drafts_bytes

    def _remove_until(self, age: int) -> int:
        """Remove the pieces that were last used then or before; return how many bytes it freed.

        What was read meanwhile stays.
        """
        freed = 0
        with os.scandir(self._folder) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    if not entry.name.endswith(PIECE_SUFFIX):
                        continue
                    found = _age(entry.stat(follow_symlinks=False))
                    if found <= age:
                        os.unlink(entry.path)
                        freed += _size_in(found)
        return freed

    # --- what the files take together --------------------------------------------------------

    def _read_usage(self) -> int | None:
        """Return what was last noted; None: nothing that can be trusted."""
        try:
            text = (self._folder / USAGE_NAME).read_bytes()
        except FileNotFoundError:
            return None
        number, _, checksum = text.partition(b" ")
        if not number.isdigit() or checksum != b"%d" % checksum_of(number):
            return None
        return int(number)

    def _write_usage(self, used: int | None) -> None:
        # In place: a crash in between leaves what the checksum refuses, and then is counted anew.
        number = b"" if used is None else b"%d" % used
        fd = os.open(self._folder / USAGE_NAME, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            text = b"%b %d" % (number, checksum_of(number))
            os.ftruncate(fd, os.pwrite(fd, text, 0))
        finally:
            os.close(fd)
        self.used_bytes = used or 0


def _on_disk(file_bytes: int) -> int:
    return -(-file_bytes // BLOCK_BYTES) * BLOCK_BYTES


def _age(found: os.stat_result) -> int:
    """Return one integer that orders files by their last use, and carries their size."""
    return found.st_mtime_ns << BLOCK_COUNT_BITS | _on_disk(found.st_size) // BLOCK_BYTES


def _size_in(age: int) -> int:
    return (age & (1 << BLOCK_COUNT_BITS) - 1) * BLOCK_BYTES


def _bytes_at(path: Path) -> int:
    try:
        return _on_disk(os.lstat(path).st_size)
    except FileNotFoundError:
        return 0


def _draft_bytes(path: str) -> int:
    """Return what a file that is being written will take; one whose writer died is removed."""
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(path)
    except BlockingIOError:
        return _on_disk(os.fstat(fd).st_size)
    finally:
        os.close(fd)
    return 0
