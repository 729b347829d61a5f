"""A directory whose requests a test counts and spoils, served by a process of its own."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.mount.harness import ROOT, Watchdog, is_mounted
from tests.mount.programs import eventually

__all__ = ["Faulty", "faulty_directory"]


class Faulty:
    """`path`: the directory as programs see it; `backing`: the same without faults."""

    def __init__(self, work: Path) -> None:
        self.path = work / "faulty"
        self.backing = work / "backing"
        self.path.mkdir(parents=True)
        self.backing.mkdir()
        self._daemon = subprocess.Popen(
            [sys.executable, "-m", "tests.data.faultdir", str(self.backing), str(self.path)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._watchdog: Watchdog | None = None

    def start(self, deadline_s: int) -> None:
        """Wait until it is mounted. After the deadline it is killed, and its callers get errors."""
        self._watchdog = Watchdog(self._daemon.pid, self.path, deadline_s)
        eventually(f"a mount at {self.path}", lambda: is_mounted(self.path))

    def watch_again(self, deadline_s: int) -> None:
        """Begin to count the deadline anew: the directory serves several tests."""
        assert self._watchdog is not None
        assert self._watchdog.call_off(), "the directory was killed: a test took too long"
        self._watchdog = Watchdog(self._daemon.pid, self.path, deadline_s)

    def _ask(self, *words: object) -> Any:
        assert self._daemon.stdin is not None
        assert self._daemon.stdout is not None
        self._daemon.stdin.write(" ".join(map(str, words)) + "\n")
        self._daemon.stdin.flush()
        return json.loads(self._daemon.stdout.readline())

    def arm(self, number: int, action: str) -> None:
        """Spoil the `number`-th request from now on; 0: none. Counts begin anew."""
        self._ask("arm", number, action)

    def release(self) -> None:
        """Let the request that stalls go on."""
        self._ask("release")

    def was_spoilt(self) -> bool:
        """Say whether the request came that was to be spoilt."""
        return bool(self._ask("counts")["spoilt"])

    def counts(self) -> dict[str, int]:
        """Return requests by kind, and `bytes read`."""
        found: dict[str, int] = self._ask("counts")["counts"]
        return found

    def close(self) -> None:
        """Unmount and end, by force if need be."""
        assert self._daemon.stdin is not None
        try:
            self._daemon.communicate("quit\n", timeout=10)
        finally:
            self._daemon.kill()
            self._daemon.wait()
            hung = self._watchdog is not None and not self._watchdog.call_off()
            while is_mounted(self.path):
                subprocess.run(["umount", "-l", self.path], check=True, timeout=10)
            assert not hung, "the test took too long and its directory was killed"


@contextmanager
def faulty_directory(work: Path, deadline_s: int = 150) -> Iterator[Faulty]:
    """Serve an empty directory for the block."""
    faulty = Faulty(work)
    try:
        faulty.start(deadline_s)
        yield faulty
    finally:
        faulty.close()
