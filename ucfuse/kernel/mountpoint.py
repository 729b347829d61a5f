"""The directory that we mount on: is it fit, is a dead mount in the way, who still uses it.

`ucfuse mount` prepares it before anything else starts; the daemon takes its mount away, and
`ucfuse umount` that of a dead one. A mount whose daemon hangs can block every call on its path for
ever, so whether one answers is asked by a child process that may be left behind; all else is read
from /proc.
"""

import errno
import os
import subprocess
import sys
from enum import Enum, auto
from pathlib import Path

from ucfuse.errors import ConfigError
from ucfuse.kernel.mountinfo import MountEntry, mounted_at
from ucfuse.kernel.syscalls import detach_mount, unmount_filesystem

__all__ = [
    "FSTYPE",
    "Health",
    "MountBusy",
    "health_of",
    "our_mount_at",
    "prepare",
    "resolve",
    "unmount",
    "users_of",
]

FSTYPE = "fuse.ucfuse"
VOLUMES_ROOT = Path("/Volumes")
# A live daemon answers the probe from memory. Chosen by feel: a machine that swaps needs seconds.
PROBE_TIMEOUT_S = 10.0
FUSERMOUNT_TIMEOUT_S = 30.0
# Exits with the errno: texts of error messages are not for programs.
PROBE = """import os, sys
try: os.statvfs(sys.argv[1])
except OSError as cause: sys.exit(cause.errno)"""


class MountBusy(Exception):
    """Programs still use the mount; `users` holds those of their pids that we may see."""

    def __init__(self, target: Path, users: list[int]) -> None:
        super().__init__(target, users)
        self.target = target
        self.users = users

    def __str__(self) -> str:
        pids = ", ".join(map(str, self.users)) or "of other users"
        return f"{self.target}: still in use by processes: {pids}"


class Health(Enum):
    """Whether a mount answers."""

    ALIVE = auto()
    DEAD = auto()
    """Its daemon is gone: every access is refused at once."""
    SILENT = auto()
    """Its daemon does not answer in time; whoever touches it waits too."""


def resolve(path: Path) -> Path:
    """Return the absolute path without symbolic links; touches nothing that is mounted at it."""
    path = Path(os.path.abspath(path))
    while path != path.parent:
        path = Path(os.path.realpath(path.parent)) / path.name
        if mounted_at(path) is not None or not path.is_symlink():
            break
        path = Path(os.path.abspath(path.parent / path.readlink()))
    return path


def our_mount_at(target: Path) -> MountEntry | None:
    """Return the ucfuse mount at this resolved path, None if none is on top there."""
    entry = mounted_at(target)
    return entry if entry and entry.fstype == FSTYPE else None


def health_of(target: Path, timeout_s: float = PROBE_TIMEOUT_S) -> Health:
    """Ask a mount for a sign of life, for at most `timeout_s` seconds."""
    command = [sys.executable, "-I", "-S", "-c", PROBE, str(target)]
    nothing = subprocess.DEVNULL
    probe = subprocess.Popen(command, stdin=nothing, stdout=nothing, stderr=nothing)
    try:
        code = probe.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return Health.SILENT
    finally:
        probe.kill()  # and do not wait: a process that waits for a daemon may not be killable
    return Health.DEAD if code in (errno.ENOTCONN, errno.ECONNABORTED) else Health.ALIVE


def prepare(mountpoint: Path, *, volumes_root: Path = VOLUMES_ROOT) -> Path:
    """Return the resolved mount point: an empty directory with no mount of ours at it.

    Takes a dead mount away and creates what is missing below /Volumes. Raises `ConfigError`.
    """
    target = resolve(mountpoint)
    while (entry := mounted_at(target)) and entry.fstype.startswith("fuse"):
        _take_away_if_dead(target, entry)
    try:
        _require_empty_directory(target, volumes_root)
    except PermissionError as cause:
        raise ConfigError(
            f"{target}: no permission to use it as a mount point; as root run: "
            f"mkdir -p {target} && chown {os.geteuid()} {target}"
        ) from cause
    except OSError as cause:
        raise ConfigError(
            f"{target}: cannot be a mount point: {cause.strerror}; choose another directory"
        ) from cause
    return target


