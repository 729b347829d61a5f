"""What a command line of `ucfuse mount` asks for: a `MountConfig`, and how to run it.

`options` has the parser; what makes no sense together is refused here. The core sees numbers.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ucfuse.catalog.sources import MEMORY_SOURCE, parse_source
from ucfuse.catalog.volumes_file import read_volumes
from ucfuse.cli import catalog_options, default_paths, emulating, store_options
from ucfuse.cli.options import build_parser
from ucfuse.config import MountConfig, Source
from ucfuse.errors import ConfigError
from ucfuse.portability import Emulation

__all__ = ["MountRequest", "parse_mount"]

# The bucket of the embedded store; stores refuse names of one or two letters.
DEV_SOURCE = Source("dev")


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
    store = store_options.store_of(options)
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
