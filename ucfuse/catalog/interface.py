"""What a mount asks a catalog: which names there are at each level, and what a volume is made of.

`fs` shows the names as directories; `governed_volumes` opens volumes. A place is the path of a
catalog, schema or volume: `()` is the root, `("main", "default", "images")` a volume.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from ucfuse.config import VolumeEntry

__all__ = ["Catalog", "Found", "Names", "Place", "text_of"]

Place = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Found:
    """A name that exists. `identity` is another one once the name means something else.

    `valid_s`: how long this may be shown without asking again, in seconds.
    """

    identity: str
    valid_s: float


@dataclass(frozen=True, slots=True)
class Names:
    """All names at one level that this user may see, in order, with their identities."""

    identities: Mapping[str, str]
    valid_s: float


class Catalog(Protocol):
    """Names, levels and volumes. Every method raises only causes from `errors.py`."""

    async def names(self, above: Place) -> Names:
        """Return what is directly below a catalog or schema, or below the root.

        Raises `NotFound`: there is no such catalog or schema (any more).
        """

    async def find(self, place: Place) -> Found:
        """Return what a name is. Raises `NotFound`."""

    async def volume(self, place: Place) -> VolumeEntry:
        """Return where a volume lies and who gives credentials for it. Raises `NotFound`."""

    def knows(self, place: Place) -> bool:
        """Say whether `find` would answer at once, without asking anybody."""


def text_of(place: Place) -> str:
    """Return the name as people write it: `uc://main.default.images`."""
    return f"uc://{'.'.join(place)}"
