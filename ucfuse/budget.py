"""One memory budget for everything that buffers: prefetched parts, parts in flight, upload bodies.

`assembly` creates it; `reading` and `writing` reserve before they fetch or send. What a native
client holds in flight counts too: the reservation is taken before the request is made.

A mount of many volumes divides it: each has a part for itself, and all have the rest in common.
So a volume whose requests stall can hold the rest, but never what the others need to go on.

Concurrency: used from the trio loop only; waiting is first come, first served. Everything but
the wait itself is atomic. Whoever holds bytes must be able to return them without waiting for
more, or two holders could wait for each other.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

import trio

__all__ = [
    "OPTIONAL_SHARE",
    "GrowingBudget",
    "MemoryBudget",
    "Reclaimer",
    "Reservation",
    "divided",
]

OPTIONAL_SHARE = 4
# Half of the limit is divided among the volumes, half is common.
OWN_SHARE = 2
# Where nobody knows how many volumes there will be: at first half of the limit is divided by this.
FIRST_MEMBERS = 16

Reclaimer = Callable[[int], None]
"""Give back about this many bytes that are held without need. Must not await."""


@dataclass(slots=True, eq=False)
class Reservation:
    """Bytes taken from a budget. Travels with the buffer; `release` may be called twice."""

    size_bytes: int
    _budget: "MemoryBudget"
    _is_optional: bool = False

    def release(self) -> None:
        """Return the bytes."""
        self.shrink_to(0)

    def shrink_to(self, size_bytes: int) -> None:
        """Keep only `size_bytes` of it (a body came out smaller than what was reserved)."""
        surplus = self.size_bytes - size_bytes
        if surplus > 0:
            self.size_bytes = size_bytes
            self._budget._give_back(surplus, is_optional=self._is_optional)

    def absorb(self, other: "Reservation") -> None:
        """Take over the bytes of another reservation of the same budget; none may be optional."""
        assert not self._is_optional
        assert not other._is_optional
        self.size_bytes += other.size_bytes
        other.size_bytes = 0


_turns = count()


@dataclass(slots=True, eq=False)
class _Waiter:
    size_bytes: int
    turn: int = field(default_factory=lambda: next(_turns))
    granted: trio.Event = field(default_factory=trio.Event)


@dataclass(slots=True, eq=False)
class _Common:
    """What the members of a divided budget have together: they charge what goes over their own."""

    total_bytes: int
    limit_bytes: int
    own_bytes: int
    charged_bytes: int = 0
    reserved_bytes: int = 0
    members: "list[MemoryBudget]" = field(default_factory=list)

    def charge_of(self, reserved_bytes: int) -> int:
        return max(0, reserved_bytes - self.own_bytes)


class MemoryBudget:
    """Grants reservations up to `limit_bytes` in all; one that is larger than that runs alone.

    Invariant: while somebody waits, reclaimers have nothing left to give. So a holder whose bytes
    become idle asks `is_contended` and, if so, returns them at once.
    """

    def __init__(self, limit_bytes: int, common: _Common | None = None) -> None:
        self.limit_bytes = limit_bytes
        self._common = common
        self.reserved_bytes = 0
        self._optional_bytes = 0
        self._most_optional_bytes = limit_bytes // OPTIONAL_SHARE
        self._waiters: deque[_Waiter] = deque()
        self._reclaimers: list[Reclaimer] = []

    @property
    def is_contended(self) -> bool:
        """Whether somebody waits for bytes."""
        return any(member._waiters for member in self._members)

    @property
    def _members(self) -> "list[MemoryBudget]":
        return self._common.members if self._common is not None else [self]

    def add_reclaimer(self, reclaimer: Reclaimer) -> None:
        """Ask `reclaimer` for idle bytes before anybody has to wait."""
        self._reclaimers.append(reclaimer)

    def reserve_nowait(self, size_bytes: int) -> Reservation | None:
        """Return a reservation if there is room now and nobody waits, else None."""
        if self._waiters or not self._fits(size_bytes):
            return None
        self._take(size_bytes)
        return Reservation(size_bytes, self)

    def reserve_optional(self, size_bytes: int) -> Reservation | None:
        """Return a reservation for what can be done without, if there is room for that now.

        All of these together take a quarter of the limit at most, so that whatever holds them
        up, a disk for example, does not hold up what programs wait for.
        """
        if self._optional_bytes + size_bytes > self._most_optional_bytes:
            return None
        reservation = self.reserve_nowait(size_bytes)
        if reservation is not None:
            self._optional_bytes += size_bytes
            reservation._is_optional = True
        return reservation

    async def reserve(self, size_bytes: int) -> Reservation:
        """Return a reservation as soon as there is room. The deadline is the caller's scope."""
        if not self._waiters:
            self._reclaim(size_bytes)
        granted = self.reserve_nowait(size_bytes)
        if granted is not None:
            return granted
        waiter = _Waiter(size_bytes)
        self._waiters.append(waiter)
        try:
            await waiter.granted.wait()
        except BaseException:  # cancelled, so never granted: trio ends a wait only once
            self._waiters.remove(waiter)
            self._grant()
            raise
        return Reservation(size_bytes, self)

    def _lacks(self, size_bytes: int) -> int:
        """Return how many bytes must be given back before `size_bytes` fit; 0: they fit."""
        common, wanted = self._common, self.reserved_bytes + size_bytes
        if common is None:
            over = wanted - self.limit_bytes
            is_alone = self.reserved_bytes == 0
        else:
            more = common.charge_of(wanted) - common.charge_of(self.reserved_bytes)
            # What is within a member's own part needs nothing of the others, unless they still
            # hold what was theirs before he came.
            over = common.charged_bytes + more - common.limit_bytes if more else 0
            over = max(over, common.reserved_bytes + size_bytes - common.total_bytes)
            is_alone = self.reserved_bytes == 0 and common.charged_bytes == 0
        return 0 if is_alone else max(0, over)

    def _fits(self, size_bytes: int) -> bool:
        return self._lacks(size_bytes) == 0

    def _take(self, size_bytes: int) -> None:
        if self._common is not None:
            charged = self._common.charge_of(self.reserved_bytes)
            more = self._common.charge_of(self.reserved_bytes + size_bytes) - charged
            self._common.charged_bytes += more
            self._common.reserved_bytes += size_bytes
        self.reserved_bytes += size_bytes

    def _reclaim(self, size_bytes: int) -> None:
        others = [member for member in self._members if member is not self]
        for member in (self, *others):
            for reclaimer in member._reclaimers:
                lacks = self._lacks(size_bytes)
                if not lacks:
                    return
                reclaimer(lacks)

    def _give_back(self, size_bytes: int, *, is_optional: bool) -> None:
        self._take(-size_bytes)
        if is_optional:
            self._optional_bytes -= size_bytes
        self._grant()

    def _grant(self) -> None:
        """Let in whoever fits, the one that came first before others."""
        waiting = [member for member in self._members if member._waiters]
        for member in sorted(waiting, key=lambda member: member._waiters[0].turn):
            while member._waiters and member._fits(member._waiters[0].size_bytes):
                waiter = member._waiters.popleft()
                member._take(waiter.size_bytes)
                waiter.granted.set()


