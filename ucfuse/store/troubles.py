"""Showing what keeps a request from being answered, while it is repeated.

`repeating` tells; `ucfuse status` shows it. A class, since every request enters one: a generator
costs three times as much.
"""

from collections.abc import MutableMapping
from typing import Self

from ucfuse.errors import StoreError

__all__ = ["Telling"]


class Telling:
    """Lets a block tell what it waits for, which is forgotten when the block ends."""

    __slots__ = ("_has_told", "_subject", "_troubles")

    def __init__(self, troubles: MutableMapping[str, str], subject: str) -> None:
        self._troubles = troubles
        self._subject = subject
        self._has_told = False

    def tell(self, cause: StoreError) -> None:
        """Show this cause, in place of what was told before."""
        self._has_told = True
        self._troubles[self._subject] = str(cause)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._has_told:  # else what is there is another request's
            self._troubles.pop(self._subject, None)
