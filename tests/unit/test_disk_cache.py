"""The disk cache as reads use it: what is here is not asked for, and no failure of it is theirs."""

import random
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event

import pytest
import trio

from ucfuse.budget import MemoryBudget
from ucfuse.metrics import Metrics
from ucfuse.reading.cache_directory import FOLDER, CacheFiles
from ucfuse.reading.diskcache import DiskCache
from ucfuse.reading.pieces import Piece
from ucfuse.store.api import Buffer
from ucfuse.volume import ETag, Key, KiB, MiB, ObjectInfo

CONTENT = random.Random(7).randbytes(5 * MiB + 12345)
BUCKET = ("https://store", "bucket")
VERSION = ObjectInfo(Key("a.bin"), len(CONTENT), ETag('"1"'), 0)


@dataclass
class Store:
    """Answers ranges of `CONTENT` and notes what it was asked for."""

    asked: list[tuple[int, int]] = field(default_factory=list)

    async def ask(self, start: int, stop: int) -> bytes:
        await trio.lowlevel.checkpoint()
        self.asked.append((start, stop))
        return CONTENT[start:stop]


@dataclass
class World:
    """A cache and what is around it."""

    cache: DiskCache
    metrics: Metrics
    budget: MemoryBudget
    store: Store = field(default_factory=Store)

    async def read(self, start: int, stop: int, version: ObjectInfo = VERSION) -> None:
        """Read a range, which must be right, and wait until what can be kept is kept."""
        got = await self.cache.read_through(version, start, stop, self.store.ask)
        assert got == CONTENT[start:stop]
        await self.settle()

    async def settle(self) -> None:
        with trio.fail_after(30):
            while self.budget.reserved_bytes:
                await trio.to_thread.run_sync(lambda: None)

    def take_asked(self) -> list[tuple[int, int]]:
        asked, self.store.asked = self.store.asked, []
        return asked


NewCache = Callable[..., AbstractAsyncContextManager[World]]


@pytest.fixture
def new_cache(tmp_path: Path) -> NewCache:
    @asynccontextmanager
    async def new(
        memory: int = 64 * MiB, files: CacheFiles | None = None, search_patience_s: float = 30.0
    ) -> AsyncIterator[World]:
        files = files or CacheFiles(tmp_path / "cache", 64 * MiB)
        budget, metrics = MemoryBudget(memory), Metrics()
        async with trio.open_nursery() as nursery:
            cache = DiskCache(files, BUCKET, budget, nursery, metrics, search_patience_s)
            yield World(cache, metrics, budget)
            nursery.cancel_scope.cancel()
        assert budget.reserved_bytes == 0

    return new


async def test_what_was_read_is_not_asked_for_again(new_cache: NewCache) -> None:
    """Also by another mount, later."""
    async with new_cache() as world:
        await world.read(0, len(CONTENT))
        assert world.take_asked() == [(0, len(CONTENT))]

        await world.read(0, len(CONTENT))
        assert world.take_asked() == []
        assert (world.metrics.cache_hits, world.metrics.cache_misses) == (1, 1)
        assert world.metrics.cache_bytes_written == len(CONTENT)
        assert world.metrics.cache_bytes_read == len(CONTENT)
    async with new_cache() as world:
        await world.read(0, len(CONTENT))
        assert world.take_asked() == []


async def test_all_that_is_kept_at_the_same_time_is_counted(new_cache: NewCache) -> None:
    """Readers side by side each add to the counters."""
    async with new_cache() as world:
        async with trio.open_nursery() as readers:
            for n in range(4):
                readers.start_soon(world.read, n * MiB, (n + 1) * MiB)

        assert world.metrics.cache_bytes_written == 4 * MiB


async def test_any_range_is_found_in_what_was_read(new_cache: NewCache) -> None:
    """Later reads need not have the bounds of the first."""
    async with new_cache() as world:
        await world.read(0, len(CONTENT))
        world.take_asked()

        for start, stop in ((1, 2), (MiB - 1, MiB + 1), (4 * KiB, 3 * MiB), (5 * MiB, 5 * MiB + 5)):
            await world.read(start, stop)

        await world.read(len(CONTENT) - 1, len(CONTENT))
        assert world.take_asked() == []


async def test_only_what_is_missing_is_asked_for(new_cache: NewCache) -> None:
    """In one request, from the first to the last byte that is not here."""
    async with new_cache() as world:
        await world.read(0, MiB)
        await world.read(4 * MiB, len(CONTENT))
        world.take_asked()

        await world.read(0, len(CONTENT))

        assert world.take_asked() == [(MiB, 4 * MiB)]
        assert world.metrics.cache_bytes_read == len(CONTENT) - 3 * MiB


