"""Kernel settings of our mount that are too small for a network store.

`session` applies them once the mount answers (earlier the kernel would overwrite them). They make
reads faster and keep one slow store from holding up everything else; without them all still
works, so a setting that is not allowed becomes a warning, never an error.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ucfuse.kernel.syscalls import mount_filesystem

__all__ = ["tune"]

# With the default of 128 KiB the kernel reads in requests of 128 KiB; with 1 MiB sequential reads
# through the kernel were 2-6 times as fast. More brings nothing: a request carries at most 1 MiB.
READ_AHEAD_KIB = 1024
# By default 12 requests may run in the background: 12 reads that wait for a slow store would
# hold up the reads of everybody else.
MAX_BACKGROUND = 1024

SYSFS = Path("/sys")


def tune(device: str, sysfs: Path = SYSFS) -> list[str]:
    """Raise the limits of the mount with this `major:minor`; return a warning for each refusal."""
    settings = _settings(device, sysfs)
    return [warning for path, value in settings if (warning := _write(path, value))]


def _settings(device: str, sysfs: Path) -> Iterator[tuple[Path, int]]:
    yield sysfs / "class/bdi" / device / "read_ahead_kb", READ_AHEAD_KIB
    connections = sysfs / "fs/fuse/connections"
    _show_connections(connections)
    connection = connections / device.partition(":")[2]
    yield connection / "max_background", MAX_BACKGROUND
    yield connection / "congestion_threshold", MAX_BACKGROUND


def _show_connections(folder: Path) -> None:
    """Mount the kernel's FUSE control files if they are not there yet."""
    if os.geteuid() == 0 and folder.is_dir() and not any(folder.iterdir()):
        with suppress(OSError):  # then the files below it are missing, and the warnings say so
            mount_filesystem("fusectl", folder)


def _write(path: Path, value: int) -> str | None:
    try:
        path.write_text(f"{value}\n")
    except OSError as cause:
        reason = cause.strerror
        return f"slower than it could be: cannot write {value} to {path}: {reason}; root can"
    return None
