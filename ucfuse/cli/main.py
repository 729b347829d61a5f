"""Where the `ucfuse` command begins: find the command, run it, turn errors into one line."""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence

from ucfuse import __version__
from ucfuse.cli.complaints import line_of
from ucfuse.errors import ConfigError

__all__ = ["main"]


COMMANDS = (
    "mount",
    "umount",
    "status",
    "abort",
    "doctor",
    "cp",
    "sync",
    "run",
    "recover",
    "completion",
)

# What a shell reports for a program that Ctrl-C ended.
EXIT_INTERRUPTED = 130

# What is left of each, for whoever wonders. Of a script that runs, nothing is ours to tell.
INTERRUPTED: Mapping[str, str] = {
    "mount": "interrupted; nothing was mounted",
    "umount": "interrupted; `ucfuse status` says what is still mounted",
    "abort": "interrupted; run it again to end what still waits",
    "recover": "interrupted; `ucfuse recover list` says what is still kept",
} | dict.fromkeys(
    ("status", "doctor", "cp", "sync", "run", "completion"), "interrupted; run it again"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code."""
    chosen = _parser().parse_args(arguments)
    try:
        return _run(chosen.command, chosen.arguments)
    except (ConfigError, OSError) as error:  # OSError: of the user's own files and paths
        print(f"ucfuse: {line_of(error)}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, BaseExceptionGroup) as error:
        if not _is_interrupt(error):
            raise
        print(f"ucfuse: {chosen.command} {INTERRUPTED[chosen.command]}", file=sys.stderr)
        return EXIT_INTERRUPTED


def _run(command: str, arguments: Sequence[str]) -> int:
    # Only what the command needs is imported: most of the time of a short one would go there. And
    # what starts threads, as the S3 client does, would not survive the fork of a daemon.
    match command:
        case "mount":
            from ucfuse.cli.mounting import run
        case "umount":
            from ucfuse.cli.unmounting import run
        case "status":
            from ucfuse.cli.status import run
        case "abort":
            from ucfuse.cli.aborting import run
        case "doctor":
            from ucfuse.cli.doctoring import run
        case "cp":
            from ucfuse.cli.copy_commands import run_cp as run
        case "sync":
            from ucfuse.cli.copy_commands import run_sync as run
        case "run":
            from ucfuse.cli.run import run
        case "recover":
            from ucfuse.cli.recover import run
        case _:
            run = _completion
    return run(arguments)


def _completion(arguments: Sequence[str]) -> int:
    from ucfuse.cli import (
        aborting,
        completion,
        copy_commands,
        doctoring,
        recover,
        run,
        status,
        unmounting,
    )
    from ucfuse.cli.options import build_parser

    parsers = {
        "mount": build_parser(os.environ),
        "umount": unmounting.build_parser(),
        "status": status.build_parser(),
        "abort": aborting.build_parser(),
        "doctor": doctoring.build_parser(),
        "cp": copy_commands.build_cp_parser(),
        "sync": copy_commands.build_sync_parser(),
        "run": run.build_parser(),
        "recover": recover.build_parser(),
        "completion": completion.build_parser(),
    }
    return completion.run(arguments, parsers)


def _is_interrupt(error: BaseException) -> bool:
    """Whether it is Ctrl-C alone, however it is wrapped."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return isinstance(error, KeyboardInterrupt)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ucfuse",
        description="An object-store bucket as a directory, below /Volumes or anywhere.",
        epilog="`ucfuse COMMAND --help` tells the options of a command.",
    )
    parser.add_argument("--version", action="version", version=f"ucfuse {__version__}")
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="of the command")
    return parser
