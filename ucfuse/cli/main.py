"""Where the `ucfuse` command begins: find the command, run it, turn errors into one line."""

import argparse
import os
import pkgutil
import sys
from collections.abc import Callable, Mapping, Sequence

from ucfuse import __version__
from ucfuse.cli.complaints import line_of
from ucfuse.errors import ConfigError

__all__ = ["main"]


# Only what the command needs is imported: most of the time of a short one would go there. And what
# starts threads, as the S3 client does, would not survive the fork of a daemon.
COMMANDS: Mapping[str, str] = {
    "mount": "ucfuse.cli.mounting:run",
    "umount": "ucfuse.cli.unmounting:run",
    "status": "ucfuse.cli.status:run",
    "abort": "ucfuse.cli.aborting:run",
    "doctor": "ucfuse.cli.doctoring:run",
    "cp": "ucfuse.cli.copy_commands:run_cp",
    "sync": "ucfuse.cli.copy_commands:run_sync",
    "run": "ucfuse.cli.run:run",
    "recover": "ucfuse.cli.recover:run",
    "completion": "ucfuse.cli.main:_completion",
}
"""Where the function of each command is."""

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
    function: Callable[[Sequence[str]], int] = pkgutil.resolve_name(COMMANDS[command])
    return function(arguments)


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