def divided(limit_bytes: int, count: int) -> list[MemoryBudget]:
    """Return budgets for `count` volumes that have `limit_bytes` together."""
    if count == 1:
        return [MemoryBudget(limit_bytes)]
    growing = GrowingBudget(limit_bytes, count)
    return [growing.join() for _ in range(count)]


class GrowingBudget:
    """Gives budgets to volumes that come one by one, and have `limit_bytes` together.

    Once more have come than there are parts, there are twice as many parts of half the size.
    """

    def __init__(self, limit_bytes: int, parts: int = FIRST_MEMBERS) -> None:
        self._parts = parts
        self._common = _Common(limit_bytes, 0, 0)
        self._divide()

    @property
    def members(self) -> Sequence[MemoryBudget]:
        """The budgets that were given."""
        return self._common.members

    def join(self) -> MemoryBudget:
        """Return the budget of one more volume."""
        common = self._common
        if len(common.members) == self._parts:
            self._parts *= 2
            self._divide()
        member = MemoryBudget(0, common)
        common.members.append(member)
        self._tell(member)
        return member

    def _divide(self) -> None:
        common = self._common
        common.own_bytes = common.total_bytes // OWN_SHARE // self._parts
        common.limit_bytes = common.total_bytes - common.own_bytes * self._parts
        common.charged_bytes = sum(
            common.charge_of(member.reserved_bytes) for member in common.members
        )
        for member in common.members:
            self._tell(member)

    def _tell(self, member: MemoryBudget) -> None:
        member.limit_bytes = self._common.own_bytes + self._common.limit_bytes
        member._most_optional_bytes = self._common.total_bytes // OPTIONAL_SHARE // self._parts
