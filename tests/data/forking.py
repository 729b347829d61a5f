"""Programs in processes of their own without the seconds that loading torch takes each time."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mount.harness import ROOT

__all__ = ["Forks", "forks"]


class Forks:
    """A process that has loaded torch and forks one for each program. See `checkpoint_programs`."""

    def __init__(self, work: Path) -> None:
        self._printed = work / "printed"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.data.checkpoint_programs", "serve"],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, name: str, *words: str | Path, expect: int = 0) -> str:
        """Run a program to its end; return what it printed, on both streams."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        order = [str(self._printed), name, *map(str, words)]
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        code = int(self._process.stdout.readline())
        printed = self._printed.read_text()
        assert code == expect, printed
        return printed

    def close(self) -> None:
        """End it; no program is left when a test is over."""
        self._process.communicate(timeout=30)


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    """Run programs of `checkpoint_programs`."""
    process = Forks(tmp_path_factory.mktemp("forks"))
    yield process
    process.close()
