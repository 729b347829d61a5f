"""`ucfuse abort`: end at once what programs wait for on a mount."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from ucfuse.cli import default_paths
from ucfuse.cli.client import Silent, ask, named_mount, not_ours, unanswered
from ucfuse.registry import find_record

__all__ = ["build_parser", "run"]


def run(arguments: Sequence[str]) -> int:
    """End all waits of a mount; return 0. Raises `ConfigError`: it could not be asked."""
    parser = build_parser()
    target = named_mount(parser.parse_args(arguments).mountpoint)
    runtime_dir = default_paths.runtime_dir(os.environ)
    record = find_record(runtime_dir, str(target))
    if record is None:
        raise not_ours(target)
    try:
        answer = next(ask(runtime_dir, record, "abort"), {})
    except Silent as error:
        raise unanswered(record) from error
    print(f"{answer.get('ended', 0)} requests ended")
    return 0


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of this command."""
    parser = argparse.ArgumentParser(
        prog="ucfuse abort",
        description="End at once what programs wait for on a mount, as if all deadlines had come:"
        " they get an error, and what they wrote stays in `ucfuse recover`. The mount goes on.",
        allow_abbrev=False,
    )
    parser.add_argument("mountpoint", metavar="PATH", type=Path)
    return parser
