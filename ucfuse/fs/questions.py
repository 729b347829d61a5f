"""The question to the store that makes sure which version a file has: the first bytes, or HEAD.

Of one key at most one question runs and one waits; the one that waits begins when the other ends
and serves everybody who arrived before it began. `kernel_lookups`, `validation` and the lookahead
of opens ask here.

With `--freshness` a reader may have what was validated that long before, if it is at hand.

Concurrency: trio loop only. A question is a task of the service nursery, with a deadline of its
own; those who wait for it may go.
"""

import math
from dataclasses import dataclass, field, replace

import trio

from ucfuse.budget import Reservation
from ucfuse.errors import ObjectMissing, StoreUnavailable, VolumeError
from ucfuse.fs.file_content import FileContent
from ucfuse.fs.reads import Reads
from ucfuse.fs.services import Services
from ucfuse.names.inodes import NEVER, File, needs_mtime
from ucfuse.store.api import IN_FLIGHT_COPIES, Bytes, Fetched
from ucfuse.tasks import Pending, deadline
from ucfuse.volume import Key, MiB

__all__ = ["Questions"]

# A whole small file, or what a program reads first of a large one. More would be wasted on random
# reads; the window takes it on from there.
FIRST_BYTES = MiB


@dataclass(slots=True, eq=False)
class _Question:
    """One question about a key, for every open that arrived before it began."""

    wants_bytes: bool
    began_at: float = NEVER
    ended: trio.Event = field(default_factory=trio.Event)
    error: Exception | None = None
    waiter_count: int = 0
    found: File | None = None
    """Whose first bytes the answer brought; nobody has pinned it yet."""


