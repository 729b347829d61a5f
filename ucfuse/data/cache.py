"""Local copies of the files of one source directory, each made once for all processes of a node.

`obtain` returns a local path: of a copy that is there, or of one that it makes, or, where nothing
can be cached, the path of the source itself. Copies are published by rename, so a path that exists
holds a whole file. While a copy is made, its record is locked; who wants the same file waits for
that and then finds it.

With a limit, a copy that somebody still needs is pinned: a shared lock on it, which keeps every
process from evicting it and is gone when its holder is.

It never changes the source, and trusts a copy only if size and modification time agree and, within
one life of the mount, the inode number too.

Concurrency: safe in any thread and any number of processes; an object belongs to one process.
"""

import contextlib
import fcntl
import logging
import os
import threading
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from enum import Enum, auto
from typing import NamedTuple

from ucfuse.data.copying import (
    CacheTrouble,
    cache_trouble,
    check_unchanged,
    fill,
    put_in_place,
)
from ucfuse.data.eviction import Admission, NextUse, Room, files_below
from ucfuse.data.layout import RECORD_BYTES, Layout, Record, fingerprint, parse_record
from ucfuse.data.listing import Version
from ucfuse.data.locks import holding, release, try_lock
from ucfuse.data.mountlife import life_of
from ucfuse.data.retries import naming
from ucfuse.data.statx import version_of_open

__all__ = ["Cache", "Found", "How"]

log = logging.getLogger(__name__)


class How(Enum):
    """Where a path comes from."""

    HIT = auto()
    COPIED = auto()
    PASSED = auto()
    """The source itself: there was no room for a copy."""


class Found(NamedTuple):
    """A path to read, and the lock that keeps it there, if it needs one."""

    name: str
    path: str
    how: How
    size: int
    pin: int | None = None


