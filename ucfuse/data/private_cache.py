"""The private cache directory of a job: made when needed, removed when the job ends.

It lies in the system's temporary directory. The ranks that one launcher started on this node share
it; a process that was not launched as a rank has its own. Whoever uses it holds a shared lock on
its file `users`, and only who gets that lock alone removes it: so the last one to leave does, and a
directory whose users were killed is removed by the next job that starts.

Concurrency: safe in any thread; one process keeps one directory.
"""

import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
import threading
import uuid
from collections.abc import Mapping
from pathlib import Path

from ucfuse.data.locks import release, try_lock
from ucfuse.data.process_exit import Step, at_end

__all__ = ["leave_all", "occupy", "own_cache", "private_directory"]

# What tells one launch on this node from another. The parent is the launcher of the ranks.
LAUNCH_VARIABLES = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "SLURM_JOB_ID")

_lock = threading.Lock()
# A forked child goes on using its parent's directory, with a lock of its own.
_jobs_directory: Path | None = None
_occupied: dict[tuple[int, Path], int] = {}


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    _occupied.clear()


os.register_at_fork(after_in_child=_after_fork)


def private_directory() -> Path:
    """Return the directory of this job, made and occupied. Raises `OSError`."""
    global _jobs_directory
    with _lock:
        if _jobs_directory is None:
            base = _base()
            for entry in base.iterdir():
                _remove_unused(entry)
            _jobs_directory = base / _job_name(os.environ)
    occupy(_jobs_directory)
    return _jobs_directory


def own_cache(source: str, limit_bytes: int | None) -> str:
    """Return the job's private cache of one source with one limit. Raises `OSError`."""
    what = os.fsencode(f"{limit_bytes} {source}")
    return str(private_directory() / hashlib.blake2b(what, digest_size=6).hexdigest())


def occupy(path: Path) -> None:
    """Keep the directory from being removed while this process lives. Raises `OSError`."""
    with _lock:
        mine = (os.getpid(), path)
        if mine in _occupied:
            return
        _occupied[mine] = _lock_users(path)
        at_end(Step.LEAVE_DIRECTORIES, leave_all)


def _lock_users(path: Path) -> int:
    users = path / "users"
    while True:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            descriptor = try_lock(users, fcntl.LOCK_SH, os.O_RDWR | os.O_CREAT)
        except FileNotFoundError:
            continue  # removed in between
        if descriptor is None:
            continue  # being removed right now: the name will be free in a moment
        if _is_at(descriptor, users):
            return descriptor
        release(descriptor)


def leave_all() -> None:
    """Give up this process's directories; whichever nobody else uses is removed."""
    with _lock:
        mine = dict(_occupied)
        _occupied.clear()
    for (_, path), descriptor in mine.items():
        release(descriptor)
        _remove_unused(path)


def _remove_unused(path: Path) -> None:
    """Remove the directory if nobody uses it; it is out of the way before its files go."""
    users = path / "users"
    try:
        descriptor = try_lock(users, fcntl.LOCK_EX, os.O_RDWR | os.O_CREAT)
    except OSError:
        return  # gone already, or not a directory
    if descriptor is None:
        return
    try:
        if _is_at(descriptor, users):
            aside = path if path.name.startswith(".gone-") else _aside(path)
            shutil.rmtree(aside, ignore_errors=True)
    finally:
        release(descriptor)


def _aside(path: Path) -> Path:
    return path.rename(path.with_name(f".gone-{uuid.uuid4().hex[:12]}"))


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _base() -> Path:
    """Return the directory of this user's jobs, which nobody else can write to."""
    base = Path(tempfile.gettempdir()) / f"ucfuse-data-{os.geteuid()}"
    base.mkdir(mode=0o700, exist_ok=True)
    status = base.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise PermissionError(
            f"{base}: not a directory of this user alone; remove it, or give cache_dir"
        )
    return base


def _job_name(environment: Mapping[str, str]) -> str:
    if not ("RANK" in environment and "WORLD_SIZE" in environment):
        return f"job-{os.getpid()}-{uuid.uuid4().hex[:12]}"
    launch = [environment.get(name, "") for name in LAUNCH_VARIABLES] + [str(os.getppid())]
    return f"job-{hashlib.blake2b(repr(launch).encode(), digest_size=8).hexdigest()}"
