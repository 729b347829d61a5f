"""Where things are in a cache directory, and what the record of a copy says.

    files/LABEL/sub/dirs/name.jpg   a complete copy, under its own name; LABEL stands for the source
    records/ab/KEY                  what the copy was made of; its lock is held while one is made
    partial/ab/KEY                  a copy in the making, of whoever holds the lock of that record
    ledger                          how many bytes are used, where there is a limit

A record is written before its copy is published, and says which file it is: a record without its
copy, or a copy without its record, is no copy. So a process may be killed between any two steps.

Records and copies in the making are spread over directories: in a large one, ext4 takes ten times
as long to make a file.

Concurrency: functions and frozen values, safe in any thread.
"""

import hashlib
import os
import zlib
from dataclasses import dataclass
from pathlib import Path

from ucfuse.data.listing import Version

__all__ = ["Layout", "Record", "fingerprint", "key_of", "parse_record"]

# Records have one length, so that rewriting one never leaves a tail of the older one.
RECORD_BYTES = 256
LONGEST_LABEL = 40


@dataclass(frozen=True, slots=True)
class Record:
    """Which version of the source a copy holds, and which file the copy is."""

    version: Version
    life: str
    """The life of the mount in which the version's inode number means something."""
    copy: tuple[int, int, int]
    """The `fingerprint` of the copy."""

    def as_bytes(self) -> bytes:
        """Return the record with its checksum."""
        version = self.version
        text = (
            f"{version.size} {version.mtime_ns} {version.device} {version.inode}"
            f" {self.copy[0]} {self.copy[1]} {self.copy[2]} {self.life}"
        ).encode()
        return b"%08x %s" % (zlib.crc32(text), text.ljust(RECORD_BYTES - 9))

    def holds(self, version: Version, life: str) -> bool:
        """Return whether the copy is of `version`, as seen in `life` of the mount."""
        mine = self.version
        if (mine.size, mine.mtime_ns) != (version.size, version.mtime_ns):
            return False
        same_life = self.life == life
        return not same_life or (mine.device, mine.inode) == (version.device, version.inode)


def parse_record(data: bytes) -> Record | None:
    """Return the record, None if there is none yet or it is not whole."""
    checksum, _, body = data.partition(b" ")
    text = body.rstrip(b" ")
    if len(data) != RECORD_BYTES or checksum != b"%08x" % zlib.crc32(text):
        return None
    *numbers, life = text.decode().split(" ", 7)
    size, mtime_ns, device, inode, *copy = map(int, numbers)
    return Record(Version(size, mtime_ns, device, inode), life, (copy[0], copy[1], copy[2]))


def fingerprint(status: os.stat_result) -> tuple[int, int, int]:
    """Return what tells a copy from any other file in its place: inode numbers are used again."""
    return status.st_ino, status.st_size, status.st_mtime_ns


def key_of(copy: str) -> str:
    """Return the key of a copy, given by its path below `files`."""
    return hashlib.blake2b(os.fsencode(copy), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths of one source directory's copies in one cache directory."""

    directory: str
    label: str

    @classmethod
    def of(cls, directory: str, source: str) -> "Layout":
        """Return the layout for the copies of `source`, an absolute path."""
        digest = hashlib.blake2b(os.fsencode(source), digest_size=6).hexdigest()
        readable = Path(source).name[:LONGEST_LABEL]
        return cls(directory, f"{readable}-{digest}" if readable else digest)

    def make(self) -> None:
        """Make the directories. Raises `OSError` with the path."""
        for name in ("files", "records", "partial"):
            os.makedirs(os.path.join(self.directory, name), exist_ok=True)

    @property
    def files(self) -> str:
        """The directory of complete copies, of all sources."""
        return os.path.join(self.directory, "files")

    @property
    def partials(self) -> str:
        """The directory of copies in the making."""
        return os.path.join(self.directory, "partial")

    @property
    def ledger(self) -> str:
        """The file that counts the bytes in use."""
        return os.path.join(self.directory, "ledger")

    def copy(self, name: str) -> str:
        """Return the path of the complete copy of the file `name` of the source."""
        return f"{self.directory}/files/{self.label}/{name}"

    def key(self, name: str) -> str:
        """Return the key of the file `name` of the source."""
        return key_of(f"{self.label}/{name}")

    def record(self, key: str) -> str:
        """Return the path of the record with this key."""
        return f"{self.directory}/records/{key[:2]}/{key}"

    def partial(self, key: str) -> str:
        """Return the path of the copy in the making with this key."""
        return f"{self.directory}/partial/{key[:2]}/{key}"
