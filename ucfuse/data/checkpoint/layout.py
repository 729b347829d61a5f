"""How a checkpoint lies in its directory: names, and which bytes its metadata points at."""

import os
import re
from collections.abc import Iterable, Iterator
from typing import Any

from torch.distributed.checkpoint.metadata import Metadata

from ucfuse.data.checkpoint.errors import DamagedCheckpoint

__all__ = [
    "METADATA",
    "SUFFIX",
    "data_path",
    "extents",
    "is_rank_metadata",
    "metadata_name",
    "stored_items",
]

METADATA = ".metadata"
SUFFIX = ".distcp"

_RANK_METADATA = re.compile(r"__\d+\.metadata")


def metadata_name(rank: int | None) -> str:
    """Return the file that makes a checkpoint complete; `rank`: of a save without collectives."""
    return METADATA if rank is None else f"__{rank}{METADATA}"


def is_rank_metadata(name: str) -> bool:
    """Say whether a file is the metadata that one rank saved without collectives."""
    return _RANK_METADATA.fullmatch(name) is not None


def data_path(directory: str | os.PathLike[str], name: str) -> str:
    """Return the path of a data file. Raises `DamagedCheckpoint`: it lies outside the directory."""
    directory = os.fspath(directory)
    if not name or os.path.isabs(name) or ".." in name.split("/"):
        raise DamagedCheckpoint(directory, [f"its metadata names a file outside: {name!r}"])
    return os.path.join(directory, name)


def stored_items(metadata: Metadata) -> Iterator[tuple[Any, Any]]:
    """Yield index and place (`relative_path`, `offset`, `length`) of every stored item."""
    yield from (metadata.storage_data or {}).items()


def extents(places: Iterable[Any]) -> dict[str, int]:
    """Return how many bytes each data file has at least."""
    found: dict[str, int] = {}
    for place in places:
        stop = place.offset + place.length
        found[place.relative_path] = max(stop, found.get(place.relative_path, 0))
    return found
