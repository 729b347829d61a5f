"""One copy from beginning to end: goes through both trees, and has every file moved.

Directories are compared one by one, several at a time; of a tree that is not there yet, nothing is
asked. What fails is noted, and the rest goes on. What the source lacks is removed at the end, if
that is wanted and nothing has failed: a source that was seen in part only lacks nothing for sure.

Concurrency: one task per directory, `LISTINGS` of which list at a time, and `most_requests` that
move files. They end with `run`.
"""

import errno
import logging
from dataclasses import dataclass, field

import trio

from ucfuse.budget import MemoryBudget
from ucfuse.copying.files import LocalTree
from ucfuse.copying.moving import Mover, Pair
from ucfuse.copying.tally import Tally
from ucfuse.copying.trees import File, Page, Tree, Trouble
from ucfuse.errors import AccessDenied, ObjectChanged, VolumeError

__all__ = ["CopyJob"]

log = logging.getLogger(__name__)

LISTINGS = 16
# Found well before they are moved, so that it can be told how long all of it takes. Some 30 MB.
QUEUE_LENGTH = 100_000

# What no other file would fare better with.
HOPELESS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


@dataclass(slots=True)
class _There:
    """What a directory of the target has."""

    files: dict[str, File] = field(default_factory=dict)
    directories: set[str] = field(default_factory=set)
    others: dict[str, Trouble] = field(default_factory=dict)


