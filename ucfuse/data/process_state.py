"""What a dataset holds in one process and never passes on: counts, threads, locked descriptors.

Owner: the dataset. A forked child leaves its parent's alone and makes its own.
"""

import os
import weakref
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ucfuse.data.counters import Counters
from ucfuse.data.fetching import Fetching
from ucfuse.data.passes import Brief, Walk
from ucfuse.data.private_cache import occupy

__all__ = ["Here"]


@dataclass(slots=True, eq=False)
class Here:
    """One process's part of a dataset."""

    counters: Counters = field(default_factory=Counters)
    brief: Brief | None = None
    """The loader's pass that this process iterates for."""
    walk: Walk | None = None
    """The latest iteration."""
    repeats: int = 0
    """How often it began anew within one pass of the loader."""
    process: int = field(default_factory=os.getpid)
    _fetching: Fetching | None = None
    _finalizer: "weakref.finalize[..., Any] | None" = None

    def open_fetching(
        self,
        owner: object,
        source: str,
        cache: str,
        limit_bytes: int | None,
        fetchers: int,
        *,
        private: bool,
    ) -> Fetching:
        """Return what fetches in this process, made at first use; it ends with `owner`.

        Raises `OSError`: the cache directory cannot be made.
        """
        if self._fetching is None:
            if private:
                occupy(Path(cache).parent)
            on_retry = self.counters.count_retry
            self._fetching = Fetching(source, cache, limit_bytes, fetchers, on_retry)
            self._finalizer = weakref.finalize(owner, self._fetching.close)
            self._finalizer.atexit = False
        return self._fetching

    def leave_to_parent(self) -> None:
        """In a forked child: let nothing happen here when the dataset goes."""
        if self._finalizer is not None:
            self._finalizer.detach()
