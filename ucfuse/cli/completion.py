"""`ucfuse completion SHELL`: the script by which a shell completes our commands and options."""

import argparse
from collections.abc import Mapping, Sequence

import shtab

__all__ = ["build_parser", "run"]

PLACES = ("DIR", "FILE", "PATH", "SOURCE MOUNTPOINT", "SRC", "DST")
SHELLS = ("bash", "zsh", "fish")


def run(arguments: Sequence[str], parsers: Mapping[str, argparse.ArgumentParser]) -> int:
    """Print the script. `parsers`: of every command."""
    options = build_parser().parse_args(arguments)
    print(shtab.complete(_whole(parsers), shell=options.shell))
    return 0


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of this command."""
    own = argparse.ArgumentParser(
        prog="ucfuse completion",
        description="Print what lets a shell complete `ucfuse`. bash: put it into"
        " ~/.local/share/bash-completion/completions/ucfuse; zsh: into _ucfuse in a directory of"
        " $fpath; fish: into ~/.config/fish/completions/ucfuse.fish.",
        allow_abbrev=False,
    )
    own.add_argument("shell", choices=SHELLS)
    return own


def _whole(parsers: Mapping[str, argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Return one parser that has all commands, as shtab wants it."""
    whole = argparse.ArgumentParser(prog="ucfuse")
    whole.add_argument("--version", action="store_true", help="print the version")
    commands = whole.add_subparsers(dest="command")
    for name, command in parsers.items():
        about = (command.description or "").partition(". ")[0]
        added = commands.add_parser(name, parents=[command], add_help=False, help=about)
        for action in added._actions:
            _complete_places(action)
    return whole


def _complete_places(action: argparse.Action) -> None:
    """Let what takes a path be completed as one."""
    if action.metavar in PLACES:
        action.complete = shtab.FILE  # type: ignore[attr-defined]
