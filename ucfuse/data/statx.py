"""`statx`, which Python's library lacks: asks a file system only for what is wanted.

`os.fstat` asks for the access time too, which the kernel holds to be unknown after every read of a
FUSE file: each copy would cost one more request. Without `statx` in the C library, it is `fstat`.

Concurrency: functions only, safe in any thread.
"""

import ctypes
import os
import struct
from functools import cache
from typing import Any

from ucfuse.data.listing import Version

__all__ = ["mount_number", "version_of_open"]

AT_FDCWD = -100
AT_EMPTY_PATH = 0x1000
STATX_MTIME = 0x40
STATX_INO = 0x100
STATX_SIZE = 0x200
STATX_MNT_ID = 0x1000
STATX_MNT_ID_UNIQUE = 0x4000
STATX_BYTES = 256

# Mask, inode, size, mtime (s, ns), device (major, minor), number of the mount.
_FIELDS = struct.Struct("=I28xQQ64xqI12xIIQ")


@cache
def _statx() -> Any:
    function = getattr(ctypes.CDLL(None, use_errno=True), "statx", None)
    if function is not None:
        function.argtypes = [
            ctypes.c_int,
            ctypes.c_char_p,
            ctypes.c_int,
            ctypes.c_uint,
            ctypes.c_char_p,
        ]
    return function


def _ask(descriptor: int, path: bytes, flags: int, wanted: int) -> tuple[int, ...] | None:
    """Return what `_FIELDS` names, None where that cannot be asked for."""
    statx = _statx()
    buffer = ctypes.create_string_buffer(STATX_BYTES)
    if statx is None or statx(descriptor, path, flags, wanted, buffer) != 0:
        return None
    return _FIELDS.unpack_from(buffer)


def version_of_open(descriptor: int) -> Version:
    """Return the version that an open file shows. Raises `OSError`."""
    wanted = STATX_SIZE | STATX_MTIME | STATX_INO
    answer = _ask(descriptor, b"", AT_EMPTY_PATH, wanted)
    if answer is None or answer[0] & wanted != wanted:
        return Version.of(os.fstat(descriptor))
    _, inode, size, seconds, nanoseconds, major, minor, _ = answer
    return Version(size, seconds * 10**9 + nanoseconds, os.makedev(major, minor), inode)


def mount_number(directory: str) -> int:
    """Return the number of the mount that a directory is on, 0 where nobody can tell."""
    wanted = STATX_MNT_ID | STATX_MNT_ID_UNIQUE
    answer = _ask(AT_FDCWD, os.fsencode(directory), 0, wanted)
    return answer[-1] if answer is not None and answer[0] & wanted else 0
