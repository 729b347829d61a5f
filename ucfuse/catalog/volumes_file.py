"""The catalog that a file is: `volumes.toml` names volumes, and where each of them lies.

The command line reads the file once, before anything is mounted; `VolumesFile` then answers from
memory. Nothing here asks a store.
"""

import math
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ucfuse.catalog.interface import Found, Names, Place
from ucfuse.catalog.sources import parse_source, parse_volume_name
from ucfuse.config import StoreOptions, VolumeEntry
from ucfuse.errors import ConfigError, NotFound

__all__ = ["VolumesFile", "read_volumes"]

_TEXT_KEYS = ("source", "endpoint_url", "region", "profile")
_FLAG_KEYS = ("read_only", "no_sign_request")


class VolumesFile:
    """Implements `Catalog` for volumes that are known from the start and stay as they are."""

    def __init__(self, entries: Sequence[VolumeEntry]) -> None:
        self._volumes = {tuple(entry.name.split(".")): entry for entry in entries}
        self._below: dict[Place, dict[str, str]] = {}
        for place in self._volumes:
            for depth, name in enumerate(place):
                self._below.setdefault(place[:depth], {})[name] = name

    async def names(self, above: Place) -> Names:
        return Names(self._names(above), math.inf)

    async def find(self, place: Place) -> Found:
        above, name = place[:-1], place[-1]
        if name not in self._names(above):
            raise NotFound("/".join(place))
        return Found(name, math.inf)

    async def volume(self, place: Place) -> VolumeEntry:
        await self.find(place)
        return self._volumes[place]

    def knows(self, place: Place) -> bool:
        return True

    def _names(self, above: Place) -> Mapping[str, str]:
        try:
            return self._below[above]
        except KeyError:
            raise NotFound("/".join(above)) from None


def read_volumes(path: Path, defaults: StoreOptions) -> tuple[VolumeEntry, ...]:
    """Return the volumes of a `volumes.toml`, in its order. Raises `ConfigError`.

    `defaults` hold where a volume says nothing of its own.
    """
    tables = _tables_of(path)
    try:
        return tuple(_entry(name, table, defaults) for name, table in tables)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _tables_of(path: Path) -> list[tuple[str, object]]:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; name a file with volumes") from error
    except tomllib.TOMLDecodeError as error:  # a volume that is named twice, too
        raise ConfigError(f"{path}: {error}; mend the file there") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8; it must be a text file in TOML") from error
    volumes = content.pop("volumes", None)
    if content:
        raise ConfigError(f"{path}: unknown key {next(iter(content))!r}; only [volumes] is known")
    if not isinstance(volumes, dict) or not volumes:
        raise ConfigError(
            f'{path}: no volumes; write [volumes."catalog.schema.volume"] and source = "s3://..."'
        )
    return list(volumes.items())


def _entry(name: str, table: object, defaults: StoreOptions) -> VolumeEntry:
    _require_name(name)
    if not isinstance(table, dict):
        raise ConfigError(f'volume {name!r}: not a table; write [volumes."{name}"]')
    try:
        return _entry_of(name, table, defaults)
    except ConfigError as error:
        raise ConfigError(f"volume {name!r}: {error}") from error


def _require_name(name: str) -> None:
    if parse_volume_name(name) is None:
        raise ConfigError(
            f"{name!r}: not the name of a volume;"
            ' write it in quotes, as [volumes."catalog.schema.volume"], without spaces or slashes'
        )


def _entry_of(name: str, table: Mapping[str, Any], defaults: StoreOptions) -> VolumeEntry:
    known = (*_TEXT_KEYS, *_FLAG_KEYS)
    if unknown := next((key for key in table if key not in known), None):
        raise ConfigError(f"unknown key {unknown!r}; known are {', '.join(known)}")
    for key, value in table.items():
        _require_kind(key, value)
    if "source" not in table:
        raise ConfigError('no source; write source = "s3://BUCKET/PREFIX"')
    return VolumeEntry(
        name=name,
        source=parse_source(table["source"]),
        store=StoreOptions(
            endpoint_url=table.get("endpoint_url", defaults.endpoint_url),
            region=table.get("region", defaults.region),
            profile=table.get("profile", defaults.profile),
            sign_requests=not table.get("no_sign_request", not defaults.sign_requests),
        ),
        read_only=table.get("read_only", False),
    )


def _require_kind(key: str, value: object) -> None:
    if key in _FLAG_KEYS and not isinstance(value, bool):
        raise ConfigError(f"{key} is true or false, without quotes")
    if key in _TEXT_KEYS and (not isinstance(value, str) or not value):
        raise ConfigError(f"{key} is a text in quotes")
