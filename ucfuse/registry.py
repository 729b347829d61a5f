"""Which mounts of this user run here, and how to reach their daemons.

Every daemon leaves a record and a socket in the user's runtime directory, by the name of its mount
point. `control` writes and serves them; the command line finds them, dead ones included.

Concurrency: blocking, but short; nothing here waits for a daemon, except `wait_for_end`.
"""

import hashlib
import json
import os
import select
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

__all__ = [
    "MountRecord",
    "connect",
    "find_record",
    "forget_record",
    "list_records",
    "name_of",
    "short_path",
    "wait_for_end",
    "write_record",
]

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class MountRecord:
    """What is known of a mount without asking its daemon. Lies beside the socket."""

    mountpoint: str
    source: str
    pid: int
    version: str
    commit_timeout_s: float
    host: str = field(default_factory=socket.gethostname)
    boot_id: str = field(default_factory=lambda: _BOOT_ID.read_text().strip())

    def is_local(self) -> bool:
        """Say whether this host wrote it: a home directory may be shared by several."""
        return self.host == socket.gethostname()

    def may_be_running(self) -> bool:
        """Say whether its process can still be there. Its number may belong to another by now."""
        this_boot = _BOOT_ID.read_text().strip()
        return self.boot_id == this_boot and not wait_for_end(self.pid, 0)


def wait_for_end(pid: int, timeout_s: float) -> bool:
    """Wait until the process has ended; False if it has not in time. Blocking."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        # Readable once it has ended, even while its parent has not asked for the exit code. By
        # poll: select refuses descriptors over 1023.
        ended = select.poll()
        ended.register(process, select.POLLIN)
        return bool(ended.poll(timeout_s * 1000))
    finally:
        os.close(process)


def list_records(runtime_dir: Path) -> list[MountRecord]:
    """Return the mounts of this host that were recorded and not taken back, dead ones included.

    Raises `OSError`: the directory is there and cannot be read.
    """
    try:
        names = sorted(os.listdir(runtime_dir))
    except FileNotFoundError:
        return []
    records = (_read_record(runtime_dir / name) for name in names if name.endswith(".json"))
    return [record for record in records if record is not None and record.is_local()]


def find_record(runtime_dir: Path, mountpoint: str) -> MountRecord | None:
    """Return the record of the mount at this path (no symbolic links in it)."""
    record = _read_record(runtime_dir / f"{name_of(mountpoint)}.json")
    return record if record is not None and record.mountpoint == mountpoint else None


def forget_record(runtime_dir: Path, record: MountRecord) -> None:
    """Remove the record and socket of a daemon that has ended, unless another took the name."""
    name = name_of(record.mountpoint)
    if _read_record(runtime_dir / f"{name}.json") == record:
        (runtime_dir / f"{name}.json").unlink(missing_ok=True)
        (runtime_dir / f"{name}.sock").unlink(missing_ok=True)


def connect(runtime_dir: Path, mountpoint: str, timeout_s: float) -> socket.socket:
    """Return a blocking connection to the daemon of the mount. Raises `OSError`: nobody answers."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout_s)
        with short_path(runtime_dir, mountpoint) as path:
            connection.connect(path)
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def short_path(runtime_dir: Path, mountpoint: str) -> Iterator[str]:
    """Yield a path of the socket that fits into the 107 bytes that the kernel allows."""
    directory = os.open(runtime_dir, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{name_of(mountpoint)}.sock"
    finally:
        os.close(directory)


def _read_record(path: Path) -> MountRecord | None:
    """Return the record; None: gone, or of a version of ucfuse that wrote another form."""
    try:
        return MountRecord(**json.loads(path.read_bytes()))
    except (FileNotFoundError, TypeError, ValueError):
        return None


def write_record(runtime_dir: Path, record: MountRecord) -> None:
    """Write it whole or not at all: `status` of another process may read at any moment."""
    path = runtime_dir / f"{name_of(record.mountpoint)}.json"
    draft = path.with_suffix(".tmp")
    draft.write_text(json.dumps(asdict(record)))
    draft.replace(path)


def name_of(mountpoint: str) -> str:
    # The host is part of it: two hosts that share a home directory may mount the same path.
    return hashlib.sha256(f"{socket.gethostname()}\0{mountpoint}".encode()).hexdigest()[:16]
