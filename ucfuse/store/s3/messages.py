"""A request to the store and its answer, as data. What carries them is `transport`'s business."""

from collections.abc import Sequence
from dataclasses import dataclass

from ucfuse.store.api import Buffer, Bytes

__all__ = ["Answer", "Header", "Request"]

Header = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Request:
    """What to send. `path` holds the query too; both are percent-encoded already."""

    operation: str
    method: str
    path: str
    headers: Sequence[Header] = ()
    body: Buffer | None = None
    most_bytes: int | None = None
    """How long a body of an answer may be that is a success. None: as long as it likes."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back; `status` None: nothing usable. `error` is None for a 2xx alone.

    Header names are in lower case.
    """

    status: int | None
    headers: dict[str, str]
    body: Bytes
    error: Exception | None

    @property
    def error_name(self) -> str:
        """The name that awscrt gives the error; empty if there is none."""
        return getattr(self.error, "name", "")
