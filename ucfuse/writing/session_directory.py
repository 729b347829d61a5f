"""The directory of one session's staging files, and how to tell that a session has ended.

A session is one run of a mount. `StagingArea` makes one. Each has a directory of its own with a
lock file that it holds by flock while it lives; the kernel drops the lock however the session
ends. What a dead session left behind is `leftovers`' business; here only empty directories go.

Concurrency: blocking calls of microseconds, at the start and the end of a mount, and in `recover`.
"""

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ucfuse.writing.records import DRAFT_NAME, LOG_NAME, read_log

__all__ = [
    "OWN_NAMES",
    "PREFIX",
    "SessionDirectory",
    "hold_if_dead",
    "session_directories",
    "staging_directory",
    "tidy",
]

LOCK_NAME = "lock"
PREFIX = "session-"

# What is in a directory beside staging files.
OWN_NAMES = frozenset({LOCK_NAME, LOG_NAME, DRAFT_NAME})


def staging_directory(state_dir: Path) -> Path:
    """Return where the sessions of all mounts with this `--state-dir` have their directories."""
    return state_dir / "staging"


class SessionDirectory:
    """Owns a private directory (0700) below `parent` and the lock that says that it is in use.

    Raises `OSError` at construction if `parent` cannot be used.
    """

    def __init__(self, parent: Path) -> None:
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _held(parent / LOCK_NAME):
            _remove_dead(parent)
            self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
            self._lock_fd = _open_lock(self.path / LOCK_NAME)
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX)

    def close(self) -> None:
        """End the session: its directory goes too unless files were kept in it."""
        if self._lock_fd < 0:
            return
        with _held(self.path.parent / LOCK_NAME):
            _remove_if_settled(self.path)
            os.close(self._lock_fd)
        self._lock_fd = -1


def session_directories(parent: Path) -> list[Path]:
    """Return the directories of all sessions below `parent`, dead and alive, that we may use.

    Raises `OSError`: it is there and cannot be read.
    """
    try:
        names = sorted(os.listdir(parent))
    except FileNotFoundError:
        return []
    return [
        directory
        for directory in (parent / name for name in names if name.startswith(PREFIX))
        if os.access(directory, os.R_OK | os.W_OK | os.X_OK)  # else another user's
    ]


@contextmanager
def hold_if_dead(directory: Path) -> Iterator[bool]:
    """Yield whether the session has ended; if so, it stays ours for the block.

    Nobody else can act on what it left behind meanwhile. A directory that is gone counts as alive.
    """
    with _held(directory.parent / LOCK_NAME):
        fd = _claim(directory)
    try:
        yield fd is not None
    finally:
        if fd is not None:
            os.close(fd)


def tidy(directory: Path) -> None:
    """Remove the directory of a session if nothing in it has to stay. The caller holds it."""
    with _held(directory.parent / LOCK_NAME):
        _remove_if_settled(directory)


def _claim(directory: Path) -> int | None:
    """Return the lock of a dead session, held; None: it lives, or is gone."""
    try:
        fd = _open_lock(directory / LOCK_NAME)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def _remove_if_settled(directory: Path) -> None:
    if set(os.listdir(directory)) - OWN_NAMES:
        return
    if any(record.upload or record.nonce for record in read_log(directory).records.values()):
        return  # something of it is still in the bucket
    for name in OWN_NAMES:
        (directory / name).unlink(missing_ok=True)
    directory.rmdir()


@contextmanager
def _held(path: Path) -> Iterator[None]:
    # Between making its directory and locking it a new session looks dead; all who make or
    # remove directories therefore take turns.
    fd = _open_lock(path)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _open_lock(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _remove_dead(parent: Path) -> None:
    for directory in session_directories(parent):
        fd = _claim(directory)
        if fd is not None:
            try:
                _remove_if_settled(directory)
            finally:
                os.close(fd)
