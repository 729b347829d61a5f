"""The options of `ucfuse mount`, from the command line to a `MountConfig`.

Here is the one place that knows their names, defaults and meaning; the core sees numbers.
"""

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ucfuse.catalog.sources import MEMORY_SOURCE, parse_source
from ucfuse.catalog.volumes_file import read_volumes
from ucfuse.cli import catalog_options, default_paths, emulating
from ucfuse.config import MountConfig, Source, StoreOptions
from ucfuse.errors import ConfigError
from ucfuse.portability import Emulation
from ucfuse.units import parse_duration, parse_size
from ucfuse.volume import GiB, MiB

__all__ = [
    "MountRequest",
    "add_store_options",
    "build_parser",
    "memory_limit",
    "names",
    "parse_mount",
]

T = TypeVar("T")

# The bucket of the embedded store; stores refuse names of one or two letters.
DEV_SOURCE = Source("dev")
# Enough to keep a fast network busy with parts; small machines keep three quarters for programs.
# The largest id that the kernel takes; the one above means "nobody in particular".
MAX_OWNER = (1 << 32) - 2
MAX_PORT = (1 << 16) - 1
MIN_MEMORY_BYTES = MiB
MAX_DEFAULT_MEMORY_BYTES = 1 * GiB
DEFAULT_MEMORY_SHARE = 4
# What S3 takes as a part.
MIN_PART_BYTES = 5 * MiB
MAX_PART_BYTES = 5 * GiB
MIN_DISK_CACHE_BYTES = 16 * MiB
LOG_LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True, slots=True, kw_only=True)
class MountRequest:
    """What the user asked for: the mount, and how to run it."""

    config: MountConfig
    dev: bool
    foreground: bool


def parse_mount(arguments: Sequence[str], environment: Mapping[str, str]) -> MountRequest:
    """Read the command line. Exits with 2 and the usage if it makes no sense.

    Raises `ConfigError`: a file that it names cannot be used.
    """
    parser = build_parser(environment)
    options = parser.parse_intermixed_args(arguments)
    _refuse_nonsense(parser, options)
    emulating.decide_owner(parser, options)
    if options.disk_cache is not None and options.cache_dir is None:
        options.cache_dir = default_paths.cache_dir(environment)
    if options.cache_dir and _is_below(options.cache_dir, options.places[-1]):
        parser.error("--cache-dir: not inside the mount that it is for")
    return MountRequest(
        config=_config(options, _source(parser, options), environment),
        dev=options.dev,
        foreground=options.foreground,
    )


def _refuse_nonsense(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    if options.dev and options.volumes:
        parser.error("--dev and --volumes exclude each other")
    for option in ("--dev", "--volumes"):
        if getattr(options, option[2:]) and len(options.places) != 1:
            parser.error(f"with {option}, name the mount point alone")
    catalog_options.refuse_nonsense(parser, options)
    has_source = not (options.dev or options.volumes or options.catalog_url)
    if has_source and len(options.places) != 2:
        parser.error("name what to mount and where: s3://BUCKET[/PREFIX] MOUNTPOINT")
    if options.dev and options.endpoint_url:
        parser.error("--dev brings its own store; leave --endpoint-url out")
    if options.cache_dir and options.disk_cache is None:
        parser.error("--cache-dir: say with --disk-cache SIZE how much it may hold")


def _is_below(directory: Path, mountpoint: str) -> bool:
    return directory.resolve().is_relative_to(Path(mountpoint).absolute())


def _source(parser: argparse.ArgumentParser, options: argparse.Namespace) -> Source:
    if options.dev:
        return DEV_SOURCE
    is_named = not (options.volumes or options.catalog_url)
    try:
        return parse_source(options.places[0] if is_named else MEMORY_SOURCE)
    except ConfigError as error:
        parser.error(str(error))


def _config(
    options: argparse.Namespace, source: Source, environment: Mapping[str, str]
) -> MountConfig:
    store = StoreOptions(
        endpoint_url=options.endpoint_url,
        region=options.region,
        profile=options.profile,
        sign_requests=not options.no_sign_request,
    )
    return MountConfig(
        source=source,
        mountpoint=Path(options.places[-1]),
        volumes=read_volumes(options.volumes, store) if options.volumes else (),
        volumes_file=options.volumes and options.volumes.absolute(),
        catalog=catalog_options.catalog_of(options, environment),
        governed=catalog_options.volume_of(options),
        store=store,
        read_only=options.read_only,
        allow_other=options.allow_other,
        emulation=Emulation(options.emulate),
        uid=options.uid,
        gid=options.gid,
        file_mode=options.file_mode,
        dir_mode=options.dir_mode,
        metadata_ttl_s=options.metadata_ttl,
        freshness_s=options.freshness,
        memory_limit_bytes=options.memory_limit,
        state_dir=options.state_dir.absolute(),
        metadata_timeout_s=options.metadata_timeout,
        read_timeout_s=options.read_timeout,
        commit_timeout_s=options.commit_timeout,
        part_bytes=options.part_size,
        staging_limit_bytes=options.staging_limit,
        conditional_always=options.conditional == "always",
        exclusive_at_close=options.exclusive == "close",
        hardlinks_copy=options.hardlinks == "copy",
        disk_cache_bytes=options.disk_cache,
        cache_dir=options.cache_dir and options.cache_dir.absolute(),
        xattr=options.xattr,
        metrics_port=options.metrics_port,
        log_level=options.log_level,
    )


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
    add_store_options(parser)
    _add_view_options(parser)
    _add_write_options(parser)
    _add_limit_options(parser)
    _add_cache_options(parser, environment)
    _add_daemon_options(parser, environment)
    return parser


def add_store_options(parser: argparse.ArgumentParser) -> None:
    """Add what says how a store is reached."""
    group = parser.add_argument_group("store")
    group.add_argument("--endpoint-url", metavar="URL", help="of the store, unless it is AWS")
    group.add_argument("--region", metavar="NAME", help="of the bucket")
    group.add_argument("--profile", metavar="NAME", help="of the AWS configuration files")
    group.add_argument(
        "--no-sign-request", action="store_true", help="for public buckets: use no credentials"
    )


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
    group.add_argument("--uid", type=_natural, help="owner of everything (default: yours)")
    group.add_argument("--gid", type=_natural, help="group of everything (default: yours)")
    group.add_argument("--file-mode", type=_mode, metavar="OCTAL", help="of files (default: 755)")
    group.add_argument("--dir-mode", type=_mode, metavar="OCTAL", help="of folders (default: 755)")
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
        type=_argument(_part_size),
        metavar="SIZE",
        help="upload equal parts of this size, for stores that want them (default: 8MiB, growing)",
    )
    group.add_argument(
        "--staging-limit",
        type=_argument(parse_size),
        metavar="SIZE",
        help="for bytes on the local disk that are not committed yet (default: none)",
    )


