"""Fetching small files ahead, where programs open them in the order of the listing.

`cp -r` and data loaders open one file after another, and wait a round trip for each. With
`--freshness` an open may use what was fetched a moment before it: so once some files of a directory
were opened in order, `Lookahead` asks for the next ones, as an open would, and holds the bytes
until the open comes or they are no longer fresh.

The order is that of the inode numbers: a listing gives them out as it goes, and `cp` sorts by them.
It never waits for memory, and holds at most a quarter of the budget.

Concurrency: trio loop only. Each file that is held has a task in the service nursery.
"""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import trio

from ucfuse.errors import StaleName, VolumeError
from ucfuse.fs.services import Services
from ucfuse.names.inodes import Directory, File
from ucfuse.reading.pagecache import MOST_PUSHED_BYTES
from ucfuse.store.api import IN_FLIGHT_COPIES
from ucfuse.volume import InodeNo

__all__ = ["Bring", "Lookahead"]

log = logging.getLogger(__name__)

# Two that follow each other may be chance; a third shows an order.
PROOF_COUNT = 2
# Files ahead for each one that was opened in order, up to the most. At 20 ms a request, 64 files
# ahead are 3,000 files/s.
FILES_PER_PROOF = 4
MOST_FILES = 64
# Programs leave out some names (by their suffix, say), and the workers of a loader take turns.
SKIP_COUNT = 16
BUDGET_SHARE = 4
MOST_ORDERS = 64

Bring = Callable[[File], Awaitable[File | None]]
"""Asks for the first bytes of a file; returns the file whose bytes they are."""


@dataclass(slots=True, eq=False)
class _Order:
    """How far the files of one directory were opened in order, and asked for ahead."""

    head: int
    proof_count: int = 0
    planned: int = 0

    def opens(self, number: int) -> bool:
        """Note an open; whether it goes on in order."""
        if self.head < number <= self.head + SKIP_COUNT:
            self.head = number
            self.proof_count += 1
            return True
        if not self.head - MOST_FILES <= number <= self.head:
            self.head, self.proof_count, self.planned = number, 0, 0
        return False

    def wanted(self) -> range:
        """Return the numbers that should be asked for now."""
        if self.proof_count < PROOF_COUNT:
            return range(0)
        width = min(MOST_FILES, self.proof_count * FILES_PER_PROOF)
        return range(max(self.planned, self.head) + 1, self.head + width + 1)


class Lookahead:
    """The files that are held for opens to come. Owner of their pins."""

    def __init__(self, services: Services, bring: Bring) -> None:
        self._services = services
        self._bring = bring
        self._orders: dict[Directory, _Order] = {}  # least recently used first
        self._held: dict[File, trio.Event] = {}
        self._held_bytes = 0

    def opens(self, file: File) -> None:
        """Note that a file is being opened for reading, and ask for those that come next."""
        if self._services.config.freshness_s <= 0:
            return
        if file in self._held:
            self._held[file].set()
        order = self._orders.pop(file.parent, None) or _Order(file.number)
        self._orders[file.parent] = order
        if len(self._orders) > MOST_ORDERS:
            del self._orders[next(iter(self._orders))]
        if order.opens(file.number):
            self._run_ahead(order, file.parent)

    def _run_ahead(self, order: _Order, parent: Directory) -> None:
        for number in order.wanted():
            file = self._candidate(InodeNo(number), parent)
            if file is not None and not self._hold(file):
                return
            order.planned = number

    def _candidate(self, number: InodeNo, parent: Directory) -> File | None:
        """Return the file with this number if it is worth fetching."""
        try:
            node = self._services.superblock.inodes.get(number)
        except StaleName:
            return None
        if not isinstance(node, File) or node.parent is not parent or node in self._held:
            return None
        content = self._services.contents.known(node)
        is_open = content is not None and content.handle_count > 0
        is_small = node.version is not None and 0 < node.version.size <= MOST_PUSHED_BYTES
        return node if is_small and node.has_name and not node.is_local and not is_open else None

    def _hold(self, file: File) -> bool:
        """Begin to fetch a file if there is room for it."""
        assert file.version is not None
        budget, size = self._services.budget, file.version.size
        share = budget.limit_bytes // BUDGET_SHARE
        room = budget.limit_bytes - budget.reserved_bytes - size * IN_FLIGHT_COPIES
        is_full = len(self._held) >= MOST_FILES or self._held_bytes + size > share
        if is_full or room < 0 or budget.is_contended:
            return False
        self._held[file] = trio.Event()
        self._held_bytes += size
        self._services.contents.pin(file)
        self._services.nursery.start_soon(self._run, file, size)
        return True

    async def _run(self, file: File, size: int) -> None:
        contents, pinned = self._services.contents, file
        try:
            found = await self._bring(file)
            if found is not None and found is not file:
                contents.pin(found)
                contents.unpin(file)
                pinned = found
            with trio.move_on_after(self._services.config.freshness_s):
                await self._held[file].wait()
        except VolumeError as cause:
            log.debug("%s: not fetched ahead: %s", file.path, cause)
        finally:
            del self._held[file]
            self._held_bytes -= size
            contents.unpin(pinned)
