"""`ucfuse cp` and `ucfuse sync`: copy files between buckets, mounts and the local disk.

What is on a mount is reached in its bucket. Progress and the list of what failed go to standard
error, the sum of it all to standard output.
"""

import argparse
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import trio

from ucfuse.cli import store_options
from ucfuse.cli.complaints import line_of
from ucfuse.cli.copy_ends import End, find_end
from ucfuse.cli.copy_trees import Ends, opened
from ucfuse.cli.progress import show_progress
from ucfuse.cli.value_types import memory_limit
from ucfuse.copying.copy_job import CopyJob
from ucfuse.copying.moving import Pair
from ucfuse.copying.tally import Tally
from ucfuse.copying.trees import Trouble
from ucfuse.errors import ConfigError, VolumeError
from ucfuse.process import tune_process
from ucfuse.units import duration_text, size_text
from ucfuse.volume import MiB

__all__ = ["build_cp_parser", "build_sync_parser", "run_cp", "run_sync"]

MEMORY_BYTES = 512 * MiB
MOST_REQUESTS = 256
END_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the user asked for."""

    source: End
    target: End
    recursive: bool
    only_directories: bool
    deletes: bool
    quiet: bool
    memory_bytes: int
    most_requests: int


@dataclass(slots=True)
class Outcome:
    """How it ended. `signal`: what interrupted it, 0 for nothing."""

    tally: Tally
    seconds: float = 0.0
    signal: int = 0


def run_cp(arguments: Sequence[str]) -> int:
    """Copy a file, or with `-r` a directory; return 1 if something was not copied."""
    parser = build_cp_parser()
    return _run(parser, parser.parse_args([*arguments]))


def run_sync(arguments: Sequence[str]) -> int:
    """Make a directory the copy of another; return 1 if something was not copied."""
    parser = build_sync_parser()
    return _run(parser, parser.parse_args([*arguments]))


def build_cp_parser() -> argparse.ArgumentParser:
    """Return the parser of `ucfuse cp`."""
    parser = _parser("cp", "Copy a file, or with -r what is in a directory.")
    parser.add_argument(
        "-r", "--recursive", action="store_true", help="DST becomes a copy of the directory SRC"
    )
    return parser


def build_sync_parser() -> argparse.ArgumentParser:
    """Return the parser of `ucfuse sync`."""
    parser = _parser("sync", "Copy what is in a directory and not yet in the other.")
    parser.add_argument(
        "--delete", action="store_true", help="remove from DST what SRC does not have"
    )
    parser.set_defaults(recursive=True)
    return parser


def _run(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    reach = store_options.store_of(options)
    source, target = (find_end(place, reach) for place in (options.source, options.target))
    if source.source is None and target.source is None:
        parser.error("one of the two is in a bucket: s3://BUCKET/PATH, or a path on a mount")
    if target.read_only:
        raise ConfigError(f"{target.text}: the volume is mounted read-only")
    request = Request(
        source=source,
        target=target,
        recursive=options.recursive,
        only_directories="delete" in options,
        deletes=getattr(options, "delete", False),
        quiet=options.quiet,
        memory_bytes=options.memory_limit,
        most_requests=options.requests,
    )
    outcome = _carried_out(request)
    _tell(outcome, quiet=request.quiet)
    if outcome.signal:
        return 128 + outcome.signal
    return 1 if outcome.tally.failed_count else 0


def _carried_out(request: Request) -> Outcome:
    """Copy. Raises `ConfigError`: it could not begin."""
    failures: list[str] = []
    outcome = Outcome(Tally())
    tune_process()
    try:
        trio.run(_copy, request, outcome, restrict_keyboard_interrupt_to_checkpoints=True)
    except* (ConfigError, VolumeError, OSError) as group:
        failures.append(line_of(group))
    if failures:
        raise ConfigError(failures[0])
    return outcome


async def _copy(request: Request, outcome: Outcome) -> None:
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        await nursery.start(_end_on_signal, nursery.cancel_scope, outcome)
        async with opened(
            request.source,
            request.target,
            memory_bytes=request.memory_bytes,
            most_requests=request.most_requests,
            nursery=nursery,
        ) as ends:
            await _copy_between(request, ends, outcome)
        nursery.cancel_scope.cancel()
    outcome.seconds = trio.current_time() - began


async def _end_on_signal(
    scope: trio.CancelScope, outcome: Outcome, *, task_status: trio.TaskStatus[None]
) -> None:
    with trio.open_signal_receiver(*END_SIGNALS) as signals:
        task_status.started()
        outcome.signal = await anext(signals)
        scope.cancel()


async def _copy_between(request: Request, ends: Ends, outcome: Outcome) -> None:
    what = await ends.examine(
        recursive=request.recursive, only_directories=request.only_directories
    )
    job = CopyJob(
        what.source,
        what.target,
        ends.budget,
        most_requests=request.most_requests,
        deletes=request.deletes,
        has_paths=ends.has_paths,
    )
    outcome.tally = job.tally
    for name in what.unready:
        reason = "it has bytes that are not committed; let it be closed, then repeat this"
        job.tally.failed(Trouble(what.source.describe(name), reason))
    async with show_progress(job.tally, quiet=request.quiet):
        if what.file is None:
            await job.run()
        else:
            await job.run_one(Pair(what.file, what.target_name, what.present))


def _tell(outcome: Outcome, *, quiet: bool) -> None:
    tally = outcome.tally
    for trouble in tally.failures:
        print(f"ucfuse: {trouble.name}: {trouble.reason}", file=sys.stderr)
    if unlisted := tally.failed_count - len(tally.failures):
        print(f"ucfuse: and {unlisted} more", file=sys.stderr)
    if outcome.signal:
        text = f"interrupted; {tally.copied_files} files were copied, repeat it to copy the rest"
        print(f"ucfuse: {text}", file=sys.stderr)
    elif tally.failed_count > 1:
        print(f"ucfuse: {tally.failed_count} failed, see above", file=sys.stderr)
    if not quiet:
        removed = f", {tally.removed} removed" if tally.removed else ""
        print(
            f"{tally.copied_files} files copied ({size_text(tally.moved_bytes)}),"
            f" {tally.same_files} were there already{removed},"
            f" {tally.failed_count} failed, in {duration_text(outcome.seconds)}"
        )


def _parser(name: str, text: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"ucfuse {name}",
        description=f"{text} SRC and DST are s3://BUCKET/PATH, a path on a mount, or, one of them,"
        " a local path. What is there already is not copied again, so it can be repeated.",
        allow_abbrev=False,
    )
    parser.add_argument("source", metavar="SRC")
    parser.add_argument("target", metavar="DST")
    parser.add_argument("--quiet", action="store_true", help="print what fails, nothing else")
    parser.add_argument(
        "--requests",
        type=_requests,
        default=MOST_REQUESTS,
        metavar="N",
        help="how many at once (default: %(default)s)",
    )
    parser.add_argument(
        "--memory-limit",
        type=memory_limit,
        default=MEMORY_BYTES,
        metavar="SIZE",
        help="for all buffers together (default: 512MiB)",
    )
    store_options.add_to(parser)
    return parser


def _requests(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or not 1 <= int(text) <= 1000:
        raise argparse.ArgumentTypeError(f"{text!r}: not a number from 1 to 1000")
    return int(text)
