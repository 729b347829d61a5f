"""How much fits into a cache directory, and what has to go for something that is needed sooner.

The future of a training job is known, so what is needed last goes first, and nothing goes for what
is needed even later. Nobody ever waits for room: what does not fit is not cached.

The count of used bytes is shared by all processes, in a ledger file under a lock. A process that is
killed can leave it too high, never too low; it is counted anew when the cache seems full.

Concurrency: safe in any thread and any number of processes. The ledger's lock is held for
bookkeeping and removals only, and no other lock is waited for under it.
"""

import contextlib
import fcntl
import heapq
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator
from enum import Enum, auto

from ucfuse.data.layout import Layout, key_of
from ucfuse.data.locks import holding, release, try_lock

__all__ = ["Admission", "NextUse", "Room", "files_below"]

# Tells when the copy at this path below `files` is needed next; larger is later.
NextUse = Callable[[str], int]

# Other programs need some of the disk, too: that much of it stays free.
RESERVE_BYTES = 1 << 30
RESERVE_SHARE = 0.05
# Counting anew walks through the whole cache: not for every file while it stays full.
RECOUNT_INTERVAL_S = 2.0

_LEDGER = struct.Struct("=Q")


class Admission(Enum):
    """The answer to who wants to cache something."""

    GRANTED = auto()
    NOT_NOW = auto()
    """What is there is needed sooner; this changes as the training goes on."""
    NEVER = auto()
    """The file is larger than the limit, or the disk is full."""


class Room:
    """The space of one cache directory, as one process sees it."""

    def __init__(self, layout: Layout, limit_bytes: int | None) -> None:
        self._layout = layout
        self._limit_bytes = limit_bytes
        # Reentrant: the garbage collector may let copies go in a thread that is inside.
        self._mutex = threading.RLock()
        self._candidates: list[tuple[int, str, int]] = []
        self._recounted_at = -RECOUNT_INTERVAL_S

    def admit(
        self, partial: str, size: int, use: int, next_use: NextUse, stop: threading.Event
    ) -> Admission:
        """Make the file `partial` with its full size if there is room for it.

        With a limit, copies that are needed later than `use` are removed for it.
        Raises `Stopped`, `OSError`.
        """
        if not self._disk_has(size):
            return Admission.NEVER
        if self._limit_bytes is None:
            _make_sized(partial, size)
            return Admission.GRANTED
        if size > self._limit_bytes:
            return Admission.NEVER
        with self._mutex, holding(self._layout.ledger, stop) as ledger:
            return self._admit_counted(ledger, partial, size, use, next_use)

    def _admit_counted(
        self, ledger: int, partial: str, size: int, use: int, next_use: NextUse
    ) -> Admission:
        assert self._limit_bytes is not None
        used = self._read(ledger)
        allowed = self._limit_bytes - size
        if used > allowed:
            used = self._evict_to(ledger, used, allowed, use)
        if used > allowed and self._may_recount():
            used = self._recount(next_use)
            self._write(ledger, used)
            used = self._evict_to(ledger, used, allowed, use)
        if used > allowed:
            return Admission.NOT_NOW
        _make_sized(partial, size)
        self._write(ledger, used + size)
        return Admission.GRANTED

    def give_back(self, size: int) -> None:
        """Say that `size` bytes have gone: a copy that failed, or one that was replaced."""
        if self._limit_bytes is None or size == 0:
            return
        with self._mutex, holding(self._layout.ledger, threading.Event()) as ledger:
            self._write(ledger, max(0, self._read(ledger) - size))

    def offer(self, copy: str, size: int, use: int) -> None:
        """Name a copy that may go, and when it is needed next."""
        if self._limit_bytes is not None:
            with self._mutex:
                heapq.heappush(self._candidates, (-use, copy, size))

    def _evict_to(self, ledger: int, used: int, allowed: int, use: int) -> int:
        """Remove what is needed later than `use`, down to `allowed`; return what is used then."""
        while used > allowed and self._candidates and -self._candidates[0][0] > use:
            _, copy, size = heapq.heappop(self._candidates)
            if self._evict(copy):
                used = max(0, used - size)
                self._write(ledger, used)
        return used

    def _evict(self, copy: str) -> bool:
        """Remove a copy unless somebody makes, uses or has just removed it."""
        path = os.path.join(self._layout.files, copy)
        record = self._layout.record(key_of(copy))
        with contextlib.ExitStack() as stack:
            for lock in (record, path):
                try:
                    descriptor = try_lock(lock, fcntl.LOCK_EX)
                except FileNotFoundError:
                    return False
                if descriptor is None:
                    return False
                stack.callback(release, descriptor)
            os.unlink(path)
        return True

    def _may_recount(self) -> bool:
        now = time.monotonic()
        if now - self._recounted_at < RECOUNT_INTERVAL_S:
            return False
        self._recounted_at = now
        return True

    def _recount(self, next_use: NextUse) -> int:
        """Return how many bytes there are, and learn what may go."""
        used = sum(size for _, size in files_below(self._layout.partials))
        self._candidates = []
        for copy, size in files_below(self._layout.files):
            used += size
            self._candidates.append((-next_use(copy), copy, size))
        heapq.heapify(self._candidates)
        return used

    def _read(self, ledger: int) -> int:
        data = os.pread(ledger, _LEDGER.size, 0)
        if len(data) == _LEDGER.size:
            used: int = _LEDGER.unpack(data)[0]
            return used
        files = (self._layout.partials, self._layout.files)
        return sum(size for directory in files for _, size in files_below(directory))

    def _write(self, ledger: int, used: int) -> None:
        os.pwrite(ledger, _LEDGER.pack(used), 0)

    def _disk_has(self, size: int) -> bool:
        disk = os.statvfs(self._layout.directory)
        reserve = min(RESERVE_BYTES, int(disk.f_blocks * disk.f_frsize * RESERVE_SHARE))
        return disk.f_bavail * disk.f_frsize >= size + reserve


def _make_sized(path: str, size: int) -> None:
    """Make an empty file of that size: its size tells a recount what will be needed."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o644)
    except FileNotFoundError:  # the first one of its directory
        os.makedirs(os.path.dirname(path), exist_ok=True)
        descriptor = os.open(path, flags, 0o644)
    try:
        os.ftruncate(descriptor, size)
    finally:
        os.close(descriptor)


def files_below(directory: str, prefix: str = "") -> Iterator[tuple[str, int]]:
    """Yield path below `directory` and size of every file; what vanishes meanwhile is left out."""
    with contextlib.suppress(FileNotFoundError), os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from files_below(entry.path, f"{prefix}{entry.name}/")
            else:
                with contextlib.suppress(FileNotFoundError):
                    yield prefix + entry.name, entry.stat(follow_symlinks=False).st_size
