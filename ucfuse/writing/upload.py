"""Bringing the bytes of a staging file into the store as one new version of an object.

Each dirty file has an `Upload`. While a program writes a large file anew, parts leave as soon as
they are full; the commit sends the rest, completes, and confirms what the store then has. A small
file is one PUT. Of a large file that is changed in places, the store copies what stayed the same.

It never repeats a single request (the store does), never changes a staging file but by filling
what only the base had, and leaves no upload behind that it could abort. Who wins when a condition
fails is the caller's to decide.

Concurrency: one commit per upload, during which the file must not change; `written` may wait for
room, and who calls it lets nobody else change the file meanwhile. Parts are sent by tasks of the
nursery given.
"""

import logging
import math
from collections.abc import Callable, Iterator, Sequence

import trio

from ucfuse.budget import MemoryBudget
from ucfuse.errors import (
    NoSuchUpload,
    ObjectMissing,
    OutcomeUnclear,
    StagingFull,
    StoreRefused,
    StoreUnavailable,
    Throttled,
)
from ucfuse.store.api import Buffer, Condition, ObjectHead, ObjectStore
from ucfuse.store.outcomes import etag_of_parts
from ucfuse.tasks import Pending
from ucfuse.volume import ETag, Key, ObjectInfo
from ucfuse.writing.confirmation import SINGLE_PUT_BYTES, Expected, confirmed
from ucfuse.writing.journal import Steps
from ucfuse.writing.parts import MIN_PART_BYTES, Part, PartGrid
from ucfuse.writing.patience import Patience
from ucfuse.writing.staging import Staging
from ucfuse.writing.transfer import Means, Transfer, fetch_missing

__all__ = ["Upload", "Uploader"]

log = logging.getLogger(__name__)

# A key that others change all the time can make every upload of it vanish; each try sends
# the whole file again.
UPLOAD_TRIES = 3

# After these the parts that arrived are of use to the next try.
MAY_PASS = (StoreUnavailable, Throttled, OutcomeUnclear, StagingFull)


class Uploader:
    """Makes the uploads of one mount. Borrows everything that it is given.

    `part_bytes`: for stores that want equal parts.
    """

    def __init__(
        self,
        store: ObjectStore,
        budget: MemoryBudget,
        nursery: trio.Nursery,
        *,
        commit_timeout_s: float = 300.0,
        part_bytes: int | None = None,
    ) -> None:
        self._means = Means(store, budget, nursery, commit_timeout_s)
        self._grid = PartGrid(part_bytes)

    def begin(
        self,
        staging: Staging,
        key_now: Callable[[], Key],
        entry: Steps | None = None,
        *,
        base: ObjectInfo | None = None,
    ) -> "Upload":
        """Return the upload of a file that becomes dirty; nothing is sent yet.

        `key_now` tells the key that the file has when its first part leaves; `base` is the version
        that it grows from.
        """
        return Upload(self._means, self._grid, staging, key_now, entry, base)


