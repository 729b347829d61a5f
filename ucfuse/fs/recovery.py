"""Finishing what ended sessions left behind, as far as that can be done without asking anybody.

At a mount, `replay` takes the sessions that ran on this machine and have ended. A file whose
commit had begun is committed if the store still has the version it grew from; one that the store
has already is forgotten; empty placeholders and multipart uploads are taken back, by the ids in
the journal alone. Everything else is kept for `ucfuse recover`, which does single steps of the
same on the user's word (`commit`, `merge_base`, `discard`).

Nothing that is replayed was ever reported as done, so another version in the store always wins.
A file whose fsync or last close was not reached is never committed here.

Concurrency: the caller's task, and tasks of the nursery given. A leftover is held while it is
acted on. Cancelled at any time, it leaves what it has not finished for the next mount.
"""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO

import trio

from ucfuse.config import MountConfig
from ucfuse.errors import ConfigError, ObjectChanged, ObjectMissing, VolumeError
from ucfuse.fs.creations import CREATE_METADATA
from ucfuse.store.api import ABSENT, Buffer, Condition, Fetched, ObjectHead, ObjectStore, UploadId
from ucfuse.tasks import deadline, in_parallel
from ucfuse.volume import ETag, MiB, ObjectInfo
from ucfuse.writing.area import StagingArea
from ucfuse.writing.confirmation import Expected
from ucfuse.writing.leftovers import (
    Leftover,
    Progress,
    Standing,
    files_without_use,
    leftovers_of,
    note,
    settle,
)
from ucfuse.writing.records import Origin, Record, Stage
from ucfuse.writing.session_directory import (
    hold_if_dead,
    session_directories,
    staging_directory,
    tidy,
)
from ucfuse.writing.staging import Staging
from ucfuse.writing.upload import Uploader

__all__ = ["Recovery", "open_area"]

log = logging.getLogger(__name__)

# Small requests mostly, after a crash under many small files.
REPLAY_WIDTH = 16
FILL_BYTES = 8 * MiB
REQUEST_TIMEOUT_S = 30.0

LOST = "its commit was cut off, and another version is in the store since"


def open_area(config: MountConfig) -> StagingArea:
    """Begin the session of a mount. Raises `ConfigError`: its disk cannot be written to."""
    store = config.store
    origin = Origin(
        endpoint=store.address,
        bucket=config.source.bucket or "",
        mountpoint=str(config.mountpoint),
        endpoint_url=store.endpoint_url,
        region=store.region,
        profile=store.profile,
        sign_requests=store.sign_requests,
        catalog_url=store.catalog_url,
        volume=store.volume,
    )
    directory = staging_directory(config.state_dir)
    try:
        return StagingArea(directory, origin=origin, limit_bytes=config.staging_limit_bytes)
    except OSError as error:
        raise ConfigError(
            f"{directory}: cannot keep what programs write: {error.strerror};"
            " choose another with --state-dir"
        ) from error


