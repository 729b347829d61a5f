"""Which life of a mount a directory belongs to: inode numbers mean something within one only.

Linux 6.8 gives every mount a number that is never used again before the next boot. Older kernels
use the numbers of mounts and devices again, so there a remount may look like the same life: then
inode numbers are compared that need not be, and files are copied once more than necessary.
"""

import os
from functools import cache
from pathlib import Path

from ucfuse.data.statx import mount_number

__all__ = ["life_of"]


@cache
def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def life_of(directory: str) -> str:
    """Return a text that is equal while the file system of `directory` stays mounted."""
    return f"{_boot_id()}/{mount_number(directory)}/{os.stat(directory).st_dev}"
