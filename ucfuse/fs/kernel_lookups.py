"""What the kernel's lookups are answered, and what an open may take over from its lookup.

A lookup of a name that has expired asks the store. Where the kernel has the first bytes of the
file already, it asks as an open would, by a GET that brings no body if nothing changed, and its
answer is valid for no time. Then an open that follows from the same thread, with no other request
in between, belongs to the same system call as the lookup (a stat would have sent GETATTR), and is
answered without a second question. Threads of another pid namespace (0) cannot be told apart.

The lookups of an open that is repeated are answered from its ticket, without asking.

Concurrency: trio loop only, any number of lookups at once.
"""

from collections.abc import Callable
from contextlib import nullcontext

from ucfuse.errors import NotFound
from ucfuse.fs.attributes import learn_mtime
from ucfuse.fs.caller import Caller
from ucfuse.fs.failed_lookups import FailedLookups
from ucfuse.fs.questions import Questions
from ucfuse.fs.repeats import Repeats
from ucfuse.fs.services import Services
from ucfuse.names.inodes import Directory, File, Node
from ucfuse.tasks import deadline
from ucfuse.volume import Key

__all__ = ["KernelLookups"]

# One entry per thread that looked a name up and did nothing since; most are gone at once.
MOST_LOOKUPS = 4096


class KernelLookups:
    """The lookups of one volume, and which thread's last request was which of them."""

    def __init__(
        self,
        services: Services,
        questions: Questions,
        repeats: Repeats,
        is_away: Callable[[], bool],
    ) -> None:
        """`is_away`: whether the store is not asked at present."""
        self._services = services
        self._questions = questions
        self._repeats = repeats
        self._failures = FailedLookups(is_away)
        self._looked_up: dict[int, tuple[File, float]] = {}

    async def find(self, directory: Directory, name: str, caller: Caller) -> tuple[Node, float]:
        """Return what a name is, not older than the TTL, and for how many seconds that is valid.

        Raises `NotFound`, or the store's causes.
        """
        superblock, repeats = self._services.superblock, self._repeats
        key = superblock.key_below(directory, name)
        self.end(caller.thread)
        ticket = repeats.ticket(caller, key)
        if ticket is not None and ticket.is_absent and superblock.known(directory, name) is None:
            repeats.take_ticket(caller, key)
            raise NotFound(key)
        node: Node | None = repeats.promised(ticket, directory, name)
        if node is None:
            is_trusted = ticket is not None or repeats.trusts(caller, key)
            node, is_asked = await self._ask(directory, name, key, caller, is_trusted)
            if is_asked and isinstance(node, File):
                self._note(node, caller)
                return node, 0.0
        return node, superblock.valid_s(node)

    def arrival_of(self, file: File, caller: Caller) -> float:
        """Return when an open of `file` arrived: with its lookup, if that came just before."""
        looked_up, arrived_at = self._looked_up.pop(caller.thread, (None, caller.arrived_at))
        return arrived_at if looked_up is file else caller.arrived_at

    def end(self, thread: int) -> None:
        """Forget the lookup of a thread that went on to something else."""
        self._looked_up.pop(thread, None)

    async def _ask(
        self, directory: Directory, name: str, key: Key, caller: Caller, is_trusted: bool
    ) -> tuple[Node, bool]:
        """Return what a name is, and whether that was asked as an open would."""
        services = self._services
        known = services.superblock.known(directory, name)
        is_known = known is not None and (is_trusted or services.superblock.is_fresh(known))
        asking = nullcontext() if is_known else self._failures.asking(directory)
        with asking, deadline(services.config.metadata_timeout_s, key):
            is_asked = not is_trusted and await self._ask_as_open(known, caller)
            node = await services.lookups.find(directory, name, trust_memory=is_trusted)
            await learn_mtime(services, node)
        return node, is_asked

    async def _ask_as_open(self, node: Node | None, caller: Caller) -> bool:
        """Ask about an expired file that is known, if an open could take the answer over."""
        if not isinstance(node, File) or not caller.thread:
            return False
        if node.is_local or self._services.superblock.is_fresh(node):
            return False
        if self._services.config.freshness_s > 0 or not self._questions.has_first_bytes(node):
            return False  # a page of the listing will do for all that follow, and open may not ask
        with self._services.contents.pinned(node):
            await self._questions.ask_until(node, caller.arrived_at, wants_bytes=True)
        return True

    def _note(self, file: File, caller: Caller) -> None:
        """Remember a lookup: an open that follows at once counts as arrived with it."""
        self._looked_up[caller.thread] = (file, caller.arrived_at)
        if len(self._looked_up) > MOST_LOOKUPS:
            del self._looked_up[next(iter(self._looked_up))]
