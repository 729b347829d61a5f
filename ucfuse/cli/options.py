"""The options of `ucfuse mount`: their names, defaults and help, and nothing of what they do.

`mount_request` reads a command line with this parser.
"""

import argparse
import os
from collections.abc import Mapping
from pathlib import Path

from ucfuse.cli import catalog_options, default_paths, emulating, store_options, value_types

__all__ = ["build_parser", "names"]

LOG_LEVELS = ("debug", "info", "warning", "error")


def names(environment: Mapping[str, str]) -> frozenset[str]:
    """Return the names of all options, with their dashes."""
    actions = build_parser(environment)._actions
    return frozenset(name for action in actions for name in action.option_strings)


def build_parser(environment: Mapping[str, str]) -> argparse.ArgumentParser:
    """Return the parser of `ucfuse mount`."""
    parser = argparse.ArgumentParser(
        prog="ucfuse mount",
        usage="ucfuse mount [OPTIONS] SOURCE MOUNTPOINT\n"
        "       ucfuse mount [OPTIONS] --volumes FILE MOUNTPOINT\n"
        "       ucfuse mount [OPTIONS] --catalog-url URL [uc://CATALOG.SCHEMA.VOLUME] MOUNTPOINT\n"
        "       ucfuse mount [OPTIONS] --dev MOUNTPOINT",
        description="Mount a bucket, or the part of it below a prefix. SOURCE is"
        " s3://BUCKET[/PREFIX], or memory: for a volume that is gone after umount."
        " DURATION is like 250ms, 10s or 5m; SIZE is like 512MiB.",
        allow_abbrev=False,
    )
    parser.add_argument("places", nargs="*", metavar="SOURCE MOUNTPOINT", help=argparse.SUPPRESS)
    parser.add_argument(
        "--dev", action="store_true", help="start a store on this machine and mount its bucket"
    )
    parser.add_argument(
        "--volumes", type=Path, metavar="FILE", help="mount every volume that this TOML file names"
    )
    catalog_options.add_to(parser)
    store_options.add_to(parser)
    _add_view_options(parser)
    _add_write_options(parser)
    _add_limit_options(parser)
    _add_cache_options(parser, environment)
    _add_daemon_options(parser, environment)
    return parser


def _add_view_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what programs see")
    group.add_argument("--read-only", action="store_true", help="refuse every change")
    group.add_argument(
        "--allow-other",
        action=argparse.BooleanOptionalAction,
        default=os.geteuid() == 0,
        help="let other users in (default: when root mounts)",
    )
    emulating.add_option(group)
    group.add_argument("--uid", type=value_types.owner, help="owner of everything (default: yours)")
    group.add_argument("--gid", type=value_types.owner, help="group of everything (default: yours)")
    group.add_argument(
        "--file-mode", type=value_types.mode, metavar="OCTAL", help="of files (default: 755)"
    )
    group.add_argument(
        "--dir-mode", type=value_types.mode, metavar="OCTAL", help="of folders (default: 755)"
    )
    group.add_argument(
        "--xattr",
        action="store_true",
        help="show user.ucfuse.etag and user.ucfuse.source; makes small writes slower",
    )
    _add_duration(group, "--metadata-ttl", 1.0, "how old sizes and listings may be (default: 1s)")
    _add_duration(
        group,
        "--freshness",
        0.0,
        "how old what a reader gets may be, so that its open need not ask (default: 0s)",
    )


def _add_write_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what programs write")
    group.add_argument(
        "--conditional",
        choices=("updates", "always"),
        default="updates",
        help="whose close fails if somebody else changed the file meanwhile: only that of files"
        " changed in place, or also of those written anew as a whole (default: updates)",
    )
    group.add_argument(
        "--exclusive",
        choices=("open", "close"),
        default="open",
        help="when the store decides who creates a file with O_EXCL; close saves a request, for"
        " bulk copies (default: open)",
    )
    group.add_argument(
        "--hardlinks",
        choices=("off", "copy"),
        default="off",
        help="what link(2) does: refuse, or copy the file in the store if the name is free; for"
        " programs that publish files so, as git and delta-rs (default: off)",
    )
    group.add_argument(
        "--part-size",
        type=value_types.part_size,
        metavar="SIZE",
        help="upload equal parts of this size, for stores that want them (default: 8MiB, growing)",
    )
    group.add_argument(
        "--staging-limit",
        type=value_types.size,
        metavar="SIZE",
        help="for bytes on the local disk that are not committed yet (default: none)",
    )


def _add_limit_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("limits")
    group.add_argument(
        "--memory-limit",
        type=value_types.memory_limit,
        default=value_types.default_memory_limit(),
        metavar="SIZE",
        help="for all buffers together (default: 1GiB, or a quarter of the memory if less)",
    )
    _add_timeout(group, "--metadata-timeout", 30.0, "until stat, ls, ... give up (default: 30s)")
    _add_timeout(group, "--read-timeout", 60.0, "until open and read give up (default: 60s)")
    _add_timeout(
        group,
        "--commit-timeout",
        300.0,
        "without progress until fsync and close give up (default: 5m)",
    )


def _add_cache_options(parser: argparse.ArgumentParser, environment: Mapping[str, str]) -> None:
    group = parser.add_argument_group("disk cache")
    group.add_argument(
        "--disk-cache",
        type=value_types.disk_cache,
        metavar="SIZE",
        help="keep what was read on the local disk, up to this much (default: keep nothing)",
    )
    cache_dir = default_paths.cache_dir(environment)
    group.add_argument(
        "--cache-dir",
        type=Path,
        metavar="DIR",
        help=f"where; mounts may share it (default: {cache_dir})",
    )


def _add_daemon_options(parser: argparse.ArgumentParser, environment: Mapping[str, str]) -> None:
    group = parser.add_argument_group("daemon")
    state_dir = default_paths.state_dir(environment)
    group.add_argument(
        "--state-dir",
        type=Path,
        default=state_dir,
        metavar="DIR",
        help=f"for bytes not committed yet, and for logs (default: {state_dir})",
    )
    group.add_argument(
        "--foreground", action="store_true", help="stay in the terminal, log to standard error"
    )
    group.add_argument("--log-level", choices=LOG_LEVELS, default="info")
    group.add_argument(
        "--metrics-port",
        type=value_types.port,
        metavar="PORT",
        help="answer Prometheus at http://127.0.0.1:PORT/metrics (default: do not)",
    )


def _add_duration(group: "argparse._ArgumentGroup", name: str, default_s: float, text: str) -> None:
    group.add_argument(
        name, type=value_types.duration, default=default_s, metavar="DURATION", help=text
    )


def _add_timeout(group: "argparse._ArgumentGroup", name: str, default_s: float, text: str) -> None:
    group.add_argument(
        name, type=value_types.timeout, default=default_s, metavar="DURATION", help=text
    )
