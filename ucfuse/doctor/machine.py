"""Whether mounts can work on this machine. Reads files; changes nothing but a file that it removes.

Every check returns a `Finding`: what was looked at, how it is, and what mends it.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ucfuse.doctor.findings import Finding, fail, ok, warn
from ucfuse.kernel.mountinfo import MountEntry, mounts_of
from ucfuse.kernel.mountpoint import FSTYPE
from ucfuse.kernel.tuning import MAX_BACKGROUND, READ_AHEAD_KIB
from ucfuse.units import size_text
from ucfuse.volume import GiB

__all__ = ["Machine", "examine_machine"]

LITTLE_ROOM_BYTES = 1 * GiB


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Where to look. The defaults are this machine; tests have others."""

    state_dir: Path
    is_root: bool = os.geteuid() == 0
    user: int = os.geteuid()
    device: Path = Path("/dev/fuse")
    fuse_conf: Path = Path("/etc/fuse.conf")
    sysfs: Path = Path("/sys")
    proc: Path = Path("/proc")
    find_program: Callable[[str], str | None] = shutil.which
    may: Callable[[Path, int], bool] = os.access
    mounts: Callable[[], list[MountEntry]] = mounts_of


def examine_machine(machine: Machine) -> Iterator[Finding]:
    """Yield what there is to say of the machine."""
    yield look_at_device(machine)
    yield look_at_fusermount(machine)
    yield look_at_allow_other(machine)
    yield look_at_kernel_limits(machine)
    yield look_at_descriptors(machine)
    yield look_at_state_directory(machine)


def look_at_device(machine: Machine) -> Finding:
    """Can the kernel's FUSE be used?"""
    device = machine.device
    if not device.exists():
        return fail(
            str(device), "missing", "run `modprobe fuse`, or give the device to the container"
        )
    if not machine.may(device, os.R_OK | os.W_OK):
        return fail(str(device), "no permission", f"as root run: chmod 666 {device}")
    return ok(str(device), "usable")


def look_at_fusermount(machine: Machine) -> Finding:
    """Users that are not root mount through it."""
    found = machine.find_program("fusermount3")
    if found:
        return ok("fusermount3", found)
    kind = warn if machine.is_root else fail
    return kind("fusermount3", "not found", "install the package fuse3")


def look_at_allow_other(machine: Machine) -> Finding:
    """May users that are not root let others into their mounts?"""
    conf, subject = machine.fuse_conf, "user_allow_other"
    try:
        lines = [line.strip() for line in conf.read_text().splitlines()]
    except OSError:
        lines = []
    if subject in lines or machine.is_root:
        return ok(subject, "root needs no permission" if machine.is_root else f"in {conf}")
    return warn(
        subject, f"not in {conf}: no --allow-other", f"as root add the line {subject} to it"
    )


def look_at_kernel_limits(machine: Machine) -> Finding:
    """Are readahead and background requests of mounts as large as a network store needs?"""
    subject = "kernel readahead and background limits"
    small = [
        f"{entry.target}: {name} is {value}"
        for entry in machine.mounts()
        if entry.fstype == FSTYPE
        for name, value in _small_limits(machine.sysfs, entry.device)
    ]
    if small:
        return warn(subject, "; ".join(small), "mount as root, or let root write them in /sys")
    if not machine.is_root:
        return warn(
            subject,
            "a plain user's mounts keep the kernel's small ones",
            "mount as root for faster reads",
        )
    if not os.access(machine.sysfs / "class/bdi", os.W_OK):
        return warn(
            subject,
            f"{machine.sysfs} is read-only: mounts are slower than they could be",
            "give the container a writable /sys (--privileged)",
        )
    return ok(subject, f"raised at each mount to {READ_AHEAD_KIB} KiB and {MAX_BACKGROUND}")


def _small_limits(sysfs: Path, device: str) -> Iterator[tuple[str, int]]:
    connection = sysfs / "fs/fuse/connections" / device.partition(":")[2]
    for path, wanted in (
        (sysfs / "class/bdi" / device / "read_ahead_kb", READ_AHEAD_KIB),
        (connection / "max_background", MAX_BACKGROUND),
    ):
        try:
            value = int(path.read_text())
        except (OSError, ValueError):
            continue
        if value < wanted:
            yield path.name, value


def look_at_descriptors(machine: Machine) -> Finding:
    """Can the daemon see which descriptors programs of other users still have open?"""
    subject = "other users' /proc/PID/fdinfo"
    try:
        processes = [path for path in machine.proc.iterdir() if path.name.isdigit()]
        foreign = [path for path in processes if _owner_of(path) not in (None, machine.user)]
    except OSError as error:
        return warn(subject, f"{machine.proc}: {error.strerror}", "mount /proc")
    results = [_is_readable(path / "fdinfo") for path in foreign]
    if any(results):
        return ok(subject, "readable")
    if not foreign:
        return ok(subject, "no process of another user to try it on")
    return warn(
        subject,
        "not readable: a file that another user's program shares with a child process is"
        " committed at each close",
        "mount as root (with CAP_SYS_PTRACE) where others write",
    )


def _owner_of(path: Path) -> int | None:
    try:
        return path.stat().st_uid
    except FileNotFoundError:  # the process has ended meanwhile
        return None


def _is_readable(folder: Path) -> bool:
    try:
        return any((folder / name).read_bytes() for name in os.listdir(folder))
    except OSError:
        return False


def look_at_state_directory(machine: Machine) -> Finding:
    """Can what programs write be kept until it is committed?"""
    directory, subject = machine.state_dir, f"state directory {machine.state_dir}"
    other = "choose another with --state-dir"
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory) as probe:
            fcntl.flock(probe, fcntl.LOCK_EX | fcntl.LOCK_NB)
            probe.write(b"x")
            probe.flush()
            os.fsync(probe.fileno())
            room = os.fstatvfs(probe.fileno())
    except OSError as error:
        return fail(subject, error.strerror or str(error), other)
    free_bytes = room.f_bavail * room.f_frsize
    if free_bytes < LITTLE_ROOM_BYTES:
        return warn(subject, f"{size_text(free_bytes)} free", f"make room, or {other}")
    return ok(subject, f"{size_text(free_bytes)} free")
