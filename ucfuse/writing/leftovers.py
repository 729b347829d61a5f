"""What ended sessions left behind: the files that the store does not have, and what may be done.

`recovery` finishes what can be finished by itself, `ucfuse recover` shows the rest and acts on it
for the user. Here is only what the local disk says; nothing here asks a store.

Concurrency: blocking calls of milliseconds. Whoever changes anything holds the leftover (`hold`),
so a mount that begins and a user's command never act on one file at the same time.
"""

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from ucfuse.store.api import Checksum
from ucfuse.volume import ETag
from ucfuse.writing.ranges import RangeSet
from ucfuse.writing.records import (
    LOG_NAME,
    Head,
    Log,
    Record,
    Stage,
    done_line,
    read_log,
    record_line,
)
from ucfuse.writing.session_directory import OWN_NAMES, PREFIX, hold_if_dead, session_directories

__all__ = [
    "Extent",
    "Leftover",
    "Progress",
    "Standing",
    "files_without_use",
    "find_leftovers",
    "hold",
    "leftovers_of",
    "note",
    "settle",
]


class Standing(Enum):
    """Whose a leftover is, which decides what may be done with it."""

    OURS = "ours"
    """Its session ran on this machine, since it was started, and has ended."""
    IN_USE = "in use"
    """A mount that runs still has the file open."""
    RELEASED = "released"
    """A mount that runs has given the file up to the user."""
    RESTARTED = "restarted"
    """As OURS, but the machine was started anew since: bytes may be missing."""
    FOREIGN = "foreign"
    """Of another host, or the directory is a copy: the session may be alive elsewhere."""
    UNKNOWN = "unknown"
    """There is no record of it, or one that this version cannot read."""


@dataclass(frozen=True, slots=True)
class Extent:
    """Which bytes of a staging file count, as far as can be told after its session's end."""

    size: int
    base_size: int
    ranges: Sequence[tuple[int, int]]

    @property
    def byte_count(self) -> int:
        """How many bytes a program wrote."""
        return sum(stop - start for start, stop in self.ranges)

    @property
    def from_base(self) -> list[tuple[int, int]]:
        """Where bytes of the base version show through."""
        written = RangeSet()
        for start, stop in self.ranges:
            written.add(start, stop)
        return written.missing(0, min(self.size, self.base_size))


@dataclass(frozen=True, slots=True)
class Leftover:
    """One file that the store does not have, or not for certain."""

    directory: Path
    file: str
    standing: Standing
    head: Head | None
    record: Record | None

    @property
    def path(self) -> Path:
        """Where its bytes are."""
        return self.directory / self.file

    @property
    def name(self) -> str:
        """What the user calls it: the session, and the file's number in it."""
        number = self.file.rpartition(".")[2].lstrip("0")
        return f"{self.directory.name.removeprefix(PREFIX)}.{number}"

    def extent(self) -> Extent:
        """Return what counts of its bytes.

        While a program writes, the record is a second late at most; past the end of the base all
        that is in the file is the program's.
        """
        stored_size = self.path.stat().st_size
        record = self.record
        if record is None:
            return Extent(stored_size, 0, ((0, stored_size),))
        size = record.size
        written = RangeSet()
        for start, stop in record.ranges:
            written.add(start, stop)
        if record.stage is Stage.WRITING:
            size = max(size, stored_size)
            written.add(record.base_size, stored_size)
        written.remove(size, max(size, stored_size))
        return Extent(size, record.base_size, tuple(written))


class Progress:
    """How far the upload of a leftover that we hold has come, written to its own record."""

    def __init__(self, leftover: Leftover) -> None:
        self.leftover = leftover

    def upload_begins(self, upload: str) -> None:
        """See `Entry`."""
        self._step(upload=upload, parts=())

    def upload_ended(self) -> None:
        """See `Entry`."""
        self._step(upload=None, parts=())

    def commit_begins(
        self,
        expected_etag: ETag | None,
        *,
        base_etag: ETag | None,
        parts: Sequence[ETag] = (),
        expected_checksum: Checksum | None = None,
    ) -> None:
        """See `Entry`."""
        before = self.leftover.record
        assert before is not None
        expected = before.expecting(expected_etag, expected_checksum)
        self._step(stage=Stage.COMMITTING, base_etag=base_etag, parts=tuple(parts), **expected)

    def back_to(self, record: Record) -> None:
        """Let the record be as before, but for what may be in the bucket now or soon."""
        now = self.leftover.record
        assert now is not None
        if now != record:
            self.leftover = note(
                self.leftover, replace(now, stage=record.stage, base_etag=record.base_etag)
            )

    def _step(self, **changes: object) -> None:
        assert self.leftover.record is not None
        record = replace(self.leftover.record, **changes)  # type: ignore[arg-type]
        self.leftover = note(self.leftover, record)


