"""The form of a journal: one log file per session, a head and then one line per step of a file.

`journal` writes it while the session lives; `recovery` and `ucfuse recover` read it afterwards.
The last line about a staging file holds. What is torn or garbled counts as never written: a
process that is killed leaves at most its last line so, and after a loss of power nothing is acted
on anyway.

Pure but for `read_log`, which blocks.
"""

import json
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

from ucfuse.store.api import Checksum
from ucfuse.volume import ETag, Key

__all__ = [
    "DRAFT_NAME",
    "LOG_NAME",
    "Head",
    "Log",
    "Origin",
    "Record",
    "Stage",
    "boot_id",
    "done_line",
    "head_line",
    "place_of",
    "read_log",
    "record_line",
]

LOG_NAME = "journal"
DRAFT_NAME = "journal.new"
FORM = 1
"""Of the log. One of another form is shown, and nothing else is done with it."""

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Stage(Enum):
    """How far a file has come."""

    WRITING = "writing"
    """Neither fsync nor last close was reached since the last write: never committed by itself."""
    COMMITTING = "committing"
    """fsync or last close was reached; the request that completes was, or is about to be, sent."""
    KEPT = "kept"
    """The program was told that the store does not have its bytes, and that they are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where the objects of a session live, and how its store was reached.

    `endpoint` and `bucket` name the store for certain; the rest is what it takes to connect: of a
    volume that a catalog governs, where that is and what it calls the volume.
    """

    endpoint: str
    bucket: str
    mountpoint: str
    endpoint_url: str | None = None
    region: str | None = None
    profile: str | None = None
    sign_requests: bool = True
    catalog_url: str = ""
    volume: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What all records of a log have in common: which run of a mount wrote it, and where."""

    origin: Origin
    host: str
    boot_id: str
    pid: int
    place: str
    """Device and inode of the session's directory: a copy of it has others."""

    @classmethod
    def of(cls, origin: Origin, directory: Path, pid: int) -> "Head":
        """Return the head for a session of this process's host in `directory`."""
        return cls(
            origin=origin,
            host=socket.gethostname(),
            boot_id=boot_id(),
            pid=pid,
            place=place_of(directory),
        )

    def is_of_place(self, directory: Path) -> bool:
        """Say whether this host wrote it, and here: the directory is not a copy."""
        return (self.host, self.place) == (socket.gethostname(), place_of(directory))

    def is_of_this_boot(self) -> bool:
        """Say whether it was written since the machine was started."""
        return self.boot_id == boot_id()


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What is known of one staging file. Of its bytes those in `ranges` count.

    `base_etag` None: the name did not exist. Below `base_size` the base shows through where no
    range covers it; above there are zeros.
    """

    file: str
    """Name of the staging file, in the directory of the session."""
    key: Key
    base_etag: ETag | None
    base_size: int
    is_replacement: bool
    """All bytes are new: nothing of the base is needed."""
    size: int = 0
    ranges: Sequence[tuple[int, int]] = ()
    stage: Stage = Stage.WRITING
    reason: str = ""
    """Why it is kept."""
    is_synced: bool = False
    """Bytes and record were forced to the disk: they outlive a loss of power."""
    is_released: bool = False
    """The mount no longer uses the file, though it may still run."""
    nonce: str | None = None
    """What marks the empty object by which O_EXCL took the name, if there was one."""
    upload: str | None = None
    """The multipart upload that parts were sent to. Nothing else tells which ones are ours."""
    parts: Sequence[ETag] = ()
    """ETags of its parts 1, 2, ..., once all were sent."""
    expected_etag: ETag | None = None
    """The ETag of the object if the completing request is carried out, where it can be told."""
    expected_checksum: Checksum | None = None
    """CRC64NVME of the object then, for stores whose ETags cannot be told beforehand."""
    written_s: float = 0.0
    """Wall time of the last change, in seconds since the epoch."""

    def expecting(self, etag: ETag | None, checksum: Checksum | None) -> dict[str, object]:
        """Return what is expected of the next commit. None: what was said of the same bytes before
        holds on."""
        return {
            "expected_etag": etag or self.expected_etag,
            "expected_checksum": self.expected_checksum if checksum is None else checksum,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """What a log says: of which session it is, and the files that are neither done nor given up."""

    head: Head | None
    """None: of another form, or not readable."""
    records: Mapping[str, Record]
    """By the name of the staging file."""
    done: frozenset[str]
    """Staging files whose bytes the store has, or that nobody wants."""


@cache
def boot_id() -> str:
    """Return what tells this run of the machine from every other."""
    return _BOOT_ID.read_text().strip()


def place_of(directory: Path) -> str:
    """Return what tells a directory from a copy of it."""
    status = directory.stat()
    return f"{status.st_dev}:{status.st_ino}"


def head_line(head: Head) -> bytes:
    """Return the first line of a log."""
    return _line({"form": FORM, **asdict(head)})


def record_line(record: Record) -> bytes:
    """Return the line that says how far a file has come."""
    # By hand: `dataclasses.asdict` copies deeply, which took longer than all the rest.
    fields = {name: getattr(record, name) for name in Record.__slots__}
    fields["stage"] = record.stage.value
    return _line(fields)


def done_line(file: str) -> bytes:
    """Return the line by which all that was said of a file before is settled."""
    return _line({"done": file})


def read_log(directory: Path) -> Log:
    """Read the log of a session's directory. One that is missing is empty."""
    try:
        lines = (directory / LOG_NAME).read_bytes().split(b"\n")
    except FileNotFoundError:
        lines = [b""]
    head = _read_head(lines[0])
    records: dict[str, Record] = {}
    done: set[str] = set()
    for line in lines[1:-1] if head is not None else ():
        match _read_line(line):
            case Record() as record:
                records[record.file] = record
                done.discard(record.file)
            case str(file):
                records.pop(file, None)
                done.add(file)
    return Log(head=head, records=records, done=frozenset(done))


def _line(fields: Mapping[str, object]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode() + b"\n"


def _read_head(line: bytes) -> Head | None:
    try:
        fields = json.loads(line)
        if fields.pop("form") != FORM:
            return None
        return Head(**{**fields, "origin": Origin(**fields["origin"])})
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def _read_line(line: bytes) -> Record | str | None:
    """Return a record, the name of a file that is done, or None for what is not a line."""
    try:
        fields: dict[str, Any] = json.loads(line)
        if "done" in fields:
            return str(fields["done"])
        fields["stage"] = Stage(fields["stage"])
        fields["ranges"] = tuple((int(start), int(stop)) for start, stop in fields["ranges"])
        fields["parts"] = tuple(fields["parts"])
        record = Record(**fields)
    except (ValueError, TypeError, KeyError):
        return None
    # A name and not a path: what is done with the file stays in its directory.
    return record if record.file == Path(record.file).name else None
