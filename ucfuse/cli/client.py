"""Talking to the daemons of running mounts, with a time limit on everything.

Every command that asks a mount uses it. Plain blocking sockets: there is nothing else to do
meanwhile.
"""

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from ucfuse.errors import ConfigError
from ucfuse.kernel.mountinfo import mounts_of
from ucfuse.kernel.mountpoint import FSTYPE, our_mount_at, resolve
from ucfuse.registry import MountRecord, connect

__all__ = [
    "ANSWER_TIMEOUT_S",
    "Silent",
    "ask",
    "mount_above",
    "named_mount",
    "not_ours",
    "unanswered",
]

# A daemon answers from memory and, while it commits, tells every second that it lives.
ANSWER_TIMEOUT_S = 5.0
MAX_CHUNK_BYTES = 1 << 16


class Silent(Exception):
    """The daemon of a mount does not answer."""


def ask(
    runtime_dir: Path, record: MountRecord, command: str, **more: object
) -> Iterator[dict[str, Any]]:
    """Send one command and yield each reply, to the end. Raises `Silent`."""
    try:
        connection = connect(runtime_dir, record.mountpoint, ANSWER_TIMEOUT_S)
        with closing(connection):
            connection.sendall(json.dumps({"command": command, **more}).encode() + b"\n")
            for line in _lines(connection):
                yield json.loads(line)
    except (OSError, ValueError) as error:
        raise Silent(record.mountpoint) from error


def unanswered(record: MountRecord) -> ConfigError:
    """Return what to tell about a mount whose daemon is silent: that it died, or that it hangs."""
    place, pid = record.mountpoint, record.pid
    if record.may_be_running():
        return ConfigError(
            f"{place}: its daemon (pid {pid}) does not answer; `kill -9 {pid}` ends it and what"
            f" waits, then `ucfuse umount {place}`"
        )
    return ConfigError(
        f"{place}: its daemon has died; mount it again, or run `ucfuse umount {place}`"
    )


def mount_above(path: Path) -> Path | None:
    """Return the mount point of ours that an absolute path is at or below, without touching it."""
    above = [entry for entry in mounts_of() if path.is_relative_to(entry.target)]
    # Of several at one place the last is on top.
    top = max(reversed(above), key=lambda entry: len(entry.target.parts))
    return top.target if top.fstype == FSTYPE else None


def named_mount(path: Path) -> Path:
    """Return the mount point that a path means. Raises `ConfigError`: it is inside of a mount.

    There a dead daemon would refuse to say what the path is, and one that hangs would never say.
    """
    path = Path(os.path.abspath(path))
    mountpoint = mount_above(path)
    if mountpoint not in (None, path):
        raise ConfigError(f"{path}: inside the mount at {mountpoint}; name that one")
    return resolve(path)


def not_ours(target: Path) -> ConfigError:
    """Return what to tell about a path that none of this user's daemons serves."""
    if our_mount_at(target) is None:
        return ConfigError(f"{target}: not a ucfuse mount; `ucfuse status` lists them")
    return ConfigError(
        f"{target}: mounted by another user, or with another XDG_STATE_HOME; run this as that user"
    )


def _lines(connection: socket.socket) -> Iterator[bytes]:
    """Yield the lines of the answer, each complete within the time limit. Raises `TimeoutError`."""
    received = b""
    deadline = time.monotonic() + ANSWER_TIMEOUT_S
    while True:
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        chunk = connection.recv(MAX_CHUNK_BYTES)
        if not chunk:
            return
        *lines, received = (received + chunk).split(b"\n")
        yield from lines
        if lines:
            deadline = time.monotonic() + ANSWER_TIMEOUT_S
