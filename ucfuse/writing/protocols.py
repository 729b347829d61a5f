"""How staging, uploads and the journal see each other, so that none has to know the others.

`Staging` is `Staged`; `Entry` in `journal` and `Progress` in `leftovers` are `Steps`.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from ucfuse.store.api import Checksum
from ucfuse.volume import ETag

__all__ = ["Ranges", "Staged", "Steps"]


class Ranges(Protocol):
    """The ranges of a `RangeSet`."""

    def __iter__(self) -> Iterator[tuple[int, int]]: ...


class Staged(Protocol):
    """What an entry reads of its staging file whenever it writes down where the file stands."""

    @property
    def path(self) -> Path: ...
    @property
    def size(self) -> int: ...
    @property
    def base_size(self) -> int: ...
    @property
    def written(self) -> Ranges: ...


class Steps(Protocol):
    """What an upload tells the journal; `Entry` says what each means."""

    def upload_begins(self, upload: str) -> None: ...
    def upload_ended(self) -> None: ...
    def commit_begins(
        self,
        expected_etag: ETag | None,
        *,
        base_etag: ETag | None,
        parts: Sequence[ETag] = (),
        expected_checksum: Checksum | None = None,
    ) -> None: ...
