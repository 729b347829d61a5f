"""What the two places of `ucfuse cp` and `ucfuse sync` are: local, in a bucket, or on a mount.

A path on a mount of this user stands for the objects behind it: its daemon tells which, how the
store is reached, and what is not committed yet. So nothing passes through the mount.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ucfuse.catalog.sources import parse_source
from ucfuse.cli import default_paths
from ucfuse.cli.client import Silent, ask, mount_above, unanswered
from ucfuse.cli.mounting import DEV_ADDRESS
from ucfuse.config import Source, StoreOptions
from ucfuse.errors import ConfigError
from ucfuse.kernel.mountpoint import resolve
from ucfuse.registry import MountRecord, find_record

__all__ = ["End", "find_end", "is_embedded"]

SCHEME = "s3://"


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """One place. `source` None: `path` is a local one; else `name` is below the source.

    `dirty`: names below the source that have bytes which are not committed.
    """

    text: str
    path: Path = Path()
    source: Source | None = None
    name: str = ""
    store: StoreOptions = field(default_factory=StoreOptions)
    mountpoint: str = ""
    read_only: bool = False
    dirty: Sequence[str] = ()

    @property
    def names_directory(self) -> bool:
        """Whether it cannot be a file, as it was written."""
        return self.text.endswith("/") or (self.source is not None and not self.name)


def find_end(text: str, options: StoreOptions) -> End:
    """Say what a place is. `options` reach the store of `s3://`. Raises `ConfigError`."""
    if text.startswith(SCHEME):
        bucket, slash, name = text.removeprefix(SCHEME).partition("/")
        source = parse_source(f"{SCHEME}{bucket}")
        return End(text=text, source=source, name=name if slash else "", store=options)
    path = Path(os.path.abspath(text))
    mountpoint = mount_above(path)
    if mountpoint is None:  # perhaps a link leads to one; on a mount there are none
        path = resolve(path)
        mountpoint = mount_above(path)
    if mountpoint is None:
        return End(text=text, path=path)
    return _on_mount(text, path, mountpoint)


def _on_mount(text: str, path: Path, mountpoint: Path) -> End:
    runtime_dir = default_paths.runtime_dir(os.environ)
    record = find_record(runtime_dir, str(mountpoint))
    if record is None:
        raise ConfigError(
            f"{text}: on a mount of another user, or with another XDG_STATE_HOME;"
            " run this as that user, or name the place as s3://..."
        )
    status = _status(runtime_dir, record)
    volume, name = _volume_of(text, status["volumes"], path.relative_to(mountpoint))
    return _end_on(text, mountpoint, status, volume, name)


def _status(runtime_dir: Path, record: MountRecord) -> Mapping[str, Any]:
    try:
        return next(ask(runtime_dir, record, "status"), {})
    except Silent as error:
        raise unanswered(record) from error


def _volume_of(
    text: str, volumes: Sequence[Mapping[str, Any]], path: Path
) -> tuple[Mapping[str, Any], str]:
    """Return the volume of a path in the mount, and the name below it."""
    if len(volumes) == 1 and not volumes[0]["name"]:
        return volumes[0], "" if path == Path() else str(path)
    depth = 3
    name = ".".join(path.parts[:depth])
    for volume in volumes:
        if volume["name"] == name:
            return volume, "/".join(path.parts[depth:])
    raise ConfigError(f"{text}: not inside a volume; name one as CATALOG/SCHEMA/VOLUME")


def _end_on(
    text: str, mountpoint: Path, status: Mapping[str, Any], volume: Mapping[str, Any], name: str
) -> End:
    if not volume["source"].startswith(SCHEME):
        raise ConfigError(f"{text}: kept in the daemon's memory alone; use the system's `cp`")
    if volume["is_vended"]:
        raise ConfigError(
            f"{text}: a catalog lets its mount alone into this volume; use the system's `cp`"
        )
    inside = volume["name"].replace(".", "/") + "/" if volume["name"] else ""
    dirty = [
        file["path"].removeprefix(inside)
        for file in status["uncommitted"]
        if file["path"].startswith(inside)
    ]
    return End(
        text=text,
        source=parse_source(volume["source"]),
        name=name + "/" if name and text.endswith("/") else name,
        store=StoreOptions(
            endpoint_url=volume["endpoint_url"],
            region=volume["region"],
            profile=volume["profile"],
            sign_requests=volume["sign_requests"],
            address=volume["address"],
        ),
        mountpoint=str(mountpoint),
        read_only=volume["read_only"],
        dirty=dirty,
    )


def is_embedded(end: End) -> bool:
    """Say whether its store is that of `--dev`, which has credentials of its own."""
    return end.store.address.startswith(DEV_ADDRESS)
