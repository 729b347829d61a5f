"""`ucfuse run`: run a program that imports `databricks.air.data` where that is not installed.

The program is run by the same interpreter in place of this process, so that arguments, exit code,
signals and tracebacks are its own. One directory is put in front of PYTHONPATH; the module in it is
imported by every Python that starts with that environment, so also by spawned workers, by
`torchrun`'s ranks and by subprocesses. It stands in for the name only where nothing else has it.

A Python started with -I, -E or -S, or with another PYTHONPATH, does not see it.
"""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["build_parser", "run"]

STAND_IN = Path(__file__).with_name("standin")


def run(arguments: Sequence[str]) -> int:
    """Become the program; return 2 if the command line makes no sense."""
    parser = build_parser()
    # Everything from the script on is the script's, `--help` too.
    own = arguments[: _own_count(arguments)]
    chosen = parser.parse_args(own)
    if chosen.module is None and chosen.script is None:
        parser.error("give a script, or -m and a module")
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, *arguments], _environment(os.environ))


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of this command."""
    parser = argparse.ArgumentParser(
        prog="ucfuse run",
        usage="ucfuse run SCRIPT [ARGUMENTS]\n       ucfuse run -m MODULE [ARGUMENTS]",
        description="Run a Python program in which `databricks.air.data` means `ucfuse.data`,"
        " unless that package is installed.",
        epilog="For example: ucfuse run -m torch.distributed.run --nproc-per-node 2 train.py",
    )
    parser.add_argument("-m", dest="module", help=argparse.SUPPRESS)
    parser.add_argument("script", nargs="?", help=argparse.SUPPRESS)
    return parser


def _own_count(arguments: Sequence[str]) -> int:
    """Return how many arguments are ours: up to and with the script, or the module."""
    for number, argument in enumerate(arguments):
        if argument == "-m":
            return number + 2
        if not argument.startswith("-") or argument.startswith("-m"):
            return number + 1
    return len(arguments)


def _environment(environment: Mapping[str, str]) -> dict[str, str]:
    path = [str(STAND_IN)]
    if environment.get("PYTHONPATH"):
        path.append(environment["PYTHONPATH"])
    return {**environment, "PYTHONPATH": os.pathsep.join(path)}