def find_leftovers(parent: Path) -> list[Leftover]:
    """Return all leftovers below the directory of the sessions, oldest session first."""
    found: list[Leftover] = []
    for directory in sorted(session_directories(parent), key=lambda path: path.stat().st_mtime_ns):
        with hold_if_dead(directory) as is_dead:
            found += leftovers_of(directory, is_dead=is_dead)
    return found


def leftovers_of(directory: Path, *, is_dead: bool) -> list[Leftover]:
    """Return the leftovers of one session; of one that lives, those that it keeps for the user."""
    log = read_log(directory)
    found = []
    for name in _staging_files(directory):
        record = log.records.get(name)
        standing = _standing(directory, log, record, is_dead=is_dead)
        if standing is not None and name not in log.done:
            found.append(Leftover(directory, name, standing, log.head, record))
    return found


def files_without_use(directory: Path) -> list[Path]:
    """Return what a dead session kept only for its own reads, or never wrote a byte to."""
    log = read_log(directory)
    if log.head is None:
        return []
    return [
        directory / name
        for name in _staging_files(directory)
        if name in log.done or (name not in log.records and (directory / name).stat().st_size == 0)
    ]


@contextmanager
def hold(leftover: Leftover) -> Iterator[Leftover | None]:
    """Yield the leftover as it is now and keep it to ourselves; None: it is gone or in use."""
    with hold_if_dead(leftover.directory) as is_dead, _locked(leftover.path) as is_free:
        present = [
            found
            for found in (leftovers_of(leftover.directory, is_dead=is_dead) if is_free else ())
            if found.file == leftover.file and found.standing is not Standing.IN_USE
        ]
        yield present[0] if present else None


def note(leftover: Leftover, record: Record) -> Leftover:
    """Put down a new state of a leftover that we hold, and return it so."""
    if leftover.standing is not Standing.RELEASED:  # else that mount's log is its own
        _append(leftover.directory, record_line(record))
    return Leftover(leftover.directory, leftover.file, leftover.standing, leftover.head, record)


def settle(leftover: Leftover) -> None:
    """Remove a leftover that we hold: the store has it, or nobody wants it."""
    if leftover.standing is not Standing.RELEASED:
        _append(leftover.directory, done_line(leftover.file))
    leftover.path.unlink(missing_ok=True)


def _staging_files(directory: Path) -> list[str]:
    try:
        return sorted(set(os.listdir(directory)) - OWN_NAMES)
    except FileNotFoundError:  # its mount has just ended
        return []


def _standing(
    directory: Path, log: Log, record: Record | None, *, is_dead: bool
) -> Standing | None:
    """Return whose a file is; None: it is in the care of the mount that runs."""
    if not is_dead:
        if record is None or record.stage is not Stage.KEPT:
            return None
        return Standing.RELEASED if record.is_released else Standing.IN_USE
    if log.head is None or record is None:
        return Standing.UNKNOWN
    if not log.head.is_of_place(directory):
        return Standing.FOREIGN
    return Standing.OURS if log.head.is_of_this_boot() else Standing.RESTARTED


@contextmanager
def _locked(path: Path) -> Iterator[bool]:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield False
        return
    try:
        yield _lock_now(fd)
    finally:
        os.close(fd)


def _lock_now(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return os.fstat(fd).st_nlink > 0


def _append(directory: Path, line: bytes) -> None:
    """Add a line to the log of a session that has ended, in the place of a torn one."""
    path = directory / LOG_NAME
    whole = path.read_bytes().rfind(b"\n") + 1
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.ftruncate(fd, whole)
        os.pwrite(fd, line, whole)
        os.fsync(fd)
    finally:
        os.close(fd)