async def test_random_reads_are_kept_as_they_were(new_cache: NewCache) -> None:
    """A reader that jumps about gets its ranges again without the store."""
    rng = random.Random(3)
    ranges = [(at, at + rng.randrange(1, 300 * KiB)) for at in rng.sample(range(4 * MiB), 20)]
    async with new_cache() as world:
        for start, stop in ranges:
            await world.read(start, stop)
        world.take_asked()

        for start, stop in ranges:
            await world.read(start, stop)

        assert world.take_asked() == []


async def test_another_version_is_asked_for(new_cache: NewCache) -> None:
    """The cache never gives bytes of an older version."""
    async with new_cache() as world:
        await world.read(0, MiB)
        world.take_asked()

        await world.read(0, MiB, replace(VERSION, etag=ETag('"2"')))

        assert world.take_asked() == [(0, MiB)]


async def test_a_failed_request_is_raised_and_nothing_is_kept(new_cache: NewCache) -> None:
    """An error of the store is the reader's, as without a cache."""

    async def fail(start: int, stop: int) -> bytes:
        raise ConnectionError

    async with new_cache() as world:
        with pytest.raises(ConnectionError):
            await world.cache.read_through(VERSION, 0, MiB, fail)

        assert await world.cache.find(VERSION, 0, MiB) is None


async def test_a_short_answer_is_passed_on_and_not_kept(new_cache: NewCache) -> None:
    """Who asked sees that bytes are missing, now and the next time."""

    async def cut(start: int, stop: int) -> bytes:
        return CONTENT[start : stop - 1]

    async with new_cache() as world:
        for _ in range(2):
            assert len(await world.cache.read_through(VERSION, 0, MiB, cut)) == MiB - 1
            await world.settle()


async def test_reads_go_on_without_the_directory(new_cache: NewCache, tmp_path: Path) -> None:
    """A cache that vanished is no error of a read."""
    async with new_cache() as world:
        await world.read(0, MiB)
        world.take_asked()
        shutil.rmtree(tmp_path / "cache")

        for _ in range(2):
            await world.read(0, 3 * MiB)
        assert world.take_asked() == [(0, 3 * MiB)] * 2


async def test_reads_go_on_when_the_disk_is_full(
    new_cache: NewCache, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is kept then, and the log says so once."""

    def pwrite(fd: int, data: Buffer, offset: int) -> int:
        raise OSError(28, "No space left on device")

    files = CacheFiles(tmp_path / "cache", 64 * MiB, pwrite=pwrite)
    async with new_cache(files=files) as world:
        for _ in range(3):
            await world.read(0, 2 * MiB)

        assert len(world.take_asked()) == 3
    told = [record for record in caplog.records if record.levelname == "WARNING"]
    assert len(told) == 1
    assert "No space left" in told[0].getMessage()


async def test_reads_go_on_when_a_file_cannot_be_read(new_cache: NewCache, tmp_path: Path) -> None:
    """A directory where a file should be stands for a disk that fails."""
    wanted = Piece((*BUCKET, "a.bin", '"1"', str(len(CONTENT))), 0, MiB)
    async with new_cache() as world:
        (tmp_path / "cache" / FOLDER / wanted.name).mkdir()

        await world.read(0, MiB)
        assert world.take_asked() == [(0, MiB)]


class HungFiles(CacheFiles):
    """A disk that does not answer until `answers` is set."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, 64 * MiB)
        self.answers = Event()
        self.read_count = 0

    def read(self, piece: Piece) -> memoryview | None:
        self.read_count += 1
        self.answers.wait(60)
        return super().read(piece)


async def test_a_disk_that_hangs_is_not_waited_for(new_cache: NewCache, tmp_path: Path) -> None:
    """Reads ask the store after a moment, and without one until the disk has answered."""
    files = HungFiles(tmp_path / "hung")
    async with new_cache(files=files, search_patience_s=0.05) as world:
        for _ in range(3):
            await world.read(0, MiB)
        assert (files.read_count, len(world.take_asked())) == (1, 3)

        files.answers.set()
        with trio.fail_after(30):
            while await world.cache.find(VERSION, 0, MiB) is None:
                await trio.lowlevel.checkpoint()


async def test_where_memory_is_short_nothing_is_kept(new_cache: NewCache) -> None:
    """What waits for the disk counts in the budget and gives way to what programs wait for."""
    async with new_cache(memory=8 * MiB) as world:
        taken = await world.budget.reserve(7 * MiB + 1)
        got = await world.cache.read_through(VERSION, 0, MiB, world.store.ask)
        taken.release()
        await world.settle()

        assert got == CONTENT[:MiB]
        assert await world.cache.find(VERSION, 0, MiB) is None
