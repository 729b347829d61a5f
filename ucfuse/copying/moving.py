"""Moving one file from one tree to the other: is it there already, then in one piece or in parts.

`copy_job` gives each `Mover.move` a task of its own. All of them share one memory budget and one
number of requests in flight.
"""

import hashlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import trio

from ucfuse.budget import MemoryBudget
from ucfuse.copying.files import LocalTree, recorded_etag
from ucfuse.copying.objects import ObjectTree
from ucfuse.copying.tally import Tally
from ucfuse.copying.trees import Draft, File, Tree
from ucfuse.errors import CorruptData
from ucfuse.store.api import IN_FLIGHT_COPIES, Checksum
from ucfuse.store.checksums import NOTHING, checksum_of, combined
from ucfuse.volume import GiB, MiB
from ucfuse.writing.confirmation import SINGLE_PUT_BYTES
from ucfuse.writing.parts import Part

__all__ = ["Mover", "Pair"]

# What a store copies by itself in one request.
MOST_COPIED_BYTES = 5 * GiB
HASHED_BYTES = 1 * MiB
# As many as the cores that digests may take; the disk is asked for no more at once.
MOST_HASHED = 4


@dataclass(frozen=True, slots=True)
class Pair:
    """One file, the name that it is to have, and what has that name now."""

    file: File
    target: str
    present: File | None


class Mover:
    """Moves files between two trees. Borrows everything."""

    def __init__(
        self,
        source: Tree,
        target: Tree,
        budget: MemoryBudget,
        tally: Tally,
        most_requests: int,
    ) -> None:
        self._source = source
        self._target = target
        self._budget = budget
        self._tally = tally
        self._room = trio.Semaphore(most_requests)
        self._hashing = trio.CapacityLimiter(MOST_HASHED)
        self._copies = IN_FLIGHT_COPIES if isinstance(source, ObjectTree) else 1

    async def move(self, pair: Pair) -> None:
        """Bring the file to its name, unless it is there. Raises `VolumeError`, `OSError`."""
        file = pair.file
        if pair.present is not None and await self._is_there(pair):
            self._tally.same_files += 1
            self._tally.same_bytes += file.size
            return
        if self._is_one_store() and file.size <= MOST_COPIED_BYTES:
            await self._copy(pair)
        elif file.size <= SINGLE_PUT_BYTES:
            await self._move_whole(pair)
        else:
            await self._move_parts(pair)
        self._tally.copied_files += 1

    # --- is it there ---------------------------------------------------------------------------

    async def _is_there(self, pair: Pair) -> bool:
        """Whether the target has these bytes already."""
        file, present = pair.file, pair.present
        assert present is not None
        if file.size != present.size:
            return False
        source, target = self._source, self._target
        if isinstance(target, LocalTree):
            noted = recorded_etag(target.path(pair.target))
            return present.mtime_ns == file.mtime_ns and noted in (None, file.etag)
        assert isinstance(target, ObjectTree)
        if isinstance(source, ObjectTree):
            if file.etag == present.etag:
                return True
            told = await source.checksum(file)
            return told is not None and told == await target.checksum(present)
        assert isinstance(source, LocalTree)
        return await self._has_bytes_of(source.path(file.name), target, present)

    async def _has_bytes_of(self, path: Path, target: ObjectTree, present: File) -> bool:
        """Compare a local file with an object by digests, which both must be read for once."""
        work = partial(_digests, path)
        md5, checksum = await trio.to_thread.run_sync(work, limiter=self._hashing)
        if present.etag == f'"{md5}"':
            return True
        return await target.checksum(present) == checksum

    # --- moving --------------------------------------------------------------------------------

    def _is_one_store(self) -> bool:
        source, target = self._source, self._target
        return (
            isinstance(source, ObjectTree)
            and isinstance(target, ObjectTree)
            and source.store is target.store
        )

    async def _copy(self, pair: Pair) -> None:
        source, target = self._source, self._target
        assert isinstance(source, ObjectTree)
        assert isinstance(target, ObjectTree)
        async with self._room:
            await target.copy(pair.target, pair.file, source.key(pair.file.name), pair.present)
        self._tally.moved_bytes += pair.file.size

    async def _move_whole(self, pair: Pair) -> None:
        file = pair.file
        async with self._room:
            reservation = await self._budget.reserve(file.size * self._copies)
            try:
                body = await self._source.read(file, 0, file.size)
                await self._target.put(pair.target, file, body, pair.present)
            finally:
                reservation.release()
        self._tally.moved_bytes += file.size

    async def _move_parts(self, pair: Pair) -> None:
        file = pair.file
        plan = self._target.parts(file.size)
        draft = self._target.draft(pair.target, file, pair.present)
        checksums: dict[int, Checksum] = {}
        try:
            try:
                async with trio.open_nursery() as nursery:
                    for part in plan:
                        await self._room.acquire()
                        work = partial(self._move_part, file, draft, part, checksums)
                        nursery.start_soon(work)
            except ExceptionGroup as group:  # the first says why; the others were cut off by it
                raise _first_of(group) from group
            await self._verify(file, plan[-1].stop, checksums)
            await draft.finish()
        finally:
            await draft.abort()

    async def _move_part(
        self, file: File, draft: Draft, part: Part, checksums: dict[int, Checksum]
    ) -> None:
        try:
            reservation = await self._budget.reserve(part.size * self._copies)
            try:
                body = await self._source.read(file, part.start, part.stop)
                checksums[part.number] = combined(NOTHING, checksum_of(body), len(body))
                await draft.write(part, body)
            finally:
                reservation.release()
        finally:
            self._room.release()
        self._tally.moved_bytes += part.size

    async def _verify(self, file: File, size: int, checksums: dict[int, Checksum]) -> None:
        """Compare what came with what the store tells of the whole. Raises `CorruptData`."""
        if not isinstance(self._source, ObjectTree):
            return
        told = await self._source.checksum(file)
        if told is None:
            return
        whole, left = NOTHING, size
        for part in self._target.parts(file.size):
            whole = combined(whole, checksums[part.number], part.size)
            left -= part.size
        if left or whole != told:
            raise CorruptData(self._source.describe(file.name), "its checksum is another")


def _first_of(group: ExceptionGroup[Exception]) -> Exception:
    first: Exception | ExceptionGroup[Exception] = group
    while isinstance(first, ExceptionGroup):
        first = first.exceptions[0]
    return first


def _digests(path: Path) -> tuple[str, Checksum]:
    """Return MD5, in hexadecimal, and checksum of a file."""
    md5, checksum = hashlib.md5(usedforsecurity=False), NOTHING
    with path.open("rb", buffering=0) as file:
        while piece := file.read(HASHED_BYTES):
            md5.update(piece)
            checksum = combined(checksum, checksum_of(piece), len(piece))
    return md5.hexdigest(), checksum
