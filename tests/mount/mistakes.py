"""The table of commands and mistakes: what a cell of it is, and what must hold in each.

`test_mistakes` and `test_interrupted` have the cells; the former makes sure that none is missing.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import pytest

from ucfuse.cli.main import COMMANDS

from .harness import ROOT

__all__ = [
    "ALL_COMMANDS",
    "Cell",
    "Never",
    "Table",
    "Words",
    "call",
    "ended",
    "interrupt",
    "cells_of",
    "processes_naming",
    "started",
]

MOUNT_HELPER = "mount.ucfuse"
NO_PLACES: Mapping[str, object] = MappingProxyType({})
ALL_COMMANDS = (*COMMANDS, MOUNT_HELPER)


@dataclass(frozen=True, slots=True)
class Words:
    """What is said, with `{names}` filled in by the test.

    It is one line of standard error, unless `in_report`.
    """

    text: str
    code: int = 1
    in_report: bool = False
    """In the list that the command prints."""
    after_report: bool = False
    """In a line of its own, after some of that list."""
    of_script: bool = False
    """By Python, of the script that `run` became."""

    def check(
        self, done: "subprocess.CompletedProcess[str]", places: Mapping[str, object] = NO_PLACES
    ) -> None:
        """Assert that this is how the command ended."""
        text = self.text.format_map(places)
        assert done.returncode == self.code, done
        assert "Traceback" not in done.stderr
        if self.in_report:
            assert done.stderr == ""
            assert text in done.stdout
            return
        assert done.stdout == "" or self.after_report
        *usage, line = done.stderr.splitlines()
        assert text in line
        if self.of_script:
            assert not usage
        elif self.code == 2:
            assert usage
            assert usage[0].startswith("usage: ucfuse ")
        else:
            assert not usage, done.stderr
            assert line.startswith(("ucfuse: ", "mount.ucfuse: "))


@dataclass(frozen=True, slots=True)
class Cell:
    """One command line that makes the mistake. `{names}` in it are filled in by the test."""

    arguments: Sequence[str]
    words: Words
    note: str = ""
    """Tells it from the others of the same command."""
    over: Mapping[str, str] | None = None
    """Goes over the environment."""

    def environment(self, places: Mapping[str, object]) -> dict[str, str]:
        """Return what goes over the environment."""
        return {name: text.format_map(places) for name, text in (self.over or {}).items()}

    def line(self, command: str, places: Mapping[str, object]) -> list[str]:
        """Return the whole command line."""
        filled = [argument.format_map(places) for argument in self.arguments]
        if command == MOUNT_HELPER:
            return [sys.executable, "-m", "ucfuse.cli.mounthelper", *filled]
        return [sys.executable, "-m", "ucfuse", command, *filled]


@dataclass(frozen=True, slots=True)
class Never:
    """Why a command cannot make a mistake, or which test has the cell."""

    reason: str


Table = Mapping[str, Sequence[Cell] | Never]
"""By command."""


def cells_of(mistake: str, table: Table) -> list[object]:
    """Return the parameters `command, cell` of a test, with ids `command-mistake`."""
    return [
        pytest.param(
            command, cell, id=f"{command}-{mistake}" + (f"-{cell.note}" if cell.note else "")
        )
        for command, cells in table.items()
        if not isinstance(cells, Never)
        for cell in cells
    ]


def call(
    line: Sequence[str | Path], environment: Mapping[str, str]
) -> "subprocess.CompletedProcess[str]":
    """Run a command line to its end."""
    return subprocess.run(
        [str(word) for word in line],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@contextmanager
def started(
    line: Sequence[str | Path], environment: Mapping[str, str]
) -> Iterator["subprocess.Popen[str]"]:
    """Begin a command line; it has ended when the block has."""
    process = subprocess.Popen(
        [str(word) for word in line],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=30)


def interrupt(process: "subprocess.Popen[str]") -> "subprocess.CompletedProcess[str]":
    """Press Ctrl-C, and return how it ended."""
    process.send_signal(signal.SIGINT)
    return ended(process)


def ended(process: "subprocess.Popen[str]") -> "subprocess.CompletedProcess[str]":
    """Wait for its end, and return how it ended."""
    out, complaints = process.communicate(timeout=30)
    return subprocess.CompletedProcess(process.args, process.returncode, out, complaints)


def processes_naming(path: Path) -> Iterator[int]:
    """Yield the processes whose command line has the path in it."""
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if os.fsencode(path) in (entry / "cmdline").read_bytes():
                yield int(entry.name)
