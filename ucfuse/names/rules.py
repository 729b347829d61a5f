"""Which keys can be names, and which names can be keys: all rules of it.

A key is cut at `/`; each segment is the name of a directory, the last one that of the file.

- A key with a segment that no file can be called by (empty, as in `//` or at the front, `.`, `..`,
  with a NUL, over 255 bytes) does not show. `superblock` counts those that listings bring.
- A name that no key can have (not UTF-8, over 255 bytes, in a key over 1,024 bytes) is refused.
- If `a` and `a/b` both are keys, `a` is the directory, and the object shows as `a` with a suffix.

Pure functions. `catalog` has rules of its own for what users name as a source.
"""

from ucfuse.errors import NameNotUtf8, NameTooLong
from ucfuse.volume import DIRECTORY_SUFFIX, Key

__all__ = [
    "BESIDE_DIRECTORY_SUFFIX",
    "NAME_LIMIT_BYTES",
    "beside",
    "can_be_name",
    "decoded",
    "key_of_name",
    "marker_of",
    "without_beside",
]

KEY_LIMIT_BYTES = 1024  # S3's limit
NAME_LIMIT_BYTES = 255  # Linux's

BESIDE_DIRECTORY_SUFFIX = ".ucfuse-object"


def can_be_name(segment: str) -> bool:
    """Whether a file or directory can be called by this segment of a key."""
    if segment in ("", ".", "..") or DIRECTORY_SUFFIX in segment or "\0" in segment:
        return False
    return len(segment.encode()) <= NAME_LIMIT_BYTES


def decoded(name: bytes) -> str:
    """Return what a program calls a file by as text. Raises `NameTooLong`, `NameNotUtf8`."""
    if len(name) > NAME_LIMIT_BYTES:
        raise NameTooLong(name.decode(errors="backslashreplace"), f"{len(name)} bytes")
    try:
        return name.decode()
    except UnicodeDecodeError as cause:
        raise NameNotUtf8(name.decode(errors="backslashreplace")) from cause


def key_of_name(directory: Key, name: str) -> Key:
    """Return the key of a file in the directory with this marker. Raises `NameTooLong`."""
    if len(name.encode()) > NAME_LIMIT_BYTES:
        raise NameTooLong(directory + name)
    return _within_limit(directory + name)


def marker_of(key: Key) -> Key:
    """Return the marker of a directory where a file would have this key. Raises `NameTooLong`."""
    return _within_limit(key + DIRECTORY_SUFFIX)


def beside(name: str) -> str:
    """Return the name by which an object shows whose own name is a directory's."""
    return name + BESIDE_DIRECTORY_SUFFIX


def without_beside(name: str) -> str | None:
    """Return the name of the directory that an object of this name would show beside."""
    base = name.removesuffix(BESIDE_DIRECTORY_SUFFIX)
    return None if base in ("", name) else base


def _within_limit(key: str) -> Key:
    if len(key.encode()) > KEY_LIMIT_BYTES:
        raise NameTooLong(key)
    return Key(key)
