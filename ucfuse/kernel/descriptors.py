"""Who still has a file open for writing: what /proc tells of a program's descriptors.

The kernel sends a FLUSH for every descriptor that goes, also when a child process exits that only
inherited it. `fs` asks here whether the program that opened the file still holds it. Nothing is
ever opened or `stat`ed on the mount itself: that would be a request to ourselves.

Concurrency: plain reads of /proc in the trio loop, one file for each descriptor of the program:
0.5 ms for a usual program, 25 ms for one with 900 descriptors, measured on a busy 2-core machine.
Asked only when a file with uncommitted bytes is flushed.
"""

import os
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from ucfuse.kernel.mountinfo import mounted_at, mounts_of
from ucfuse.volume import InodeNo

__all__ = ["ProcDescriptors"]

# More than the kernel writes about a plain file; a file with many locks has more lines, but
# position, flags, mount and inode come first.
FDINFO_BYTES = 1024
# A program can have thousands of descriptors, so their texts are read in one step each.
_FIELDS = re.compile(rb"^flags:\s*(\d+)\nmnt_id:\s*(\d+)\nino:\s*(\d+)$", re.MULTILINE)


class ProcDescriptors:
    """The `DescriptorProbe` of the mount at `mountpoint`."""

    def __init__(self, mountpoint: Path) -> None:
        self._mountpoint = mountpoint
        self._device: str | None = None
        self._openers: dict[int, int] = {}

    def opener_of(self, thread: int) -> int | None:
        """Return the process of this thread; None: gone, or in another pid namespace."""
        if not thread or not self._proc_is_ours:
            return None
        known = self._openers.get(thread)
        if known is not None and os.path.exists(f"/proc/{known}/task/{thread}"):
            return known
        self._openers.clear()  # it stays small, and threads that are gone are not remembered
        opener = _process_of(thread)
        if opener is not None:
            self._openers[thread] = opener
        return opener

    def program_of(self, thread: int) -> str | None:
        """Return the name that the kernel has of the program; None: gone, or not to be seen."""
        process = self.opener_of(thread)
        if process is None:
            return None
        try:
            return Path(f"/proc/{process}/comm").read_text(errors="replace").rstrip("\n")
        except OSError:
            return None

    def count_writable(self, opener: int, number: InodeNo) -> int | None:
        """Return how many descriptors of `opener` may write to this inode of our mount."""
        device = self._our_device()
        if device is None:
            return None
        try:
            mounts = list(_mounts_of_writable(opener, number))
            if not mounts:
                return 0
            devices = {entry.mount_id: entry.device for entry in mounts_of(opener)}
            # KeyError: a descriptor from a mount that its program cannot see. It may be ours.
            return sum(devices[mount] == device for mount in mounts)
        except (OSError, KeyError):
            return None

    @cached_property
    def _proc_is_ours(self) -> bool:
        """Whether /proc counts processes as the kernel does for us (containers may differ)."""
        try:
            return os.readlink("/proc/self") == str(os.getpid())
        except OSError:
            return False

    def _our_device(self) -> str | None:
        """Return our device. Known from the first request on, and for ever: after a lazy unmount
        the mount point is gone from the table, but programs go on using their files."""
        if self._device is None:
            entry = mounted_at(self._mountpoint)
            self._device = entry.device if entry else None
        return self._device


def _process_of(thread: int) -> int | None:
    try:
        status = Path(f"/proc/{thread}/status").read_text(errors="replace")
    except OSError:
        return None
    for line in status.splitlines():
        if line.startswith("Tgid:"):
            return int(line.split()[1])
    return None


def _mounts_of_writable(process: int, number: int) -> Iterator[int]:
    """Yield, for each of its descriptors that is open for writing on an inode with this number,
    the mount that it belongs to. KeyError: a kernel that leaves lines out."""
    folder = os.open(f"/proc/{process}/fdinfo", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in os.listdir(folder):
            text = _read_if_open(name, folder)
            if text is None:
                continue
            fields = _FIELDS.search(text)
            if fields is None:
                raise KeyError(name)
            if int(fields[3]) == number and int(fields[1], 8) & os.O_ACCMODE != os.O_RDONLY:
                yield int(fields[2])
    finally:
        os.close(folder)


def _read_if_open(name: str, folder: int) -> bytes | None:
    """Return the text of one fdinfo file; None: the descriptor was closed meanwhile."""
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:
        return None
    try:
        return os.read(descriptor, FDINFO_BYTES)
    except FileNotFoundError:
        return None
    finally:
        os.close(descriptor)