class Recovery:
    """Acts on leftovers through one store. Borrows everything that it is given."""

    def __init__(
        self,
        store: ObjectStore,
        uploader: Uploader,
        area: StagingArea,
        nursery: trio.Nursery,
    ) -> None:
        self._store = store
        self._uploader = uploader
        self._area = area
        self._nursery = nursery

    # --- by itself ---------------------------------------------------------------------------

    async def replay(self, prefix: str) -> None:
        """Finish what can be finished of the keys below `prefix` in the store of this mount."""
        for directory in session_directories(self._area.path.parent):
            with hold_if_dead(directory) as is_dead:
                if is_dead:
                    await self._replay_session(directory, prefix)

    async def _replay_session(self, directory: Path, prefix: str) -> None:
        for path in files_without_use(directory):
            path.unlink()
        ours = [
            leftover
            for leftover in leftovers_of(directory, is_dead=True)
            if leftover.standing in (Standing.OURS, Standing.RESTARTED)
            and self._is_of_this_mount(leftover, prefix)
        ]
        await in_parallel(self._nursery, self._replay_file, ours, REPLAY_WIDTH)
        left = leftovers_of(directory, is_dead=True)
        if left:
            log.warning(
                "%d files of an ended mount are kept in %s: see `ucfuse recover list`",
                *(len(left), directory),
            )
        tidy(directory)

    def _is_of_this_mount(self, leftover: Leftover, prefix: str) -> bool:
        here, head, record = self._area.journal.origin, leftover.head, leftover.record
        assert head is not None
        assert record is not None
        there = head.origin
        return (there.endpoint, there.bucket) == (
            here.endpoint,
            here.bucket,
        ) and record.key.startswith(prefix)

    async def _replay_file(self, leftover: Leftover) -> None:
        record = leftover.record
        assert record is not None
        try:
            may_finish = leftover.standing is Standing.OURS and record.stage is Stage.COMMITTING
            if may_finish and await self._finish(leftover, record):
                return
            leftover = await self.withdraw(leftover)
            if record.stage is Stage.WRITING and leftover.path.stat().st_size == 0:
                settle(leftover)  # nothing was written
        except (VolumeError, OSError) as cause:
            log.warning("%s: not recovered; the next mount tries again: %s", record.key, cause)

    async def _finish(self, leftover: Leftover, record: Record) -> bool:
        """Commit the file, or see that it was; False: another version won, it is kept now."""
        present = await self._present(record)
        leftover = await self._abort_upload(leftover)
        if await self._is_expected(present, leftover, record):
            log.info("%s: its commit had been carried out before the mount ended", record.key)
        else:
            try:
                if _etag_of(present) != record.base_etag:
                    raise ObjectChanged(record.key, "the version it grew from is gone")
                await self._commit_bytes(leftover, _condition(record.base_etag))
            except ObjectChanged:
                # A request of the ended session may have been carried out only now.
                present = await self._present(record)
                if not await self._is_expected(present, leftover, record):
                    lost = replace(record, upload=None, stage=Stage.KEPT, reason=LOST)
                    note(leftover, lost)
                    return False
            log.info("%s: committed, which the end of a mount had cut off", record.key)
        settle(leftover)
        return True

    # --- on the user's word ------------------------------------------------------------------

    async def commit(self, leftover: Leftover, *, force: bool) -> ObjectInfo:
        """Make a leftover that we hold the object of its key, and settle it.

        It replaces the version that it grew from; with `force` any other one too. Raises
        `ObjectChanged`: another version is there, or bytes of the base are needed and gone.
        """
        leftover = await self.withdraw(leftover)
        record = leftover.record
        assert record is not None
        present = await self._present(record)
        if present is not None and await self._is_expected(present, leftover, record):
            settle(leftover)  # a request that seemed lost had been carried out
            return present.info
        condition = _condition(record.base_etag)
        if force:
            condition = _condition(_etag_of(present))
        committed = await self._commit_bytes(leftover, condition)
        settle(leftover)
        return committed

    async def discard(self, leftover: Leftover) -> None:
        """Remove a leftover that we hold, and what it has in the bucket beside objects."""
        if leftover.record is not None:
            leftover = await self.withdraw(leftover)
        settle(leftover)

    async def withdraw(self, leftover: Leftover) -> Leftover:
        """Take back the upload and the placeholder; return the leftover without them."""
        record = leftover.record
        assert record is not None
        leftover = await self._abort_upload(leftover)
        if record.nonce is None:
            return leftover
        base_etag = await self._remove_placeholder(record, record.nonce)
        return note(leftover, replace(record, upload=None, nonce=None, base_etag=base_etag))

    async def _abort_upload(self, leftover: Leftover) -> Leftover:
        record = leftover.record
        if record is None or record.upload is None:
            return leftover
        with deadline(REQUEST_TIMEOUT_S, record.key):
            await self._store.abort_upload(record.key, UploadId(record.upload))
        return note(leftover, replace(record, upload=None))

    async def _remove_placeholder(self, record: Record, nonce: str) -> ETag | None:
        """Remove the empty object by which O_EXCL took the name; return what is its base then."""
        present = await self._present(record)
        if present is None or present.metadata.get(CREATE_METADATA) != nonce:
            return None if record.stage is Stage.WRITING else record.base_etag
        try:
            with deadline(REQUEST_TIMEOUT_S, record.key):
                await self._store.delete(record.key, if_match=present.info.etag)
        except ObjectChanged as cause:
            log.info("%s: the name is another client's by now: %s", record.key, cause)
        return None

    async def merge_base(self, leftover: Leftover, file: IO[bytes]) -> None:
        """Write to `file` what a leftover needs of its base, each byte in its place.

        Raises `ObjectChanged`: the base is gone.
        """
        record, extent = leftover.record, leftover.extent()
        assert record is not None
        for start, stop in extent.from_base:
            for piece in range(start, stop, FILL_BYTES):
                file.seek(piece)
                file.write(await self._fetch(record, piece, min(piece + FILL_BYTES, stop)))

    # --- inner workings ----------------------------------------------------------------------

    async def _commit_bytes(self, leftover: Leftover, condition: Condition) -> ObjectInfo:
        """Send the file; if that fails, its record says so much of it as the bucket has."""
        record = leftover.record
        assert record is not None
        base = None
        if record.base_etag is not None:
            base = ObjectInfo(record.key, record.base_size, record.base_etag, None)
        progress = Progress(leftover)
        async with self._adopted(leftover) as staging:
            upload = self._uploader.begin(staging, lambda: record.key, progress)
            try:
                return await upload.commit(record.key, condition, base)
            except BaseException:
                progress.back_to(record)
                raise

    @asynccontextmanager
    async def _adopted(self, leftover: Leftover) -> AsyncIterator[Staging]:
        extent = leftover.extent()
        staging = self._area.adopt(leftover.path, extent.size, extent.base_size, extent.ranges)
        try:
            yield staging
        finally:
            staging.close()

    async def _fetch(self, record: Record, start: int, stop: int) -> Buffer:
        try:
            with deadline(REQUEST_TIMEOUT_S, record.key):
                answer = await self._store.get(record.key, start, stop, if_match=record.base_etag)
        except ObjectMissing as cause:
            raise ObjectChanged(record.key, "the version it grew from is gone") from cause
        assert isinstance(answer, Fetched)
        return answer.data

    async def _is_expected(
        self, present: ObjectHead | None, leftover: Leftover, record: Record
    ) -> bool:
        """Say whether the store has what the last commit of the file was to make."""

        async def read_body() -> Buffer:
            async with self._adopted(leftover) as staging:
                return (await staging.read_body(0, staging.size))[0]

        expected = Expected(record.size, record.expected_etag, record.expected_checksum)
        return present is not None and await expected.is_made(present, read_body)

    async def _present(self, record: Record) -> ObjectHead | None:
        try:
            with deadline(REQUEST_TIMEOUT_S, record.key):
                return await self._store.head(record.key)
        except ObjectMissing:
            return None


def _condition(etag: ETag | None) -> Condition:
    return ABSENT if etag is None else etag


def _etag_of(present: ObjectHead | None) -> ETag | None:
    return None if present is None else present.info.etag
