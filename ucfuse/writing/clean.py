"""Which committed staging files may go when space is needed, least recently read first.

A staging file stays the source of reads after its commit: the bytes are here already, and the
store need not be asked again. `staging` keeps this list; who owns a file says how it goes.

Concurrency: used from the trio loop only; no function awaits.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass

__all__ = ["CleanFiles", "OnEvict"]

OnEvict = Callable[[], None]
"""Stop using the file and close it, now. Must not await."""


@dataclass(frozen=True, slots=True)
class _Entry:
    size_bytes: int
    on_evict: OnEvict


class CleanFiles:
    """Committed files, together at most `limit_bytes`; the first in order goes first."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.size_bytes = 0
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()

    def add(self, file: Hashable, size_bytes: int, on_evict: OnEvict) -> None:
        """Count `file` in as the one read last, and let others go until all fit.

        A file larger than the limit goes alone, at once, and none of the others for it.
        """
        self.discard(file)
        if size_bytes > self.limit_bytes:
            on_evict()
            return
        self._entries[file] = _Entry(size_bytes, on_evict)
        self.size_bytes += size_bytes
        while self.size_bytes > self.limit_bytes:
            self._evict_first()

    def touch(self, file: Hashable) -> None:
        """Note that `file` was read just now; nothing happens if it is not on the list."""
        if file in self._entries:
            self._entries.move_to_end(file)

    def discard(self, file: Hashable) -> None:
        """Take `file` off the list without evicting it."""
        entry = self._entries.pop(file, None)
        if entry is not None:
            self.size_bytes -= entry.size_bytes

    def evict_all(self) -> bool:
        """Let every file go, for the disk is full; return whether there was one."""
        had_some = bool(self._entries)
        while self._entries:
            self._evict_first()
        return had_some

    def _evict_first(self) -> None:
        _, entry = self._entries.popitem(last=False)
        self.size_bytes -= entry.size_bytes
        entry.on_evict()
