"""Tickets: how the kernel repeats an open that met a newer version, without a second question.

An open that finds another version, or none, is answered with ESTALE; the kernel then looks the
whole path up afresh, inside the same system call and from the same thread, and opens again. The
ticket remembers when that open arrived, so the repeat counts as arrived then, and names on its
path are answered from memory. It ends with the repeated open or create, with "no such name", with
any other request of that thread, or after a second. While a name is made, moved or removed in a
directory the kernel holds the directory locked, so the repeat may have to wait for that: such time
does not count.

In another pid namespace all threads look the same (0): the first open of the name takes a ticket.

`fs` is the only user. Concurrency: trio loop only, every method is atomic. The clock is passed in;
it stands still while the daemon does.
"""

from collections import Counter, deque
from dataclasses import dataclass

from ucfuse.names.inodes import File
from ucfuse.volume import DIRECTORY_SUFFIX

__all__ = ["Ticket", "Tickets"]

# The kernel repeats at once; a second, in which this process runs, covers a machine under load.
# Longer would let a later open of the same thread count as arrived too early.
LIFETIME_S = 1.0

# Whatever happens in its directory, a ticket ends: a rename that takes longer is very rare.
LONGEST_S = 300.0


@dataclass(slots=True, eq=False)
class Ticket:
    """One open that was answered with ESTALE."""

    thread: int
    key: str
    arrived_at: float
    expires_at: float
    refused: File
    """The inode that was not opened. The same thread asking for it again has a descriptor."""
    found: File | None
    """What the store's answer made of the name. The holder of the tickets keeps it pinned."""
    is_absent: bool
    """The store answered that there is no object."""
    ends_at: float
    """When it is over whatever holds the repeat up."""
    has_bytes: bool = False
    """The answer brought the first bytes of `found`, which only that inode can serve."""
    is_over: bool = False


class Tickets:
    """All tickets of one volume.

    A ticket that ends is returned exactly once, by `take`, `end_all` or `expire`: the caller then
    unpins what it `found`.
    """

    def __init__(self) -> None:
        self._by_thread: dict[int, list[Ticket]] = {}
        self._in_order: deque[Ticket] = deque()
        self._locked: Counter[str] = Counter()

    @property
    def is_empty(self) -> bool:
        """Whether every ticket has been returned."""
        return not self._by_thread

    def lock(self, directory_key: str) -> None:
        """Note that a change of names begins in a directory: lookups in it wait for its end."""
        self._locked[directory_key] += 1

    def unlock(self, directory_key: str, now: float) -> None:
        """Note that the change is over: the repeats that it held up come now."""
        self._locked -= Counter([directory_key])
        for tickets in self._by_thread.values():
            for ticket in tickets:
                if ticket.key.startswith(directory_key):
                    ticket.expires_at = max(ticket.expires_at, now + LIFETIME_S)

    def issue(
        self,
        thread: int,
        key: str,
        arrived_at: float,
        refused: File,
        found: File | None,
        *,
        is_absent: bool,
        has_bytes: bool = False,
        now: float,
    ) -> None:
        """Remember that an open was answered with ESTALE at `now`."""
        ticket = Ticket(
            thread,
            key,
            arrived_at,
            now + LIFETIME_S,
            refused,
            found,
            is_absent,
            now + LONGEST_S,
            has_bytes,
        )
        self._by_thread.setdefault(thread, []).append(ticket)
        self._in_order.append(ticket)

    def find(self, thread: int, key: str, now: float) -> Ticket | None:
        """Return the thread's ticket for a key; it goes on."""
        for ticket in self._by_thread.get(thread, ()):
            if ticket.key == key and self._is_good(ticket, now):
                return ticket
        return None

    def leads_through(self, thread: int, directory_key: str, now: float) -> bool:
        """Whether a ticket of the thread is for a name somewhere below this directory."""
        below = directory_key.rstrip(DIRECTORY_SUFFIX) + DIRECTORY_SUFFIX
        return any(
            ticket.key.startswith(below) and self._is_good(ticket, now)
            for ticket in self._by_thread.get(thread, ())
        )

    def take(self, thread: int, key: str, now: float) -> Ticket | None:
        """End the thread's ticket for a key and return it."""
        ticket = self.find(thread, key, now)
        if ticket is not None:
            self._end(ticket)
        return ticket

    def end_all(self, thread: int) -> list[Ticket]:
        """End the tickets of a thread that went on to something else.

        Threads of another pid namespace cannot be told apart: theirs only end by being used.
        """
        if not thread or thread not in self._by_thread:
            return []
        ended = list(self._by_thread[thread])
        for ticket in ended:
            self._end(ticket)
        return ended

    def expire(self, now: float, *, everything: bool = False) -> list[Ticket]:
        """End the tickets whose time is over and return them.

        Those behind one that is held up are good for nothing any more, but end with it.
        """
        over = []
        while self._in_order:
            ticket = self._in_order[0]
            if not (everything or ticket.is_over) and self._is_good(ticket, now):
                break
            self._in_order.popleft()
            if not ticket.is_over:
                self._end(ticket)
                over.append(ticket)
        return over

    def _is_good(self, ticket: Ticket, now: float) -> bool:
        if now < ticket.expires_at:
            return True
        is_held_up = any(ticket.key.startswith(directory) for directory in self._locked)
        return is_held_up and now < ticket.ends_at

    def _end(self, ticket: Ticket) -> None:
        ticket.is_over = True
        mine = self._by_thread[ticket.thread]
        mine.remove(ticket)
        if not mine:
            del self._by_thread[ticket.thread]
