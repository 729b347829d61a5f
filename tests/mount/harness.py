"""A mount under test: the daemon in a session of its own, and everything to end it for certain.

No test can wedge the run. A watchdog process outside Python kills the daemon when a test takes
too long, and when the test process itself is gone; the kernel then answers every request that
hangs. Without that, a program that waits for a hung daemon could not even be killed.
"""

import errno
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from .programs import eventually
from .witness import Bucket

__all__ = [
    "Counts",
    "Mount",
    "MountCatalog",
    "MountVolume",
    "Volume",
    "Watchdog",
    "is_mounted",
    "mounted_type",
    "ucfuse",
]

TEST_DEADLINE_S = 90
START_DEADLINE_S = 20.0
ROOT = Path(__file__).resolve().parents[2]

# What a daemon must never log: every failure has a cause, and a cause has no traceback.
FAILURE_IN_LOG = re.compile(r"Traceback \(most recent|\bbug\b", re.IGNORECASE)


@dataclass(slots=True)
class Counts:
    """Requests that a block of a test caused. Filled when the block ends; no zeros."""

    store: Counter[str] = field(default_factory=Counter)
    fuse: Counter[str] = field(default_factory=Counter)


def mounted_type(path: Path) -> str | None:
    """Return the type of the file system mounted at the path; None: nothing is mounted there.

    Reads the kernel's table, never the path: a dead or hung mount must not stop us.
    """
    found = None
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, after = line.split(" - ", 1)
        if before.split()[4] == str(path).replace(" ", "\\040"):
            found = after.split()[0]
    return found


def is_mounted(path: Path) -> bool:
    """Say whether a file system is mounted at the path, dead or alive."""
    return mounted_type(path) is not None


