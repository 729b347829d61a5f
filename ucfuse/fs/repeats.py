"""The kernel's repeat of an open that met another version: from its ticket, without asking again.

`validation` refuses the first try and issues the ticket; `kernel_lookups` looks here for the
lookups of the repeat, and `filesystem` says what else the thread does, which ends it.

Concurrency: trio loop only, every method is atomic.
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


class Repeats:
    """Opens under way again. Owner of what the tickets keep pinned."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def ticket(self, caller: Caller, key: Key) -> Ticket | None:
        """Return the ticket by which a lookup of this name is answered from memory."""
        self._expire()
        return self._services.tickets.find(caller.thread, key, trio.current_time())

    def trusts(self, caller: Caller, directory_key: Key) -> bool:
        """Whether the lookup of a directory belongs to an open that is being repeated."""
        now = trio.current_time()
        return self._services.tickets.leads_through(caller.thread, directory_key, now)

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
                self._services.tickets.unlock(key, trio.current_time())

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
        ticket = self._services.tickets.take(caller.thread, key, trio.current_time())
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
        for ticket in tickets.expire(trio.current_time(), everything=everything):
            self._unpin(ticket)

    def _unpin(self, ticket: Ticket) -> None:
        for file in (ticket.refused, ticket.found):
            if file is not None:
                self._services.contents.unpin(file)
