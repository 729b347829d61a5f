"""The words of the domain: what a volume, an object version and a file's attributes are.

Every layer uses these types; they hold data and know no I/O, no clock and no kernel.
"""

from dataclasses import dataclass
from typing import NewType

__all__ = [
    "DIRECTORY_SUFFIX",
    "Attributes",
    "ETag",
    "HandleId",
    "InodeNo",
    "Key",
    "KiB",
    "MiB",
    "GiB",
    "ObjectInfo",
    "first_number",
    "index_of",
]

KiB = 1 << 10
MiB = 1 << 20
GiB = 1 << 30

InodeNo = NewType("InodeNo", int)
HandleId = NewType("HandleId", int)
Key = NewType("Key", str)
"""Full object key in the bucket, prefix included; never starts with `/`."""
ETag = NewType("ETag", str)
"""The store's name of one version's bytes, quotes included, exactly as the store sends it."""

# Inodes and handles of one volume count up from its index in the upper bits, so a number alone
# tells the volume. 40 bits last for ever, and 8,000 volumes stay below 2**53: programs that keep
# numbers as floats still tell them apart.
_NUMBER_BITS = 40


def first_number(index: int) -> int:
    """Return the number from which volume `index` of a mount counts; itself it is never used."""
    return index << _NUMBER_BITS


def index_of(number: int) -> int:
    """Return the index of the volume that an inode or handle number belongs to."""
    return number >> _NUMBER_BITS


DIRECTORY_SUFFIX = "/"
"""The empty object `name/` (a marker) stands for the directory `name`."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What the store says of one version of an object.

    `mtime_s` is LastModified cut to whole seconds since the epoch: stores disagree below that
    (MinIO lists milliseconds but answers HEAD with seconds), and a time that changes by itself
    would drop the kernel's page cache. None where the answer did not tell (PUT does not).
    """

    key: Key
    size: int
    etag: ETag
    mtime_s: int | None


@dataclass(frozen=True, slots=True)
class Attributes:
    """What `stat` shows of an inode. Owner and mode are the adapter's to add.

    `valid_s`: how long the kernel may keep entry and attributes, in seconds. `is_fixed`: nothing
    in this directory can be changed, by anybody.
    """

    number: InodeNo
    is_directory: bool
    size: int
    mtime_ns: int
    links: int
    valid_s: float
    is_fixed: bool = False