def _take_away_if_dead(target: Path, entry: MountEntry) -> None:
    if entry.fstype != FSTYPE:
        raise ConfigError(
            f"{target}: {entry.source} ({entry.fstype}) is mounted here; unmount it first"
        )
    match health_of(target):
        case Health.ALIVE:
            raise ConfigError(
                f"{target}: {entry.source} is already mounted here; "
                f"run `ucfuse umount {target}` first"
            )
        case Health.SILENT:
            raise ConfigError(
                f"{target}: the daemon of the mount here does not answer; end it, then mount again"
            )
        case Health.DEAD:
            unmount(target, lazy=True)


def _require_empty_directory(target: Path, volumes_root: Path) -> None:
    if not target.exists() and target.is_relative_to(resolve(volumes_root)):
        target.mkdir(parents=True)
    if not target.exists():
        raise ConfigError(f"{target}: no such directory; create it with: mkdir -p {target}")
    if not target.is_dir():
        raise ConfigError(f"{target}: not a directory; choose an empty directory")
    if any(target.iterdir()):
        raise ConfigError(f"{target}: not empty; choose an empty directory, its files would hide")
    if os.geteuid() != 0 and not os.access(target, os.W_OK):  # fusermount3 would refuse
        raise PermissionError(errno.EACCES, "not writable")


def unmount(target: Path, *, lazy: bool = False) -> None:
    """Unmount; `lazy` takes it out of the tree at once, even when it is dead or in use.

    Without `lazy` this waits until the kernel has written changed mapped pages: never call it in
    the loop that serves the mount. Raises `MountBusy`, `ConfigError`.
    """
    if os.geteuid() == 0:
        _unmount_as_root(target, lazy)
    else:
        _unmount_as_user(target, lazy)


def _unmount_as_root(target: Path, lazy: bool) -> None:
    system_call = detach_mount if lazy else unmount_filesystem
    try:
        system_call(target)
    except OSError as cause:
        if cause.errno == errno.EBUSY:
            raise MountBusy(target, users_of(target)) from cause
        raise ConfigError(f"{target}: cannot unmount: {cause.strerror}; is it mounted?") from cause


def _unmount_as_user(target: Path, lazy: bool) -> None:
    command = ["fusermount3", "-u", *(["-z"] if lazy else []), "--", str(target)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=FUSERMOUNT_TIMEOUT_S, check=False
        )
    except FileNotFoundError as cause:
        raise ConfigError("fusermount3: not found; install the package fuse3") from cause
    except subprocess.TimeoutExpired as cause:
        raise ConfigError(
            f"{target}: unmounting takes over {FUSERMOUNT_TIMEOUT_S:.0f} s; does its daemon hang?"
        ) from cause
    if done.returncode == 0:
        return
    # It has one exit code for everything, so what is there to see decides.
    users = users_of(target)
    if users and mounted_at(target):
        raise MountBusy(target, users)
    raise ConfigError(f"{target}: cannot unmount: {done.stderr.strip()}")


def users_of(target: Path) -> list[int]:
    """Return the processes that hold a file, a mapping or their working directory below `target`.

    Only those that we may look into: all as root, else those of our own user. Reads links of
    /proc, which the kernel answers without asking the mount.
    """
    pids = (int(entry) for entry in os.listdir("/proc") if entry.isdigit())
    return sorted(pid for pid in pids if pid != os.getpid() and _uses(pid, str(target)))


def _uses(pid: int, target: str) -> bool:
    inside = target.rstrip("/") + "/"
    return any(path == target or path.startswith(inside) for path in _paths_of(pid))


def _paths_of(pid: int) -> list[str]:
    folder = f"/proc/{pid}"
    links = [f"{folder}/{name}" for name in ("cwd", "root", "exe")]
    for held in ("fd", "map_files"):
        try:
            links += [f"{folder}/{held}/{name}" for name in os.listdir(f"{folder}/{held}")]
        except OSError:  # gone meanwhile, or not ours to look into
            continue
    return [path for link in links if (path := _read_link(link))]


def _read_link(link: str) -> str | None:
    try:
        return os.readlink(link)
    except OSError:  # closed meanwhile, or not ours to look into
        return None