def _add_limit_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("limits")
    group.add_argument(
        "--memory-limit",
        type=memory_limit,
        default=_default_memory_limit(),
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
        type=_argument(_disk_cache),
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
        type=_port,
        metavar="PORT",
        help="answer Prometheus at http://127.0.0.1:PORT/metrics (default: do not)",
    )


def _add_duration(group: "argparse._ArgumentGroup", name: str, default_s: float, text: str) -> None:
    group.add_argument(
        name, type=_argument(parse_duration), default=default_s, metavar="DURATION", help=text
    )


def _add_timeout(group: "argparse._ArgumentGroup", name: str, default_s: float, text: str) -> None:
    group.add_argument(name, type=_timeout, default=default_s, metavar="DURATION", help=text)


def _argument(parse: Callable[[str], T]) -> Callable[[str], T]:
    """Let argparse print the reason why a value was refused."""

    def convert(text: str) -> T:
        try:
            return parse(text)
        except ConfigError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return convert


def _disk_cache(text: str) -> int:
    size = parse_size(text)
    if size < MIN_DISK_CACHE_BYTES:
        raise ConfigError(f"{text!r}: too little to be of use; the least is 16MiB")
    return size


def _part_size(text: str) -> int:
    size = parse_size(text)
    if not MIN_PART_BYTES <= size <= MAX_PART_BYTES:
        raise ConfigError(f"{text!r}: a part has 5MiB to 5GiB")
    return size


@_argument
def _natural(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or int(text) > MAX_OWNER:
        raise ConfigError(f"{text!r}: not the number of a user or group")
    return int(text)


@_argument
def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or not 0 < int(text) <= MAX_PORT:
        raise ConfigError(f"{text!r}: not a port; write a number from 1 to {MAX_PORT}")
    return int(text)


@_argument
def _timeout(text: str) -> float:
    seconds = parse_duration(text)
    if seconds <= 0:
        raise ConfigError(f"{text!r}: nothing could be answered in no time; the least is 1ms")
    return seconds


@_argument
def memory_limit(text: str) -> int:
    """Read `--memory-limit`."""
    size = parse_size(text)
    if size < MIN_MEMORY_BYTES:
        raise ConfigError(f"{text!r}: too little to read from; the least is 1MiB")
    return size


@_argument
def _mode(text: str) -> int:
    try:
        mode = int(text, 8)
    except ValueError:
        mode = -1
    if not 0 <= mode <= 0o777:
        raise ConfigError(f"{text!r}: not a mode; write it like 755")
    return mode


def _default_memory_limit() -> int:
    installed_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(MAX_DEFAULT_MEMORY_BYTES, installed_bytes // DEFAULT_MEMORY_SHARE)
