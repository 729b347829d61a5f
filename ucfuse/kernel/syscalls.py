"""The two system calls that Python does not offer: mount(2) and umount2(2).

`mountpoint` and `tuning` use them where we are root; users go through fusermount3.
"""

import ctypes
import os
from pathlib import Path

__all__ = ["detach_mount", "mount_filesystem", "unmount_filesystem"]

_MNT_DETACH = 2
_UMOUNT_NOFOLLOW = 8

_libc = ctypes.CDLL(None, use_errno=True)


def _raise_errno(result: int, path: Path) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(path))


def mount_filesystem(fstype: str, target: Path) -> None:
    """Mount a file system of the kernel that needs no device. Raises OSError."""
    kind = fstype.encode()
    _raise_errno(_libc.mount(b"none", os.fsencode(target), kind, 0, None), target)


def unmount_filesystem(target: Path) -> None:
    """Unmount; waits while the kernel writes changed pages back. Raises OSError (EBUSY, ...)."""
    _raise_errno(_libc.umount2(os.fsencode(target), _UMOUNT_NOFOLLOW), target)


def detach_mount(target: Path) -> None:
    """Take the mount away from the tree; it ends when its last user does. Raises OSError."""
    flags = _MNT_DETACH | _UMOUNT_NOFOLLOW
    _raise_errno(_libc.umount2(os.fsencode(target), flags), target)
