"""Whether an open sees the newest committed version.

An open may be answered without asking only if its inode was confirmed by a request that began
after that open arrived. Otherwise one request asks (see `questions`): the first bytes for a reader,
HEAD for a writer. A version from elsewhere gets a new inode, the open is answered with
`StaleName`, and a ticket lets the kernel's repeat of it go through without a second question.

Concurrency: trio loop only, any number of opens at once.
"""

from contextlib import ExitStack
from enum import Enum, auto

import trio

from ucfuse.errors import StaleName
from ucfuse.fs.caller import Caller
from ucfuse.fs.kernel_lookups import KernelLookups
from ucfuse.fs.lookahead import Lookahead
from ucfuse.fs.questions import Questions
from ucfuse.fs.repeats import Repeats
from ucfuse.fs.services import Services
from ucfuse.names.inodes import Fate, File
from ucfuse.volume import Key

__all__ = ["Asks", "Validation"]


class Asks(Enum):
    """What an open needs to hear from the store."""

    NOTHING = auto()
    """O_TRUNC: no byte of the present version matters."""
    VERSION = auto()
    BYTES = auto()
    """The version, and the first bytes with it."""


class Validation:
    """Says of the files of one volume whether they may be opened as they are."""

    def __init__(
        self, services: Services, questions: Questions, lookups: KernelLookups, repeats: Repeats
    ) -> None:
        self._services = services
        self._questions = questions
        self._lookups = lookups
        self._repeats = repeats
        self._lookahead = Lookahead(services, questions.bring)

    async def confirm(self, file: File, caller: Caller, asks: Asks) -> None:
        """Return if `file` may be opened by `caller`.

        Raises `StaleName` if the name means something else by now (the kernel looks it up
        again), or the store's causes.
        """
        key = self._services.superblock.key(file)
        arrived_at, ticket = self._lookups.arrival_of(file, caller), None
        if caller.thread or file.has_name:
            ticket = self._repeats.take_ticket(caller, key)
            if ticket is not None and caller.thread and ticket.refused is file:
                return  # no name led here but a descriptor: it opens the version that it has
            if ticket is not None and ticket.has_bytes and ticket.found is file:
                return
            if ticket is not None:
                arrived_at = ticket.arrived_at
        if asks is Asks.BYTES:
            self._lookahead.opens(file)
        if asks is not Asks.NOTHING:
            # A repeat whose bytes are not here asks for them: they may be gone at the first READ.
            has_all = asks is Asks.VERSION or self._questions.is_at_hand(file)
            since = arrived_at if has_all else caller.arrived_at
            await self._questions.ask_until(file, since, asks is Asks.BYTES)
        if self._may_open(file, caller, arrived_at, is_repeat=ticket is not None):
            return
        if (
            asks is Asks.NOTHING
            and ticket is not None
            and self._services.superblock.takes_over(file)
        ):
            return  # the kernel does not try a third time, and no byte of it will matter
        with ExitStack() as held:  # else the bytes that came go before the ticket keeps them
            if asks is not Asks.NOTHING:
                await self._ask_present(file, arrived_at, asks is Asks.BYTES, held)
            self._refuse(file, caller.thread, key, arrived_at, has_bytes=asks is Asks.BYTES)

    def _may_open(self, file: File, caller: Caller, arrived_at: float, *, is_repeat: bool) -> bool:
        if file.has_name:
            return True
        if file.fate is Fate.SUPERSEDED and file.checked_at >= arrived_at:
            return True  # it was the newest version at some moment since the open arrived
        if is_repeat and file.detached_at >= arrived_at:
            return True  # so it was, and the kernel does not try a third time
        return self._only_descriptors_lead_to(file, caller)

    def _only_descriptors_lead_to(self, file: File, caller: Caller) -> bool:
        """Whether a caller that cannot be told apart must hold a descriptor: names have expired."""
        lost_for_s = trio.current_time() - file.detached_at
        return caller.thread == 0 and lost_for_s > self._services.config.metadata_ttl_s

    def _refuse(
        self, file: File, thread: int, key: Key, arrived_at: float, *, has_bytes: bool
    ) -> None:
        found = self._services.superblock.known(file.parent, file.name)
        self._repeats.issue(
            thread,
            key,
            arrived_at,
            file,
            found if isinstance(found, File) else None,
            is_absent=found is None and file.absent_at >= arrived_at,
            has_bytes=has_bytes,
        )
        raise StaleName(key, "the name means another version by now")

    async def _ask_present(
        self, file: File, arrived_at: float, wants_bytes: bool, held: ExitStack
    ) -> None:
        """Make sure of what the name of a lost inode means now: the kernel repeats only once.

        What was found stays pinned as long as `held`.
        """
        while True:
            present = self._services.superblock.known(file.parent, file.name)
            if not isinstance(present, File) or present.is_local:
                return
            held.enter_context(self._services.contents.pinned(present))
            if present.checked_at >= arrived_at:
                return
            await self._questions.ask_until(present, arrived_at, wants_bytes)
