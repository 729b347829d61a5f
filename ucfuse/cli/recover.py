"""`ucfuse recover`: what ended mounts could not commit, and what the user wants done with it.

Works beside running mounts and without any: it takes the files and the journal from the state
directory, and connects to the store itself. It acts on one file at a time and holds it meanwhile.
"""

import argparse
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ucfuse.cli import default_paths
from ucfuse.cli.catalog_options import TOKEN_VARIABLE
from ucfuse.errors import ConfigError
from ucfuse.units import duration_text, size_text
from ucfuse.writing.leftovers import Leftover, Standing, find_leftovers, hold
from ucfuse.writing.records import Stage
from ucfuse.writing.session_directory import staging_directory

__all__ = ["build_parser", "run"]

WHY = {
    Stage.WRITING: "neither closed nor synced when its mount ended",
    Stage.COMMITTING: "its commit was cut off; the next mount of its bucket finishes it",
    Stage.KEPT: "",
}


def run(arguments: Sequence[str]) -> int:
    """Do what was asked for every file named; return 1 if one of them could not be done."""
    options = build_parser().parse_args(arguments)
    is_named = options.state_dir != default_paths.state_dir(os.environ)
    if is_named and not options.state_dir.is_dir():
        raise ConfigError(f"{options.state_dir}: no such directory; name that of the mount")
    leftovers = find_leftovers(staging_directory(options.state_dir.absolute()))
    if options.action == "list":
        _print_list(leftovers, as_json=options.json)
        return 0
    return max([_act(chosen, options) for chosen in _choose(leftovers, options.names)])


def _act(leftover: Leftover, options: argparse.Namespace) -> int:
    """Do what was asked with one file; say what came of it, and return the exit code."""
    # Imported here: `list` needs none of what speaks with a store.
    from ucfuse.cli import recover_actions

    with _held(leftover, options) as held:
        if options.action == "export":
            return recover_actions.export(held, options)
        if options.action == "commit":
            return recover_actions.commit(held, options)
        return recover_actions.discard(held, options)


@contextmanager
def _held(leftover: Leftover, options: argparse.Namespace) -> Iterator[Leftover]:
    """Keep everybody else away from the file. Raises `ConfigError`: it is not ours."""
    if leftover.standing is Standing.FOREIGN and not options.foreign:
        raise ConfigError(f"{leftover.name}: {_why(leftover)}; --foreign if it has ended there")
    with hold(leftover) as held:
        if held is None:
            raise ConfigError(f"{leftover.name}: in use by a mount or another `ucfuse recover`")
        yield held


def _choose(leftovers: Sequence[Leftover], names: Sequence[str]) -> list[Leftover]:
    """Return the leftovers of these names or keys. Raises `ConfigError` before any is touched."""
    chosen = []
    for name in names:
        found = [
            leftover
            for leftover in leftovers
            if name == leftover.name or (leftover.record and name == leftover.record.key)
        ]
        if not found:
            raise ConfigError(f"{name}: not kept; see `ucfuse recover list`")
        if len(found) > 1:
            several = ", ".join(leftover.name for leftover in found)
            raise ConfigError(f"{name}: kept more than once; name one of {several}")
        chosen += found
    return chosen


# --- list ------------------------------------------------------------------------------------


def _print_list(leftovers: Sequence[Leftover], *, as_json: bool) -> None:
    entries = [_described(leftover) for leftover in leftovers]
    if as_json:
        print(json.dumps(entries, indent=2))
    elif not entries:
        print("nothing is kept")
    for entry in () if as_json else entries:
        age = "" if entry["age_s"] is None else f", {duration_text(entry['age_s'])} ago"
        print(f"{entry['name']}  {entry['source'] or entry['path']}")
        print(f"    {size_text(entry['bytes'])} of {size_text(entry['size'])}{age}: {entry['why']}")


def _described(leftover: Leftover) -> dict[str, Any]:
    record, head, extent = leftover.record, leftover.head, leftover.extent()
    return {
        "name": leftover.name,
        "source": f"s3://{head.origin.bucket}/{record.key}" if record and head else None,
        "key": record.key if record else None,
        "bucket": head.origin.bucket if head else None,
        "address": head.origin.endpoint if head else None,
        "mountpoint": head.origin.mountpoint if head else None,
        "host": head.host if head else None,
        "path": str(leftover.path),
        "size": extent.size,
        "bytes": extent.byte_count,
        "needs_base": bool(extent.from_base),
        "age_s": round(max(0.0, time.time() - record.written_s), 1) if record else None,
        "state": record.stage.value if record else "unknown",
        "standing": leftover.standing.value,
        "why": _why(leftover),
    }


def _why(leftover: Leftover) -> str:
    """Say in one line why the file is here, and what is special about it."""
    record, head = leftover.record, leftover.head
    if record is None or head is None:
        return "there is no record of what it was to be; export or discard it"
    why = record.reason or WHY[record.stage]
    match leftover.standing:
        case Standing.IN_USE:
            return f"{why} (still open in the mount at {head.origin.mountpoint}, pid {head.pid})"
        case Standing.FOREIGN:
            return f"{why} (of a mount on {head.host}, or in a copy of its directory: left alone)"
        case Standing.RESTARTED if not record.is_synced:
            return f"{why} (the machine was started anew since: bytes may be missing)"
        case _:
            return why


# --- the command line ------------------------------------------------------------------------


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ucfuse recover",
        description="Show and save what mounts could not commit.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--state-dir",
        type=Path,
        default=default_paths.state_dir(os.environ),
        metavar="DIR",
        help="of the mounts (default: %(default)s)",
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="show what is kept, and why")
    listing.add_argument("--json", action="store_true", help="print a list of objects")
    commit = _add_action(actions, "commit", "bring files to the store under their own keys")
    commit.add_argument(
        "--force", action="store_true", help="replace another version that is in the store by now"
    )
    export = actions.add_parser("export", help="write a file to a local path")
    export.add_argument("names", nargs=1, metavar="NAME", help="as `list` shows it, or the key")
    export.add_argument("target", type=Path, metavar="FILE", help="must not exist yet")
    export.set_defaults(foreign=True)  # it changes nothing there
    _add_store_options(export)
    _add_action(actions, "discard", "remove files for ever")
    return parser


def _add_action(actions: Any, name: str, text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(name, help=text)
    parser.add_argument("names", nargs="+", metavar="NAME", help="as `list` shows it, or the key")
    parser.add_argument(
        "--foreign",
        action="store_true",
        help="also files of another host, whose mount has ended for certain",
    )
    _add_store_options(parser)
    return parser


def _add_store_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--endpoint-url", metavar="URL", help="if it is not as it was at the mount")
    parser.add_argument("--region", metavar="NAME", help="likewise")
    parser.add_argument("--profile", metavar="NAME", help="likewise")
    parser.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help=f"of a volume that a catalog governs: your token there (default: {TOKEN_VARIABLE})",
    )
