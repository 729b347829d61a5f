"""The kernel's repeat of an open that met another version: from its ticket, without asking again.

`validation` refuses the first try and issues the ticket; `kernel_lookups` looks here for the
lookups of the repeat, and `filesystem` says what else the thread does, which ends it.

The time of tickets is what this process has lived through, not what has passed: one that was
stopped, suspended or starved for seconds finds the repeats of before in its queue.

Concurrency: trio loop only, every method is atomic. While there are tickets, one task of the
service nursery tells the time.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import trio

from ucfuse.fs.caller import Caller
from ucfuse.fs.services import Services
from ucfuse.names.inodes import Directory, File
from ucfuse.names.tickets import Ticket
from ucfuse.volume import Key

__all__ = ["Repeats"]

# A beat that comes late counts as one that came in time.
BEAT_S = 0.05


class Repeats:
    """Opens under way again. Owner of what the tickets keep pinned."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._lived_s = 0.0
        self._beats = False

    def issue(
        self,
        thread: int,
        key: Key,
        arrived_at: float,
        refused: File,
        found: File | None,
        *,
        is_absent: bool,
        has_bytes: bool,
    ) -> None:
        """Let the kernel's repeat of an open that is now refused count as arrived at that time."""
        for file in (refused, found):
            if file is not None:
                self._services.contents.pin(file)
        self._services.tickets.issue(
            thread,
            key,
            arrived_at,
            refused,
            found,
            is_absent=is_absent,
            has_bytes=has_bytes,
            now=self._lived_s,
        )
        if not self._beats:
            self._beats = True
            self._services.nursery.start_soon(self._beat)

    async def _beat(self) -> None:
        """Tell the time until there are no tickets."""
        try:
            while not self._services.tickets.is_empty:
                await trio.sleep(BEAT_S)
                self._lived_s += BEAT_S
                self._expire()
        finally:
            self._beats = False

    def ticket(self, caller: Caller, key: Key) -> Ticket | None:
        """Return the ticket by which a lookup of this name is answered from memory."""
        return self._services.tickets.find(caller.thread, key, self._lived_s)

    def trusts(self, caller: Caller, directory_key: Key) -> bool:
        """Whether the lookup of a directory belongs to an open that is being repeated."""
        return self._services.tickets.leads_through(caller.thread, directory_key, self._lived_s)

    @contextmanager
    def names_change(self, *directories: Directory) -> Iterator[None]:
        """While names change in these directories the kernel holds back lookups there."""
        keys = [self._services.superblock.key(directory) for directory in directories]
        for key in keys:
            self._services.tickets.lock(key)
        try:
            yield
        finally:
            for key in keys:
                self._services.tickets.unlock(key, self._lived_s)

    def promised(self, ticket: Ticket | None, directory: Directory, name: str) -> File | None:
        """Return the inode that an open found, if its bytes are at hand by that alone.

        Its name may have come to mean another version since, here or elsewhere: the open that is
        being repeated is older than that.
        """
        found = ticket.found if ticket is not None and ticket.has_bytes else None
        if found is None or (found.parent, found.name) != (directory, name):
            return None
        content = self._services.contents.known(found)
        reader = content.reader if content is not None else None
        has_bytes = reader is not None and content is not None and reader.has(0, content.size)
        return found if has_bytes else None

    def take_ticket(self, caller: Caller, key: Key) -> Ticket | None:
        """End and return the ticket of an open or create that comes again."""
        ticket = self._services.tickets.take(caller.thread, key, self._lived_s)
        if ticket is not None:
            self._unpin(ticket)
        return ticket

    def end_tickets(self, thread: int) -> None:
        """End the tickets of a thread that went on to something else."""
        for ticket in self._services.tickets.end_all(thread):
            self._unpin(ticket)

    def close(self) -> None:
        """Give all tickets up: the mount ends."""
        self._expire(everything=True)

    def _expire(self, *, everything: bool = False) -> None:
        tickets = self._services.tickets
        for ticket in tickets.expire(self._lived_s, everything=everything):
            self._unpin(ticket)

    def _unpin(self, ticket: Ticket) -> None:
        for file in (ticket.refused, ticket.found):
            if file is not None:
                self._services.contents.unpin(file)
