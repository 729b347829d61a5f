"""What is mounted where, read from /proc; nothing here touches a mounted file system.

`mountpoint` asks about mount points, `doctor` and the command line about all mounts, `descriptors`
about the mount behind another program's descriptor. A dead or hanging mount cannot block any of it.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["MountEntry", "mounted_at", "mounts_of", "parse_mountinfo"]

_OCTAL_ESCAPE = re.compile(rb"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class MountEntry:
    """One mount, as one process sees it. `device` is `major:minor`, as in /sys/class/bdi."""

    mount_id: int
    device: str
    target: Path
    fstype: str
    source: str
    read_only: bool


def parse_mountinfo(text: bytes) -> Iterator[MountEntry]:
    """Yield the mounts of a mountinfo file, in the order in which they were made."""
    for line in text.splitlines():
        before, _, after = line.partition(b" - ")
        fields, (fstype, source, *_) = before.split(b" "), after.split(b" ")
        yield MountEntry(
            mount_id=int(fields[0]),
            device=fields[2].decode(),
            target=Path(_unescape(fields[4])),
            fstype=_unescape(fstype),
            source=_unescape(source),
            read_only=b"ro" in fields[5].split(b","),
        )


def _unescape(field: bytes) -> str:
    """Undo the kernel's escapes: blanks and backslashes in paths appear as octal numbers."""
    plain = _OCTAL_ESCAPE.sub(lambda match: bytes([int(match[1], 8)]), field)
    return plain.decode(errors="surrogateescape")


def mounts_of(process: int | None = None) -> list[MountEntry]:
    """Return the mounts that a process sees, ours if None. Raises OSError if /proc cannot tell."""
    who = "self" if process is None else str(process)
    return list(parse_mountinfo(Path(f"/proc/{who}/mountinfo").read_bytes()))


def mounted_at(target: Path) -> MountEntry | None:
    """Return the topmost mount at this absolute path, None if it is not a mount point."""
    here = [entry for entry in mounts_of() if entry.target == target]
    return here[-1] if here else None