class Cache:
    """The copies of `source` below `directory`, as one process uses them."""

    def __init__(
        self, source: str, directory: str, limit_bytes: int | None, at_once: int = 16
    ) -> None:
        """`at_once`: how many files are copied at the same time; others may be being opened."""
        self.layout = Layout.of(directory, source)
        self.next_use: NextUse = lambda copy: 0
        self._source = source
        self._limited = limit_bytes is not None
        self._life = life_of(source)
        self._copying = threading.BoundedSemaphore(at_once)
        self._seen: dict[str, tuple[Version, tuple[int, int, int]]] = {}
        self._made: set[str] = set()
        """Copies made by this process and not handed out since."""
        self._may_complain = threading.Lock()
        self.layout.make()
        self._room = Room(self.layout, limit_bytes)
        self._sweep()

    def _sweep(self) -> None:
        """Remove what killed processes left half-made."""
        for path, _ in files_below(self.layout.partials):
            key = os.path.basename(path)
            with contextlib.suppress(FileNotFoundError):
                lock = try_lock(self.layout.record(key), fcntl.LOCK_EX)
                if lock is None:
                    continue
                try:
                    self._drop_partial(self.layout.partial(key))
                finally:
                    release(lock)

    def begin_pass(self, next_use: NextUse) -> None:
        """Learn when copies are needed, and whether the source has been mounted anew."""
        self.next_use = next_use
        self._life = life_of(self._source)

    def knows(self, name: str) -> bool:
        """Return whether this process has seen a copy of the file. No I/O at all."""
        return name in self._seen

    def has_seen(self, name: str, version: Version | None) -> bool:
        """Return whether this process has seen the copy of this version. No I/O at all."""
        seen = self._seen.get(name)
        return seen is not None and seen[0] == version

    def confirmed(self, names: Iterable[str]) -> Generator[Found]:
        """Yield the copies of files that this cache `knows`, each looked at when its turn comes.

        Ends at the first of which the source or the copy is not what it was.
        """
        # This is all that later passes do for a file: one frame that calls little. From a
        # descriptor on, names are found twice as fast on a FUSE mount.
        seen, made, limited, hit = self._seen, self._made, self._limited, How.HIT
        prefix, stat = self.layout.copy(""), os.stat
        with contextlib.ExitStack() as stack:
            try:
                source = stack.enter_context(_directory(self._source))
                copies = stack.enter_context(_directory(prefix))
            except OSError:
                return  # who lists or copies will say why
            for name in names:
                version, copy = seen[name]
                try:
                    now = stat(name, dir_fd=source)
                    if limited or (now.st_size, now.st_mtime_ns, now.st_dev, now.st_ino) != version:
                        found = self.look_up(name, Version.of(now))
                        if found is None:
                            return
                    else:
                        now = stat(name, dir_fd=copies)
                        if (now.st_ino, now.st_size, now.st_mtime_ns) != copy:
                            return
                        found = Found(name, prefix + name, hit, now.st_size)
                except OSError:
                    return
                yield self.credit(found) if name in made else found

    def look_up(self, name: str, version: Version | None) -> Found | None:
        """Return the copy of this version, None if there is none. Asks nothing of the source."""
        if version is None:
            return None
        path = self.layout.copy(name)
        try:
            if not self._limited:
                status = os.stat(path)
                return self._hit(name, path, status, None, version)
            pin = try_lock(path, fcntl.LOCK_SH, os.O_RDONLY)
        except OSError:  # there is none, or the cache has a trouble that `obtain` will name
            return None
        if pin is None:
            return None  # being evicted
        status = os.fstat(pin)
        found = self._hit(name, path, status, pin, version) if status.st_nlink else None
        if found is None:
            release(pin)
        return found

    def _hit(
        self, name: str, path: str, status: os.stat_result, pin: int | None, version: Version
    ) -> Found | None:
        copy = fingerprint(status)
        if self._seen.get(name) != (version, copy):
            record = self._read_record(name)
            if record is None or record.copy != copy or not record.holds(version, self._life):
                return None
            if record.life != self._life:
                self._renew_record(name, version, copy)
            self._seen[name] = (version, copy)
        return Found(name, path, How.HIT, status.st_size, pin)

    def _read_record(self, name: str) -> Record | None:
        try:
            with open(self.layout.record(self.layout.key(name)), "rb", buffering=0) as file:
                return parse_record(file.read(RECORD_BYTES))
        except OSError:
            return None

    def _renew_record(self, name: str, version: Version, copy: tuple[int, int, int]) -> None:
        """Note which inode stands for this version from now on: it counts in this life again."""
        with contextlib.suppress(OSError):
            record = try_lock(self.layout.record(self.layout.key(name)), fcntl.LOCK_EX)
            if record is not None:  # else another process is at it
                try:
                    os.pwrite(record, Record(version, self._life, copy).as_bytes(), 0)
                finally:
                    release(record)

    def obtain(
        self, name: str, version: Version | None, use: int, stop: threading.Event, *, urgent: bool
    ) -> Found | None:
        """Return a path to read for the file `name`; `use` tells when it is needed.

        None only if it is not urgent and there is no room now. Raises `Stopped`, and `OSError`: the
        source could not be read.
        """
        found = self.look_up(name, version)
        if found is not None:
            return found
        try:
            with naming(self._path_of(name)), self._locked_record(name, stop) as record:
                found = self._made_meanwhile(name, record)
                return found or self._make(name, record, use, stop, urgent=urgent)
        except CacheTrouble as trouble:
            self._complain(trouble)
            return self._pass(name)

    def credit(self, found: Found) -> Found:
        """Return what is handed out, as copied if this process copied it, ahead or for a pass."""
        if found.name not in self._made:
            return found
        self._made.discard(found.name)
        return found._replace(how=How.COPIED)

    def let_go(self, found: Found) -> None:
        """Say that the copy is not needed now, and when it will be."""
        if found.pin is None:
            return
        release(found.pin)
        copy = f"{self.layout.label}/{found.name}"
        self._room.offer(copy, found.size, self.next_use(copy))

    @contextmanager
    def _locked_record(self, name: str, stop: threading.Event) -> Iterator[int]:
        path = self.layout.record(self.layout.key(name))
        with contextlib.ExitStack() as stack:
            with cache_trouble():
                try:
                    descriptor = stack.enter_context(holding(path, stop))
                except FileNotFoundError:  # the first record of its directory
                    os.makedirs(os.path.dirname(path), exist_ok=True)
                    descriptor = stack.enter_context(holding(path, stop))
            yield descriptor

    def _made_meanwhile(self, name: str, record: int) -> Found | None:
        """Return the copy that another process made while we waited for the lock."""
        if parse_record(os.pread(record, RECORD_BYTES, 0)) is None:
            return None
        return self.look_up(name, Version.of(os.stat(self._path_of(name))))

    def _make(
        self, name: str, record: int, use: int, stop: threading.Event, *, urgent: bool
    ) -> Found | None:
        with open(self._path_of(name), "rb", buffering=0) as source:
            version = version_of_open(source.fileno())
            partial = self.layout.partial(self.layout.key(name))
            with cache_trouble():
                admission = self._room.admit(partial, version.size, use, self.next_use, stop)
            if admission is not Admission.GRANTED:
                gives_up = urgent or admission is Admission.NEVER
                return self._pass(name) if gives_up else None
            try:
                with contextlib.nullcontext() if urgent else self._copying:
                    fill(partial, source, version.size, stop)
                check_unchanged(source, version)
                return self._publish(name, record, partial, version)
            except BaseException:
                self._drop_partial(partial, version.size)
                raise

    def _publish(self, name: str, record: int, partial: str, version: Version) -> Found:
        path = self.layout.copy(name)
        with cache_trouble():
            os.utime(partial, ns=(version.mtime_ns, version.mtime_ns))
            # Read back: not every file system keeps nanoseconds.
            copy = fingerprint(os.stat(partial))
            os.pwrite(record, Record(version, self._life, copy).as_bytes(), 0)
            # The pin comes first: between its publication and its use it could be evicted.
            pin = try_lock(partial, fcntl.LOCK_SH, os.O_RDONLY) if self._limited else None
            try:
                replaced = put_in_place(partial, path)
            except BaseException:
                if pin is not None:
                    release(pin)
                raise
            self._seen[name] = (version, copy)
            self._made.add(name)
            self._room.give_back(replaced)
        return Found(name, path, How.COPIED, version.size, pin)

    def _drop_partial(self, partial: str, size: int | None = None) -> None:
        """Remove a copy in the making; its lock is ours."""
        with contextlib.suppress(FileNotFoundError):
            reserved = os.stat(partial).st_size if size is None else size
            os.unlink(partial)
            self._room.give_back(reserved)

    def _path_of(self, name: str) -> str:
        return os.path.join(self._source, name)

    def _pass(self, name: str) -> Found:
        return Found(name, self._path_of(name), How.PASSED, 0)

    def _complain(self, trouble: CacheTrouble) -> None:
        """Say once per process why files are read from the volume itself."""
        if self._may_complain.acquire(blocking=False):  # and never given back
            log.warning(
                "cache %s: %s; files are read from %s itself",
                self.layout.directory,
                trouble.__cause__,
                self._source,
            )


@contextmanager
def _directory(path: str) -> Iterator[int]:
    """Hold a directory by a descriptor that names are found from. Raises `OSError`."""
    descriptor = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