class Questions:
    """The questions of one volume about the versions of its files."""

    def __init__(self, services: Services, reads: Reads) -> None:
        self._services = services
        self._reads = reads
        self._running: dict[Key, _Question] = {}
        self._waiting: dict[Key, _Question] = {}

    async def ask_until(self, file: File, arrived_at: float, wants_bytes: bool) -> None:
        """Ask until a question that began after `arrived_at` has told of the file."""
        with deadline(self._services.config.read_timeout_s, file.path):
            while self._must_ask(file, arrived_at, wants_bytes):
                question = self._join(file, wants_bytes, self._oldest(arrived_at))
                await self._wait_for(question)

    async def bring(self, file: File) -> File | None:
        """Ask for a file that will be opened soon; return whose first bytes came."""
        question = self._join(file, True, self._oldest(trio.current_time()))
        await self._wait_for(question)
        return question.found

    def has_first_bytes(self, file: File) -> bool:
        """Whether a question about the file brings no body if nothing has changed."""
        version, content = file.version, self._services.contents.known(file)
        if version is None or content is None or not version.size or needs_mtime(file):
            return False
        return content.has_delivered(min(FIRST_BYTES, version.size))

    def is_at_hand(self, file: File) -> bool:
        """Whether the first bytes can be had without asking: of another version they would not."""
        content = self._services.contents.known(file)
        length = min(FIRST_BYTES, file.version.size) if file.version is not None else 0
        return not length or (content is not None and content.is_at_hand(length))

    # --- one at a time -----------------------------------------------------------------------

    def _must_ask(self, file: File, arrived_at: float, wants_bytes: bool) -> bool:
        if not file.has_name or file.is_local or file.checked_at >= arrived_at:
            return False
        is_fresh = wants_bytes and file.checked_at >= self._oldest(arrived_at)
        return not (is_fresh and self.is_at_hand(file))

    def _oldest(self, arrived_at: float) -> float:
        """Return since when what was validated may be used by a reader that arrived then."""
        freshness_s = self._services.config.freshness_s
        return arrived_at - freshness_s if freshness_s > 0 else math.inf

    def _join(self, file: File, wants_bytes: bool, oldest: float) -> _Question:
        """Return the question that will begin from now on, or runs since `oldest` at most."""
        key = self._services.superblock.key(file)
        running = self._running.get(key)
        if running is not None and running.wants_bytes and running.began_at >= oldest:
            return running
        if running is None:
            return self._begin(file, key, _Question(wants_bytes))
        waiting = self._waiting.get(key)
        if waiting is None:
            waiting = self._waiting[key] = _Question(wants_bytes)
        waiting.wants_bytes = waiting.wants_bytes or wants_bytes
        return waiting

    def _begin(self, file: File, key: Key, question: _Question) -> _Question:
        self._running[key] = question
        question.began_at = trio.current_time()
        self._services.contents.pin(file)
        # With a deadline of its own: others than the one who begins it will wait for it.
        Pending(self._services.nursery, lambda: self._run(file, key, question), until=math.inf)
        return question

    async def _wait_for(self, question: _Question) -> None:
        """Wait for the end of a question. Raises what ended it."""
        question.waiter_count += 1
        try:
            await question.ended.wait()
        except trio.Cancelled:
            question.waiter_count -= 1
            self._drop_unwanted(question)
            raise
        question.waiter_count -= 1
        if question.error is not None:
            raise question.error

    def _drop_unwanted(self, question: _Question) -> None:
        """Give up the bytes of an answer that nobody waits for any more."""
        found = question.found
        if found is not None and question.ended.is_set() and not question.waiter_count:
            self._services.contents.pin(found)
            self._services.contents.unpin(found)

    async def _run(self, file: File, key: Key, question: _Question) -> None:
        question.error = StoreUnavailable(key, "the question ended without an answer")
        try:
            with deadline(self._services.config.read_timeout_s, key):
                question.found = await self._ask(file, key, wants_bytes=question.wants_bytes)
            question.error = None
        except VolumeError as cause:
            question.error = cause
        finally:
            self._end(file, key, question)

    def _end(self, file: File, key: Key, question: _Question) -> None:
        del self._running[key]
        question.ended.set()
        self._drop_unwanted(question)
        waiting = self._waiting.pop(key, None)
        if waiting is not None:
            present = self._services.superblock.known(file.parent, file.name)
            if isinstance(present, File) and not present.is_local:
                self._begin(present, key, waiting)
            else:
                waiting.ended.set()  # the name is gone or changed here: nothing is left to ask
        if question.waiter_count and file.pins == 1:
            self._services.nursery.start_soon(self._unpin_after_turn, file)
        else:
            self._services.contents.unpin(file)

    async def _unpin_after_turn(self, file: File) -> None:
        """Give up what only its question held, once those who waited for that could pin it.

        They run in the next turn of the loop, as this does; it goes on in the one after.
        """
        try:
            await trio.lowlevel.checkpoint()
        finally:
            self._services.contents.unpin(file)

    # --- the request -------------------------------------------------------------------------

    async def _ask(self, file: File, key: Key, *, wants_bytes: bool) -> File | None:
        version = file.version
        if wants_bytes and version is not None and version.size > 0:
            return await self._ask_bytes(file, key, min(FIRST_BYTES, version.size))
        await self._services.lookups.refresh(file)
        return None

    async def _ask_bytes(self, file: File, key: Key, length: int) -> File | None:
        """One GET of the first bytes; without a body where kernel or cache have these already."""
        services, superblock = self._services, self._services.superblock
        version, content = file.version, services.contents.of(file)
        assert version is not None
        has_bytes = content.has_delivered(length) or content.staging is not None
        reservation = await services.budget.reserve(length * IN_FLIGHT_COPIES)
        began, cached = trio.current_time(), None
        try:
            if not has_bytes:
                cached = await self._reads.cached(replace(version, key=key), length)
            known_etag = version.etag if has_bytes or cached is not None else None
            answer = await services.store.get(key, 0, FIRST_BYTES, if_none_match=known_etag)
        except BaseException as error:
            reservation.release()
            if not isinstance(error, ObjectMissing):
                raise
            self._missing(file, key, began)
            return None
        reservation.shrink_to(length)
        if not isinstance(answer, Fetched):
            superblock.confirm(file, answer.etag, began)
            if cached is not None and self._shows(file, answer.etag):
                self._seed(content, cached, reservation)
                return file
            reservation.release()
            return None
        self._reads.cache_soon(answer)
        found = superblock.observe_version(file, answer.info, began)
        if self._shows(found, answer.info.etag):
            assert isinstance(found, File)
            self._seed(services.contents.of(found), answer.data, reservation)
            return found
        reservation.release()
        return None

    def _seed(self, content: FileContent, data: Bytes, reservation: Reservation) -> None:
        """Keep the bytes for the reads to come; of a file that grew, as many as memory allows."""
        surplus = len(data) - reservation.size_bytes
        if surplus > 0:
            room = self._services.budget.reserve_nowait(surplus)
            if room is None:
                data = data[: reservation.size_bytes]
            else:
                reservation.absorb(room)
        self._reads.seed(content, data, reservation)

    def _missing(self, file: File, key: Key, began: float) -> None:
        if self._services.superblock.key(file) == key:
            self._services.superblock.observe_missing(file, began)

    def _shows(self, found: object, etag: str) -> bool:
        return (
            isinstance(found, File)
            and not found.is_local
            and found.version is not None
            and found.version.etag == etag
        )