def ucfuse(
    *arguments: str | Path,
    environment: Mapping[str, str],
    deadline_s: float = 30.0,
    directory: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run the command line tool to its end, in `directory` if one is given."""
    return subprocess.run(
        [sys.executable, "-m", "ucfuse", *map(str, arguments)],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=deadline_s,
        check=False,
    )


class Watchdog:
    """Kills a daemon and detaches its mount, unless called off in time.

    A process of its own: a test process that waits inside a page fault runs no Python thread.
    It also acts when its pipe closes, that is, when the test process dies.
    """

    def __init__(self, pid: int, mountpoint: Path, seconds: int = TEST_DEADLINE_S) -> None:
        script = 'read -t "$1" line && exit 0; kill -KILL "$2"; umount -l "$3"; exit 1'
        self._process = subprocess.Popen(
            ["bash", "-c", script, "watchdog", str(seconds), str(pid), str(mountpoint)],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def call_off(self) -> bool:
        """End the watch. True: it never had to act."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(b"done\n")
            self._process.stdin.flush()
        code = self._process.wait(10)
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        return code == 0


class Mount:
    """One mount of a bucket's prefix, of `memory:`, of the volumes of a `volumes.toml`, or of what
    `sources` names.

    Owner of the daemon: this object.
    """

    def __init__(
        self,
        bucket: Bucket | None,
        work: Path,
        environment: Mapping[str, str],
        options: Sequence[str] = (),
        volumes: str = "",
        sources: Sequence[str] | None = None,
    ) -> None:
        self._sources = sources
        self._bucket = bucket
        self._volumes_file = work / "volumes.toml" if volumes else None
        if self._volumes_file:
            self._volumes_file.write_text(volumes)
        self.path = work / "mnt"
        self.log_path = work / "daemon.log"
        self.environment = dict(environment)
        self.options = list(options)
        self.state_dir = work / "state"
        self.failures_expected = False
        self._daemon: subprocess.Popen[bytes] | None = None
        self._watchdog: Watchdog | None = None
        self._hung = False
        self.path.mkdir(parents=True)

    @property
    def bucket(self) -> Bucket:
        """The place that is mounted, seen through boto3."""
        assert self._bucket is not None, "a memory: mount has no bucket"
        return self._bucket

    @property
    def pid(self) -> int:
        """The process that serves the mount."""
        assert self._daemon is not None, "not started"
        return self._daemon.pid

    def start(self, deadline_s: float = START_DEADLINE_S) -> "Mount":
        """Start the daemon and wait until the mount answers."""
        source = [self._bucket.source if self._bucket else "memory:"]
        if self._volumes_file:
            source = ["--volumes", str(self._volumes_file)]
        if self._sources is not None:
            source = [*self._sources]
        arguments = [
            *("-m", "ucfuse", "mount", "--foreground", "--state-dir", str(self.state_dir)),
            *(*self.options, *source, str(self.path)),
        ]
        with self.log_path.open("ab") as log:
            self._daemon = subprocess.Popen(
                [sys.executable, *arguments],
                env={**os.environ, "PYTHONPATH": str(ROOT), **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._watchdog = Watchdog(self._daemon.pid, self.path)
        eventually(f"a mount at {self.path}", self._came_up, deadline_s)
        return self

    def _came_up(self) -> bool:
        assert self._daemon is not None
        if self._daemon.poll() is not None:
            raise AssertionError(f"the daemon ended with {self._daemon.returncode}:\n{self.log()}")
        try:
            os.statvfs(self.path)
        except OSError as error:
            # What a killed daemon left behind; the new one replaces it.
            if error.errno not in (errno.ENOTCONN, errno.ECONNABORTED):
                raise
            return False
        # Asked last: between the two mounts the directory below would have answered.
        return mounted_type(self.path) == "fuse.ucfuse"

    def watch_again(self, seconds: int = TEST_DEADLINE_S) -> None:
        """Give the next test that uses this mount a deadline of its own."""
        self._call_off()
        self._watchdog = Watchdog(self.pid, self.path, seconds)

    def _call_off(self) -> None:
        watchdog, self._watchdog = self._watchdog, None
        if watchdog is not None and not watchdog.call_off():
            self._hung = True

    def log(self, start: int = 0) -> str:
        """Return what the daemon logged, from byte `start`; the end of it if it is long."""
        data = self.log_path.read_bytes()[start:] if self.log_path.exists() else b""
        return data[-20_000:].decode(errors="replace")

    def is_alive(self) -> bool:
        """Say whether the daemon runs."""
        return self._daemon is not None and self._daemon.poll() is None

    def status(self) -> dict[str, Any]:
        """Return what `ucfuse status --json` tells of this mount."""
        done = ucfuse("status", "--json", environment=self.environment)
        for entry in json.loads(done.stdout):
            if entry["mountpoint"] == str(self.path) and "problem" not in entry:
                found: dict[str, Any] = entry
                return found
        raise AssertionError(f"no status of {self.path} in {done.stdout}{done.stderr}")

    @contextmanager
    def counting(self) -> Iterator[Counts]:
        """Count the requests that the block causes. One test at a time per mount."""
        counts = Counts()
        before = self.status()
        yield counts
        after = self.status()
        for name in ("store", "fuse"):
            kinds = f"{name}_requests"
            used = Counter(after[kinds])
            used.subtract(before[kinds])
            setattr(counts, name, +used)

    def umount(self) -> subprocess.CompletedProcess[str]:
        """Run `ucfuse umount` and return how it ended."""
        return ucfuse("umount", self.path, environment=self.environment)

    def remount(self) -> None:
        """Unmount cleanly and mount the same place again."""
        done = self.umount()
        assert done.returncode == 0, done.stderr
        self._reap()
        self.start()

    def kill(self) -> None:
        """End the daemon as a crash would: SIGKILL, the mount point stays."""
        os.kill(self.pid, signal.SIGKILL)
        self._reap()

    def _reap(self) -> None:
        if self._daemon is not None:
            self._daemon.wait(30)
        self._call_off()

    def close(self) -> None:
        """Unmount whatever is left, end the daemon, and never leave anything behind."""
        try:
            if self.is_alive() and is_mounted(self.path):
                with suppress(subprocess.TimeoutExpired):
                    self.umount()
        finally:
            self._end_by_force()

    def _end_by_force(self) -> None:
        # The daemon goes first: a detached mount whose daemon hangs still holds its callers.
        with suppress(subprocess.TimeoutExpired):
            if self._daemon is not None and not is_mounted(self.path):
                self._daemon.wait(10)
        if self.is_alive():
            os.kill(self.pid, signal.SIGKILL)
        self._reap()
        while is_mounted(self.path):
            subprocess.run(["umount", "-l", self.path], check=True, timeout=10)

    def complaints(self, log_start: int = 0) -> str:
        """Return why a test on this mount must fail though its assertions held, or nothing."""
        if self._hung:
            return f"the test hung and its daemon was killed; its log:\n{self.log(log_start)}"
        text = self.log(log_start)
        if not self.failures_expected and FAILURE_IN_LOG.search(text):
            return f"the daemon logged a failure of its own:\n{text}"
        return ""


@dataclass(frozen=True, slots=True)
class Volume:
    """A directory of a shared mount that one test has to itself, and the same through boto3."""

    mount: Mount
    path: Path
    bucket: Bucket

    def counting(self) -> AbstractContextManager[Counts]:
        """Count the requests that the block causes."""
        return self.mount.counting()

    def status(self) -> dict[str, Any]:
        """Return the status of the whole mount."""
        return self.mount.status()


class MountVolume(Protocol):
    """Start a mount of this test's bucket prefix, or of another place, or of `volumes` (TOML).

    `sources`: what the command line names before the mount point, in place of all that. `over` goes
    over the environment of the session.
    """

    def __call__(
        self,
        *options: str,
        place: Bucket | None = None,
        memory: bool = False,
        volumes: str = ...,
        sources: Sequence[str] | None = None,
        over: Mapping[str, str] = ...,
    ) -> Mount: ...


class MountCatalog(Protocol):
    """Mount the test's Unity Catalog, or one volume of it."""

    def __call__(
        self, *options: str, volume: str = "", endpoint_url: str = "", token: str = ""
    ) -> Mount: ...