class Upload:
    """The way of one dirty staging file into the store. Owns its multipart upload."""

    def __init__(
        self,
        means: Means,
        grid: PartGrid,
        staging: Staging,
        key_now: Callable[[], Key],
        entry: Steps | None,
        base: ObjectInfo | None,
    ) -> None:
        self._means = means
        self._grid = grid
        self._staging = staging
        self._key_now = key_now
        self._entry = entry
        self._base = base
        self._transfer: Transfer | None = None
        self._is_paused = False
        self._store_copies = True
        self._last: Expected | None = None

    @property
    def has_begun(self) -> bool:
        """Whether bytes were sent that only the present key can be made of."""
        return self._transfer is not None

    # --- while the file is written -----------------------------------------------------------

    def raise_failure(self) -> None:
        """Raise what kept a part from being sent, once. The commit then tries again."""
        transfer = self._transfer
        if self._is_paused or transfer is None or transfer.failure is None:
            return
        self._is_paused = True
        if not isinstance(transfer.failure, NoSuchUpload):
            raise transfer.failure

    def changes(self, start: int, stop: int) -> None:
        """Note that bytes are about to change: what was sent of them goes again."""
        if self._transfer is not None:
            self._transfer.written_again(start, stop)

    def cuts(self, size: int) -> None:
        """Note that the file is about to be cut or extended to `size` bytes."""
        if self._transfer is not None:
            self._transfer.cut(size)

    async def written(self, start: int, stop: int) -> None:
        """Send every part that these bytes made complete; waits for room for it.

        Only where it is known already what the store will copy: nothing, or all of the base.
        """
        staging, transfer = self._staging, self._transfer
        if self._is_paused or staging.size <= SINGLE_PUT_BYTES:
            return
        if transfer is None and not staging.unchanged_size:
            start = 0  # until now the file could have become one PUT
        for part in self._parts_to_stream(start, stop):
            if not staging.written.contains(part.start, part.stop):
                continue
            if transfer is None:
                transfer = self._transfer = self._new_transfer(self._key_now(), self._base)
            if not transfer.has_begun(part):
                await transfer.begin(part)

    def _parts_to_stream(self, start: int, stop: int) -> Iterator[Part]:
        staging = self._staging
        base_size = staging.unchanged_size
        if base_size <= MIN_PART_BYTES:  # the commit sends all of the file
            return self._grid.between(start, stop)
        if self._base is None or not self._store_copies or not staging.only_grew:
            return iter(())
        return self._grid.appended(base_size, max(start, base_size), stop)

    # --- the commit --------------------------------------------------------------------------

    async def commit(
        self, key: Key, condition: Condition, base: ObjectInfo | None = None
    ) -> ObjectInfo:
        """Make the file the object `key`; return what it became.

        `base`: the version that holes and what is unchanged come from. `mtime_s` is None after a
        single PUT. After an error the store may still have got the bytes if the last request was
        under way: `find_committed` tells.

        Raises:
            ObjectChanged: the condition failed, or another change of the key won.
            StoreUnavailable: nothing moved for the commit timeout.
            NoSuchUpload: the upload vanished again and again.
            FileTooLarge: no object can be that large.
        """
        self._is_paused = False
        try:
            if self._is_single:
                await self.abandon()
                return await self._put(key, condition, base)
            return await self._upload(key, condition, base)
        except BaseException as error:
            if not isinstance(error, MAY_PASS):
                await self.abandon()
            raise

    async def find_committed(self, key: Key) -> ObjectInfo | None:
        """Return what the store has under `key` if it is what the last commit was to make."""
        with Patience(self._means.commit_timeout_s).bound(key):
            try:
                head = await self._means.store.head(key)
            except ObjectMissing:
                return None
            return head.info if await self._is_ours(head) else None

    async def abandon(self) -> None:
        """Give up what was sent; the file itself stays as it is."""
        transfer, self._transfer = self._transfer, None
        if transfer is None:
            return
        await transfer.abort()
        if self._entry is not None and transfer.upload is None:
            self._entry.upload_ended()

    def give_up(self, ended: Callable[[], None]) -> None:
        """Send nothing of this file any more, now or later; `ended` once nothing is left of it."""
        self._is_paused = True
        self.abandon_soon(ended)

    def abandon_soon(self, ended: Callable[[], None]) -> None:
        """Give up what was sent, behind the caller's back; `ended` once nothing is left of it."""
        transfer, self._transfer = self._transfer, None
        if transfer is None:
            ended()
            return

        async def abort() -> None:
            await transfer.abort()
            if transfer.upload is None:
                ended()

        transfer.close()
        Pending(self._means.nursery, abort, until=math.inf)

    @property
    def _is_single(self) -> bool:
        size = self._staging.size
        return size <= SINGLE_PUT_BYTES and self._staging.unchanged_size <= MIN_PART_BYTES

    def _plan(self, base: ObjectInfo | None) -> list[Part]:
        staging = self._staging
        if base is not None and self._store_copies and staging.unchanged_size > MIN_PART_BYTES:
            return self._grid.update_plan(staging.size, staging.changed())
        return self._grid.plan(staging.size)

    async def _put(self, key: Key, condition: Condition, base: ObjectInfo | None) -> ObjectInfo:
        staging, means = self._staging, self._means
        with Patience(means.commit_timeout_s).bound(key):
            reservation = await means.budget.reserve(staging.size)
            try:
                await fetch_missing(means.store, staging, key, base, 0, staging.size)
                body, checksum = await staging.read_body(0, staging.size)
                self._begins(Expected(staging.size, None, checksum), condition)
                etag = await means.store.put(key, body, condition=condition, checksum=checksum)
            finally:
                reservation.release()
        return ObjectInfo(key, staging.size, etag, None)

    async def _upload(self, key: Key, condition: Condition, base: ObjectInfo | None) -> ObjectInfo:
        if self._entry is not None:  # from now on a crash is followed by the same commit
            self._entry.commit_begins(None, base_etag=_etag_of(condition))
        tries_left = UPLOAD_TRIES
        while True:
            plan = self._plan(base)
            try:
                return await self._send(plan, key, condition, base)
            except NoSuchUpload as cause:
                tries_left -= 1
                if not tries_left:
                    raise
                log.info("%s: all parts are sent again, since the upload is gone: %s", key, cause)
            except StoreRefused as cause:
                if not any(part.is_copy for part in plan):
                    raise
                log.warning("%s: sent as a whole: the store refuses to copy parts: %s", key, cause)
                self._store_copies = False
            await self.abandon()

    async def _send(
        self, plan: list[Part], key: Key, condition: Condition, base: ObjectInfo | None
    ) -> ObjectInfo:
        transfer = await self._transfer_to(key, plan, base)
        for part in transfer.lacks(plan):
            if transfer.failure is not None:
                break
            await transfer.begin(part)
        await transfer.settled()
        if transfer.lacks(plan) or transfer.upload is None:
            raise StoreUnavailable(key, "the mount ended before all parts were sent")
        etags, whole = transfer.etags(plan), transfer.whole(plan)
        checksum = whole.checksum if whole is not None else None
        self._begins(Expected(self._staging.size, etag_of_parts(etags), checksum), condition, etags)
        with transfer.patience.bound(key):
            etag = await self._means.store.complete_upload(
                key, transfer.upload, etags, condition=condition, whole=whole
            )
        self._transfer = None
        if self._entry is not None:
            self._entry.upload_ended()
        with transfer.patience.bound(key):
            return await confirmed(self._means.store, key, etag)

    async def _transfer_to(self, key: Key, plan: list[Part], base: ObjectInfo | None) -> Transfer:
        """Return the transfer to go on with: the one under way, unless it is of no use."""
        copies_from = base if any(part.is_copy for part in plan) else None
        transfer = self._transfer
        if transfer is not None and not transfer.serves(key, copies_from):
            await self.abandon()
            transfer = None
        if transfer is None:
            transfer = self._transfer = self._new_transfer(key, base)
        await transfer.quiet()
        return transfer

    def _new_transfer(self, key: Key, base: ObjectInfo | None) -> Transfer:
        return Transfer(self._means, key, self._staging, self._entry, base)

    def _begins(self, expected: Expected, condition: Condition, etags: Sequence[ETag] = ()) -> None:
        """Note what the next request is to make: its answer may be lost."""
        self._last = expected
        if self._entry is not None:
            self._entry.commit_begins(
                expected.etag,
                base_etag=_etag_of(condition),
                parts=etags,
                expected_checksum=expected.checksum,
            )

    async def _is_ours(self, head: ObjectHead) -> bool:
        last, staging = self._last, self._staging

        async def read_body() -> Buffer:
            return (await staging.read_body(0, staging.size))[0]

        return last is not None and await last.is_made(head, read_body)


def _etag_of(condition: Condition) -> ETag | None:
    return condition if isinstance(condition, str) else None
