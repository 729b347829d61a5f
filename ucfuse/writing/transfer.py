"""The parts of one multipart upload: which were sent, which are under way, which go again.

`upload` owns one `Transfer` per upload and decides what is sent when. A part is a slice of the
staging file, read when its turn comes, or a range of the base that the store copies by itself.

It never completes an upload, and never repeats a request (the store does).

Concurrency: each part under way is a task of the nursery given; it delivers its outcome here and
raises nothing. Whoever begins a part waits for memory and a place first, and holds none meanwhile.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass

import trio

from ucfuse.budget import MemoryBudget, Reservation
from ucfuse.errors import ObjectChanged, ObjectMissing, StoreUnavailable, VolumeError
from ucfuse.store.api import Checksum, Fetched, ObjectStore, UploadId, Whole
from ucfuse.store.checksums import NOTHING, combined
from ucfuse.volume import ETag, Key, MiB, ObjectInfo
from ucfuse.writing.journal import Steps
from ucfuse.writing.parts import SMALLEST_PART_BYTES, Part
from ucfuse.writing.patience import Patience
from ucfuse.writing.staging import Staging

__all__ = ["Means", "Transfer", "fetch_missing"]

log = logging.getLogger(__name__)

# What is left of an upload costs the bucket's owner money but nobody's bytes, and someone waits.
ABORT_TIMEOUT_S = 5.0

# What one transfer has under way: 16 parts of 8 MiB fill a fast link, and of larger ones 8 do. So a
# file takes no more memory up to 24 GiB, where parts become larger still; fewer connections would
# then be slow. The memory budget may allow fewer.
IN_FLIGHT_BYTES = 16 * SMALLEST_PART_BYTES
LARGEST_SHARE_BYTES = 2 * SMALLEST_PART_BYTES

# One request for bytes of the base; like a part of a read.
FETCH_BYTES = 8 * MiB


@dataclass(frozen=True, slots=True)
class Means:
    """What all uploads of one mount use together."""

    store: ObjectStore
    budget: MemoryBudget
    nursery: trio.Nursery
    commit_timeout_s: float


@dataclass(slots=True, eq=False)
class _Sent:
    """One part, from its beginning on. `etag` None: it is under way, or failed."""

    part: Part
    etag: ETag | None = None
    checksum: Checksum | None = None
    is_stale: bool = False
    """Its bytes were written again since they were read."""


class Transfer:
    """One multipart upload of one staging file under one key.

    `base`: the version that copied parts and missing bytes come from.
    """

    def __init__(
        self,
        means: Means,
        key: Key,
        staging: Staging,
        entry: Steps | None,
        base: ObjectInfo | None = None,
    ) -> None:
        self.key = key
        self.upload: UploadId | None = None
        self.patience = Patience(means.commit_timeout_s)
        self.failure: Exception | None = None
        self.began_at = trio.current_time()
        self._means = means
        self._staging = staging
        self._entry = entry
        self._base = base
        self._sent: dict[int, _Sent] = {}
        self._sent_stop = 0
        self._creating = trio.Lock()
        self._places = MemoryBudget(IN_FLIGHT_BYTES)
        self._running = 0
        self._is_closed = False
        self._idle = trio.Event()
        self._idle.set()

    # --- what was sent -----------------------------------------------------------------------

    def has_begun(self, part: Part) -> bool:
        """Whether the part was sent or is under way, whatever became of it."""
        return part.number in self._sent

    def written_again(self, start: int, stop: int) -> None:
        """Note that these bytes changed: what was sent of them is of no use."""
        if start >= self._sent_stop:  # a file written in order ends here
            return
        for sent in self._sent.values():
            if sent.part.start < stop and start < sent.part.stop:
                sent.is_stale = True

    def cut(self, size: int) -> None:
        """Note that nothing at `size` and behind it is as it was."""
        self.written_again(size, self._sent_stop)

    def lacks(self, plan: Iterable[Part]) -> list[Part]:
        """Return the parts of the plan that have not arrived as they are now."""
        return [part for part in plan if not self._has(part)]

    def etags(self, plan: Iterable[Part]) -> list[ETag]:
        """Return the ETags of all parts of the plan, which have all arrived."""
        found = [self._sent[part.number].etag for part in plan]
        return [etag for etag in found if etag is not None]

    def whole(self, plan: Iterable[Part]) -> Whole | None:
        """Return what the parts make; None if the store knows some of the bytes alone."""
        size, checksum = 0, NOTHING
        for part in plan:
            of_part = self._sent[part.number].checksum
            if of_part is None:
                return None
            checksum = combined(checksum, of_part, part.size)
            size += part.size
        return Whole(size, checksum)

    def _has(self, part: Part) -> bool:
        sent = self._sent.get(part.number)
        if sent is None or sent.etag is None:
            return False
        return sent.part == part and not sent.is_stale

    # --- sending -----------------------------------------------------------------------------

    async def begin(self, part: Part) -> None:
        """Begin to send the part as soon as there is room for it; nothing once it is closed."""
        size_bytes = 0 if part.is_copy else part.size
        place = await self._places.reserve(
            min(max(size_bytes, SMALLEST_PART_BYTES), LARGEST_SHARE_BYTES)
        )
        try:
            memory = await self._means.budget.reserve(size_bytes)
        except BaseException:
            place.release()
            raise
        if self._is_closed:
            memory.release()
            place.release()
            return
        sent = self._sent[part.number] = _Sent(part)
        self._sent_stop = max(self._sent_stop, part.stop)
        self._running += 1
        if self._idle.is_set():
            self._idle = trio.Event()
        self._means.nursery.start_soon(self._run, sent, place, memory)

    def serves(self, key: Key, copies_from: ObjectInfo | None) -> bool:
        """Whether a commit to `key` can go on from what was sent here."""
        if self.key != key:
            return False
        return copies_from is None or copies_from == self._base

    async def quiet(self) -> None:
        """Wait until no part is under way, whatever came of them."""
        await self._idle.wait()
        self.failure = None

    async def settled(self) -> None:
        """Wait until no part is under way; raise the first failure since the last time."""
        await self._idle.wait()
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure

    def close(self) -> None:
        """End what is under way, and begin nothing more."""
        self._is_closed = True
        self.patience.stop()

    async def abort(self) -> None:
        """End it, and let the store forget the parts. Failing that, the log has the id."""
        self.close()
        with trio.CancelScope(shield=True):  # a moment: a cancelled request ends at once
            await self._idle.wait()
        if self.upload is None:
            return
        reason = f"no answer within {ABORT_TIMEOUT_S:g} s"
        with trio.move_on_after(ABORT_TIMEOUT_S, shield=True):
            try:
                await self._means.store.abort_upload(self.key, self.upload)
            except VolumeError as cause:
                reason = str(cause)
            else:
                self.upload = None
                return
        log.warning(
            "%s: upload %s could not be aborted (%s): its parts stay in the bucket until the next"
            " mount here aborts it, or a lifecycle rule for incomplete uploads removes them",
            *(self.key, self.upload, reason),
        )

    async def _run(self, sent: _Sent, place: Reservation, memory: Reservation) -> None:
        """Send one part; delivers its outcome, raises nothing."""
        try:
            if self.failure is None and not self._is_closed:
                with self.patience.bound(self.key):
                    sent.etag = await self._send(sent)
        except Exception as error:
            if not isinstance(error, VolumeError):
                log.exception("%s: sending a part failed, this is a bug", self.key)
            self._fail(error)
        except trio.Cancelled:
            self._fail(StoreUnavailable(self.key, "the mount ended before all parts were sent"))
            raise
        finally:
            memory.release()
            place.release()
            self._running -= 1
            if self._running == 0:
                self._idle.set()

    def _fail(self, error: Exception) -> None:
        """Keep the first failure; the other parts under way can wait for the next try."""
        if self.failure is None:
            self.failure = error
            self.patience.stop()

    async def _send(self, sent: _Sent) -> ETag | None:
        store, part = self._means.store, sent.part
        upload = await self._created()
        if sent.is_stale:
            return None  # the commit sends it as it is then
        if part.is_copy:
            assert self._base is not None
            return await store.upload_part_copy(
                self.key, upload, part.number, self.key, self._base.etag, part.start, part.stop
            )
        await fetch_missing(store, self._staging, self.key, self._base, part.start, part.stop)
        body, sent.checksum = await self._staging.read_body(part.start, part.stop)
        return await store.upload_part(self.key, upload, part.number, body, checksum=sent.checksum)

    async def _created(self) -> UploadId:
        async with self._creating:
            if self.upload is None:
                upload = await self._means.store.create_upload(self.key)
                self.began_at = trio.current_time()
                self.upload = upload
                if self._entry is not None:
                    self._entry.upload_begins(upload)
            return self.upload


async def fetch_missing(
    store: ObjectStore, staging: Staging, key: Key, base: ObjectInfo | None, start: int, stop: int
) -> None:
    """Bring the bytes of `[start, stop)` that only the base has into the staging file.

    The caller has reserved the memory. Raises `ObjectChanged`: the base is not there any more.
    """
    for hole in staging.holes(start, stop):
        for piece in range(hole.start, hole.stop, FETCH_BYTES):
            assert base is not None
            end = min(piece + FETCH_BYTES, hole.stop)
            try:
                answer = await store.get(key, piece, end, if_match=base.etag)
            except ObjectMissing as cause:
                raise ObjectChanged(key, "deleted elsewhere") from cause
            assert isinstance(answer, Fetched)
            await staging.fill(piece, answer.data)