class CopyJob:
    """Copies one tree into another. Borrows both, and the budget."""

    def __init__(
        self,
        source: Tree,
        target: Tree,
        budget: MemoryBudget,
        *,
        most_requests: int,
        deletes: bool = False,
        has_paths: bool = True,
    ) -> None:
        self.tally = Tally()
        self._source = source
        self._target = target
        self._deletes = deletes
        self._has_paths = has_paths
        self._width = most_requests
        self._mover = Mover(source, target, budget, self.tally, most_requests)
        self._listings = trio.Semaphore(LISTINGS)
        self._surplus: list[File | str] = []
        self._stop = trio.CancelScope()

    async def run(self) -> None:
        """Copy everything; what failed is in the tally."""
        send, receive = trio.open_memory_channel[Pair](QUEUE_LENGTH)
        with self._stop:
            async with trio.open_nursery() as nursery:
                for _ in range(self._width):
                    nursery.start_soon(self._move_all, receive.clone())
                receive.close()
                async with send, trio.open_nursery() as walkers:
                    walkers.start_soon(self._walk, "", True, send, walkers)
                self.tally.is_listed = True
            if self._deletes:
                await self._remove_surplus()

    async def run_one(self, pair: Pair) -> None:
        """Copy a single file."""
        self.tally.found_files, self.tally.found_bytes = 1, pair.file.size
        self.tally.is_listed = True
        with self._stop:
            await self._move(pair)

    # --- both trees ----------------------------------------------------------------------------

    async def _walk(
        self,
        directory: str,
        is_there: bool,
        send: trio.MemorySendChannel[Pair],
        walkers: trio.Nursery,
    ) -> None:
        """Send every file of the directory on its way, and go on below. `is_there`: the target
        may have it already."""
        async with self._listings:
            try:
                there = await self._there(directory) if is_there else _There()
                await self._target.make_directory(directory, is_empty=False)
                below = await self._compare(directory, there, send)
            except (VolumeError, OSError) as error:
                self._fail(directory, error)
                return
        for name in below:
            walkers.start_soon(self._walk, name, name in there.directories, send, walkers)

    async def _there(self, directory: str) -> _There:
        there = _There()
        async for page in self._target.pages(directory):
            there.files |= {file.name: file for file in page.files}
            there.directories |= set(page.directories)
            there.others |= {trouble.name: trouble for trouble in page.others}
        return there

    async def _compare(
        self, directory: str, there: _There, send: trio.MemorySendChannel[Pair]
    ) -> list[str]:
        """Send files, and return directories to go on with."""
        below: list[str] = []
        seen: set[str] = set()
        is_empty = True
        async for page in self._source.pages(directory):
            is_empty = is_empty and not (page.files or page.directories)
            for trouble in page.others:
                self.tally.failed(Trouble(self._source.describe(trouble.name), trouble.reason))
            seen |= {trouble.name for trouble in page.others}
            await self._send_files(page, there, send)
            below += [name for name in page.directories if self._may_enter(name, there)]
            if self._deletes:
                seen |= {file.name for file in page.files} | set(page.directories)
        if is_empty and directory not in there.directories:
            await self._target.make_directory(directory, is_empty=True)
        if self._deletes:
            self._note_surplus(there, seen)
        return below

    async def _send_files(
        self, page: Page, there: _There, send: trio.MemorySendChannel[Pair]
    ) -> None:
        for file in page.files:
            self.tally.found_files += 1
            self.tally.found_bytes += file.size
            if reason := self._obstacle(file.name, there):
                self.tally.failed(Trouble(self._target.describe(file.name), reason))
            else:
                await send.send(Pair(file, file.name, there.files.get(file.name)))

    def _obstacle(self, name: str, there: _There) -> str | None:
        if self._has_paths and name + "/" in there.directories:
            return "a directory is in its way"
        if name in there.others:
            return f"in its way: {there.others[name].reason}"
        return self._target.refusal(name)

    def _may_enter(self, directory: str, there: _There) -> bool:
        """Whether the target can have this directory; notes why not."""
        name = directory.removesuffix("/")
        reason = None
        if self._has_paths and name in there.files:
            reason = "a file is in the way of a directory"
        elif name in there.others:
            reason = f"in the way of a directory: {there.others[name].reason}"
        if reason:
            self.tally.failed(Trouble(self._target.describe(name), reason))
        return reason is None

    # --- files ---------------------------------------------------------------------------------

    async def _move_all(self, receive: trio.MemoryReceiveChannel[Pair]) -> None:
        async with receive:
            async for pair in receive:
                await self._move(pair)

    async def _move(self, pair: Pair) -> None:
        try:
            await self._mover.move(pair)
        except (VolumeError, OSError) as error:
            self._fail(pair.file.name, error, pair.target)

    def _fail(
        self, name: str, error: VolumeError | OSError, target_name: str | None = None
    ) -> None:
        """Note it by the name of the source, or of the target where its disk says no."""
        log.debug("%s: %s", name, error)
        if isinstance(error, OSError) and error.errno in HOPELESS:
            self._stop.cancel()
        if isinstance(error, OSError) and isinstance(self._target, LocalTree):
            described = self._target.describe(name if target_name is None else target_name)
        else:
            described = self._source.describe(name)
        self.tally.failed(Trouble(described, _reason_of(error)))

    # --- what the source lacks -----------------------------------------------------------------

    def _note_surplus(self, there: _There, seen: set[str]) -> None:
        self._surplus += [file for name, file in there.files.items() if name not in seen]
        self._surplus += [name for name in there.others if name not in seen]
        self._surplus += [name for name in there.directories if name not in seen]

    async def _remove_surplus(self) -> None:
        if self.tally.failed_count:
            return
        for entry in self._surplus:
            name = entry.name if isinstance(entry, File) else entry
            try:
                await self._target.remove(entry)
                self.tally.removed += 1
            except (VolumeError, OSError) as error:
                reason = f"not removed: {_reason_of(error)}"
                self.tally.failed(Trouble(self._target.describe(name), reason))


def _reason_of(error: VolumeError | OSError) -> str:
    if isinstance(error, OSError):
        return (error.strerror or str(error)).lower()
    if isinstance(error, ObjectChanged):
        return f"changed meanwhile ({error.detail}); it was left as it is"
    if isinstance(error, AccessDenied):
        return f"{error.detail.rstrip('.')}; see the credentials in use and what they allow"
    return error.detail or type(error).__name__
