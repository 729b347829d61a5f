"""Reading a file version in parallel parts: right bytes, few bytes, and all memory returned."""

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from ucfuse.budget import MemoryBudget
from ucfuse.errors import CorruptData, ObjectChanged, StoreUnavailable, VolumeError
from ucfuse.reading.pool import PartPool
from ucfuse.reading.prefetch import PrefetchReader
from ucfuse.store.api import IN_FLIGHT_COPIES
from ucfuse.volume import KiB, MiB

# Content without a period that any part or page size divides, so that no wrong offset looks right.
_PERIOD = 1_000_003
_PATTERN = random.Random(1).randbytes(_PERIOD) * 20


def content(start: int, stop: int) -> bytes:
    """Bytes `[start, stop)` of a file of any size (up to 18 MiB at once)."""
    first = start % _PERIOD
    return _PATTERN[first : first + stop - start]


class FakeSource:
    """A file in memory whose answers take as long as `delay_s` says, and may fail."""

    def __init__(self, size: int, delay_s: Callable[[], float] = lambda: 0.0) -> None:
        self.size = size
        self.delay_s = delay_s
        self.fetched: list[tuple[int, int]] = []
        self.failure: Exception | None = None
        self.gate: trio.Event | None = None
        self.cancelled_count = 0

    @property
    def fetched_bytes(self) -> int:
        return sum(stop - start for start, stop in self.fetched)

    async def fetch(self, start: int, stop: int) -> bytes:
        assert 0 <= start < stop <= self.size
        self.fetched.append((start, stop))
        failure = self.failure
        try:
            if self.gate is not None:
                await self.gate.wait()
            await trio.sleep(self.delay_s())
        except trio.Cancelled:
            self.cancelled_count += 1
            raise
        if failure is not None:
            raise failure
        return content(start, stop)


@asynccontextmanager
async def new_pool(limit_bytes: int = 512 * MiB) -> AsyncIterator[tuple[PartPool, MemoryBudget]]:
    """A pool that must have returned all memory, and all fetches ended, once readers are closed."""
    budget = MemoryBudget(limit_bytes)
    async with trio.open_nursery() as nursery:
        yield PartPool(budget, nursery), budget
    assert budget.reserved_bytes == 0
    assert not budget.is_contended


@asynccontextmanager
async def new_reader(
    source: FakeSource, limit_bytes: int = 512 * MiB
) -> AsyncIterator[tuple[PrefetchReader, MemoryBudget]]:
    async with new_pool(limit_bytes) as (pool, budget):
        reader = PrefetchReader(source, source.size, pool)
        try:
            yield reader, budget
        finally:
            reader.close()


async def check_read(reader: PrefetchReader, start: int, stop: int, cursor: int = 1) -> None:
    data = await reader.read(start, stop - start, cursor)
    assert bytes(data) == content(start, stop)  # memoryviews compare byte by byte, slowly


async def read_through(
    reader: PrefetchReader, start: int, stop: int, *, size: int = MiB, cursor: int = 1
) -> None:
    for at in range(start, stop, size):
        await check_read(reader, at, min(at + size, stop), cursor)


async def seed(reader: PrefetchReader, budget: MemoryBudget, start: int, stop: int) -> None:
    reader.seed(start, content(start, stop), await budget.reserve(stop - start))


async def test_a_sequential_pass_fetches_every_byte_once(autojump_clock: MockClock) -> None:
    source = FakeSource(100 * MiB + 12345, lambda: 0.02)
    async with new_reader(source) as (reader, _):
        await read_through(reader, 0, source.size)
    assert source.fetched_bytes == source.size


async def test_a_sequential_pass_is_many_requests_at_once(autojump_clock: MockClock) -> None:
    """256 MiB in parts that take 100 ms each: one after the other they would take over 3 s."""
    source = FakeSource(256 * MiB, lambda: 0.1)
    async with new_reader(source) as (reader, _):
        began_at = trio.current_time()
        await read_through(reader, 0, source.size)
        assert trio.current_time() - began_at < 1.0
    assert max(stop - start for start, stop in source.fetched) == 8 * MiB


async def test_a_pass_goes_on_behind_its_seed(autojump_clock: MockClock) -> None:
    source = FakeSource(40 * MiB, lambda: 0.02)
    async with new_reader(source) as (reader, budget):
        await seed(reader, budget, 0, MiB)
        await read_through(reader, 0, source.size, size=128 * KiB)
    assert min(source.fetched)[0] == MiB
    assert source.fetched_bytes == source.size - MiB


async def test_a_small_file_is_served_from_its_seed_alone() -> None:
    source = FakeSource(150_000)
    async with new_reader(source) as (reader, budget):
        await seed(reader, budget, 0, source.size)
        assert budget.reserved_bytes == source.size

        data = await reader.read(0, MiB, 1)

        assert data == content(0, source.size)
        assert isinstance(data, memoryview)
        assert budget.reserved_bytes == 0
    assert source.fetched == []


async def test_a_seed_of_bytes_that_are_here_already_is_returned() -> None:
    async with new_reader(FakeSource(4 * MiB)) as (reader, budget):
        await seed(reader, budget, 0, MiB)
        await seed(reader, budget, 0, MiB)
        assert budget.reserved_bytes == MiB


async def test_random_reads_fetch_exactly_their_pages(autojump_clock: MockClock) -> None:
    source = FakeSource(256 * MiB, lambda: 0.01)
    seed_number = random.randrange(1 << 32)
    chance = random.Random(seed_number)
    asked = 0
    async with new_reader(source) as (reader, _):
        for _ in range(400):
            length = 4 * KiB * chance.randint(1, 256)
            start = 4 * KiB * chance.randrange((source.size - length) // (4 * KiB))
            await check_read(reader, start, start + length)
            asked += length
    assert source.fetched_bytes <= 1.05 * asked, f"seed {seed_number}"


async def test_a_read_within_a_page_fetches_the_page_once() -> None:
    source = FakeSource(MiB + 100)
    async with new_reader(source) as (reader, _):
        await check_read(reader, 5000, 5010)
        await check_read(reader, 5010, 6000)
        await check_read(reader, MiB + 1, MiB + 100)
    assert source.fetched == [(4096, 8192), (MiB, MiB + 100)]


async def test_reads_at_and_past_the_end_are_short() -> None:
    source = FakeSource(10_000)
    async with new_reader(source) as (reader, _):
        assert await reader.read(9_000, 5_000, 1) == content(9_000, 10_000)
        assert await reader.read(10_000, 1, 1) == b""
        assert await reader.read(20_000, 1, 1) == b""
        assert await reader.read(0, 0, 1) == b""


async def test_concurrent_misses_share_one_fetch() -> None:
    source = FakeSource(32 * MiB)
    source.gate = trio.Event()
    async with new_reader(source) as (reader, _), trio.open_nursery() as nursery:
        for at in range(8):
            nursery.start_soon(check_read, reader, 10 * MiB, 11 * MiB, at)
        await wait_all_tasks_blocked()
        source.gate.set()
    assert source.fetched == [(10 * MiB, 11 * MiB)]


async def test_reads_out_of_order_and_at_once_fetch_nothing_twice(
    autojump_clock: MockClock,
) -> None:
    """The kernel's read-ahead: sixteen READs of 128 KiB in flight, in any order."""
    source = FakeSource(64 * MiB, lambda: 0.02)
    chance = random.Random(5)
    async with new_reader(source) as (reader, _):
        for window in range(0, source.size, 2 * MiB):
            starts = list(range(window, window + 2 * MiB, 128 * KiB))
            chance.shuffle(starts)
            async with trio.open_nursery() as nursery:
                for start in starts:
                    nursery.start_soon(check_read, reader, start, start + 128 * KiB)
    assert source.fetched_bytes == source.size


async def test_eight_streams_through_one_handle_fetch_nothing_twice(
    autojump_clock: MockClock,
) -> None:
    source = FakeSource(256 * MiB, lambda: 0.05)
    async with new_reader(source) as (reader, _):
        began_at = trio.current_time()
        async with trio.open_nursery() as nursery:
            for start in range(0, source.size, 32 * MiB):
                nursery.start_soon(read_through, reader, start, start + 32 * MiB)
        assert trio.current_time() - began_at < 1.0
    assert source.fetched_bytes <= 1.02 * source.size


async def test_a_small_seek_forward_keeps_what_is_ahead(autojump_clock: MockClock) -> None:
    source = FakeSource(64 * MiB, lambda: 0.02)
    async with new_reader(source) as (reader, _):
        await read_through(reader, 0, 8 * MiB)
        await trio.sleep(1)
        before = len(source.fetched)

        await check_read(reader, 12 * MiB, 13 * MiB)

        assert len(source.fetched) == before


async def test_a_delivered_part_is_given_back_at_once(autojump_clock: MockClock) -> None:
    source = FakeSource(64 * MiB, lambda: 0.02)
    async with new_reader(source) as (reader, budget):
        await read_through(reader, 0, source.size)
        assert budget.reserved_bytes == 0


async def test_parts_read_with_holes_are_given_back_once_passed(autojump_clock: MockClock) -> None:
    """The kernel had some of the pages and never asks for them."""
    source = FakeSource(256 * MiB, lambda: 0.02)
    async with new_reader(source) as (reader, budget):
        await check_read(reader, 0, MiB)
        for at in range(MiB, source.size, MiB):
            await check_read(reader, at + 4 * KiB, at + MiB)
        assert budget.reserved_bytes <= 32 * MiB


async def test_a_ready_part_is_served_without_a_checkpoint_or_copy() -> None:
    source = FakeSource(16 * MiB)
    async with new_reader(source) as (reader, _):
        await check_read(reader, 0, MiB)
        await wait_all_tasks_blocked()

        with trio.CancelScope() as scope:
            scope.cancel()
            data = await reader.read(MiB, MiB, 1)  # a checkpoint would raise Cancelled

        assert not scope.cancelled_caught
        assert isinstance(data, memoryview)
        assert data == content(MiB, 2 * MiB)


async def test_a_read_across_two_parts_joins_them(autojump_clock: MockClock) -> None:
    source = FakeSource(64 * MiB, lambda: 0.02)
    async with new_reader(source) as (reader, _):
        await check_read(reader, 0, MiB)
        await check_read(reader, MiB + 4 * KiB, 2 * MiB + 4 * KiB)
        await check_read(reader, 7 * MiB + 512 * KiB, 8 * MiB + 512 * KiB)
        await check_read(reader, 1, 33 * MiB // 2)


async def test_a_failure_reaches_the_reads_that_wait_and_the_next_asks_again() -> None:
    source = FakeSource(32 * MiB)
    source.gate = trio.Event()
    source.failure = ObjectChanged("a.bin", "another version")
    caught: list[VolumeError] = []

    async def fail_to_read(reader: PrefetchReader) -> None:
        with pytest.raises(ObjectChanged) as failure:
            await reader.read(10 * MiB, MiB, 1)
        caught.append(failure.value)

    async with new_reader(source) as (reader, budget):
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(fail_to_read, reader)
            await wait_all_tasks_blocked()
            source.gate.set()
        assert caught == [source.failure] * 3
        assert budget.reserved_bytes == 0

        source.failure = None
        await check_read(reader, 10 * MiB, 11 * MiB)


async def test_a_failed_part_ahead_is_asked_for_again_when_it_is_read(
    autojump_clock: MockClock,
) -> None:
    source = FakeSource(16 * MiB, lambda: 0.02)
    async with new_reader(source) as (reader, budget):
        await seed(reader, budget, 0, MiB)
        source.failure = StoreUnavailable("a.bin", "cut")
        await check_read(reader, 0, MiB)  # starts parts ahead, which fail
        await trio.sleep(1)
        failed_bytes = source.fetched_bytes
        assert failed_bytes > 0
        source.failure = None

        await read_through(reader, MiB, source.size)
        assert source.fetched_bytes == failed_bytes + source.size - MiB


async def test_an_unexpected_exception_is_logged_as_a_bug_and_raised_to_the_read(
    caplog: pytest.LogCaptureFixture,
) -> None:
    source = FakeSource(MiB)
    source.failure = ZeroDivisionError("a bug")
    async with new_reader(source) as (reader, _):
        with pytest.raises(ZeroDivisionError):
            await reader.read(0, 4096, 1)
    assert [record.exc_info is not None for record in caplog.records] == [True]


async def test_an_answer_of_the_wrong_length_is_corrupt() -> None:
    class ShortSource(FakeSource):
        async def fetch(self, start: int, stop: int) -> bytes:
            return (await super().fetch(start, stop))[:-1]

    async with new_reader(ShortSource(MiB)) as (reader, _):
        with pytest.raises(CorruptData):
            await reader.read(0, 4096, 1)


async def test_closing_cancels_what_nobody_waits_for_and_lets_reads_end() -> None:
    source = FakeSource(64 * MiB)
    async with new_reader(source) as (reader, budget):
        await check_read(reader, 0, MiB)
        source.gate = trio.Event()
        await check_read(reader, MiB, 2 * MiB)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(check_read, reader, 40 * MiB, 41 * MiB)
            await wait_all_tasks_blocked()

            reader.close()
            await wait_all_tasks_blocked()

            assert source.cancelled_count > 0
            assert budget.reserved_bytes == IN_FLIGHT_COPIES * MiB
            source.gate.set()
        assert budget.reserved_bytes == 0


async def test_what_is_in_flight_counts_as_often_as_it_is_in_memory() -> None:
    source = FakeSource(64 * MiB)
    source.gate = trio.Event()
    async with new_reader(source) as (reader, budget), trio.open_nursery() as nursery:
        nursery.start_soon(check_read, reader, 40 * MiB, 41 * MiB)
        nursery.start_soon(check_read, reader, 40 * MiB, 40 * MiB + 4096)
        await wait_all_tasks_blocked()
        assert budget.reserved_bytes == IN_FLIGHT_COPIES * MiB
        source.gate.set()
        await wait_all_tasks_blocked()
        assert budget.reserved_bytes <= MiB


async def test_closing_before_the_fetch_began_returns_its_memory() -> None:
    source = FakeSource(64 * MiB)
    async with new_reader(source) as (reader, budget):
        await seed(reader, budget, 0, MiB)
        await check_read(reader, 0, MiB)
        assert budget.reserved_bytes > 0
        reader.close()
        await wait_all_tasks_blocked()
        assert budget.reserved_bytes == 0


async def test_a_read_that_gives_up_leaves_the_queue_for_memory() -> None:
    source = FakeSource(64 * MiB)
    async with new_reader(source, 8 * MiB) as (reader, budget):
        held = await budget.reserve(8 * MiB)
        with trio.CancelScope() as patience:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(reader.read, 10 * MiB, MiB, 1)
                await wait_all_tasks_blocked()
                assert budget.is_contended
                patience.cancel()
        await wait_all_tasks_blocked()

        assert not budget.is_contended
        held.release()
        await check_read(reader, 10 * MiB, 11 * MiB)


async def test_a_read_that_gives_up_does_not_take_the_part_from_another() -> None:
    source = FakeSource(64 * MiB)
    source.gate = trio.Event()
    async with new_reader(source) as (reader, _), trio.open_nursery() as nursery:
        nursery.start_soon(check_read, reader, 10 * MiB, 11 * MiB)
        await wait_all_tasks_blocked()
        with trio.move_on_after(0):
            await reader.read(10 * MiB, MiB, 2)
        source.gate.set()
    assert source.fetched == [(10 * MiB, 11 * MiB)]


async def test_reads_do_not_hang_when_the_mount_ends() -> None:
    source = FakeSource(MiB)
    source.gate = trio.Event()
    budget = MemoryBudget(MiB)

    async def fail_to_read(reader: PrefetchReader) -> None:
        with pytest.raises(StoreUnavailable):
            await reader.read(0, 4096, 1)

    async with trio.open_nursery() as nursery, trio.open_nursery() as fetches:
        reader = PrefetchReader(source, MiB, PartPool(budget, fetches))
        nursery.start_soon(fail_to_read, reader)
        await wait_all_tasks_blocked()
        fetches.cancel_scope.cancel()
    assert budget.reserved_bytes == 0


async def test_idle_parts_make_room_for_who_needs_memory(autojump_clock: MockClock) -> None:
    source = FakeSource(256 * MiB, lambda: 0.02)
    async with new_reader(source, 64 * MiB) as (reader, budget):
        await read_through(reader, 0, 40 * MiB)
        await trio.sleep(1)
        assert budget.reserved_bytes > 8 * MiB

        with trio.fail_after(1):
            large = await budget.reserve(64 * MiB)

        assert budget.reserved_bytes == 64 * MiB
        large.release()
        await read_through(reader, 40 * MiB, source.size)


async def test_one_stream_leaves_half_of_the_memory(autojump_clock: MockClock) -> None:
    source = FakeSource(512 * MiB, lambda: 0.02)
    async with new_reader(source, 64 * MiB) as (reader, budget):
        for at in range(0, source.size, MiB):
            await check_read(reader, at, at + MiB)
            assert budget.reserved_bytes <= 40 * MiB
    assert source.fetched_bytes == source.size


async def test_parts_that_nobody_reads_any_more_make_room_for_parts_ahead(
    autojump_clock: MockClock,
) -> None:
    budget_bytes = 64 * MiB
    async with new_pool(budget_bytes) as (pool, _):
        sources = [FakeSource(64 * MiB, lambda: 0.1) for _ in range(5)]
        readers = [PrefetchReader(source, source.size, pool) for source in sources]
        for reader in readers[:4]:
            await read_through(reader, 0, 24 * MiB)
            await trio.sleep(1)
        await trio.sleep(10)

        began_at = trio.current_time()
        await read_through(readers[4], 0, 64 * MiB)

        assert trio.current_time() - began_at < 1.2
        for reader in readers:
            reader.close()


@pytest.mark.parametrize("limit_bytes", [64 * MiB, 4 * MiB, 256 * KiB])
async def test_many_readers_never_wait_for_each_other_for_ever(
    limit_bytes: int, autojump_clock: MockClock
) -> None:
    """64 random and 8 sequential readers of one file, also with less memory than one part."""
    chance = random.Random(11)
    source = FakeSource(256 * MiB, lambda: chance.uniform(0.001, 0.05))

    async def read_randomly(reader: PrefetchReader, cursor: int) -> None:
        for _ in range(20):
            length = 4 * KiB * chance.randint(1, 256)
            start = 4 * KiB * chance.randrange((source.size - length) // (4 * KiB))
            await check_read(reader, start, start + length, cursor)

    async with new_reader(source, limit_bytes) as (reader, _):
        with trio.fail_after(600):
            async with trio.open_nursery() as nursery:
                for cursor in range(64):
                    nursery.start_soon(read_randomly, reader, cursor)
                for start in range(0, source.size, 32 * MiB):
                    stop = start + 8 * MiB
                    nursery.start_soon(
                        partial(read_through, reader, start, stop, cursor=1000 + start)
                    )


Script = list[tuple[int, int, float]]


def scripts(size: int) -> st.SearchStrategy[Script]:
    """What one reader does: reads of (offset, length), each after a pause; some are runs."""
    read = st.tuples(
        st.integers(0, size + MiB), st.integers(0, 2 * MiB), st.sampled_from([0.0, 0.01, 0.3])
    )
    run = st.builds(
        lambda start, length, count: [(start + at * length, length, 0.0) for at in range(count)],
        st.integers(0, size),
        st.sampled_from([64 * KiB, 128 * KiB, MiB, 1_000_001]),
        st.integers(2, 12),
    )
    return st.lists(st.one_of(read.map(lambda one: [one]), run), max_size=5).map(
        lambda groups: [step for group in groups for step in group]
    )


SIZE = 20 * MiB + 777


@settings(max_examples=60, deadline=None)
@given(
    plans=st.lists(scripts(SIZE), min_size=1, max_size=5),
    limit_bytes=st.sampled_from([100 * KiB, 3 * MiB, 20 * MiB, 512 * MiB]),
    delay_seed=st.integers(0, 1 << 32),
    failing=st.sampled_from([0.0, 0.0, 0.2]),
)
def test_any_readers_at_once_get_the_right_bytes_or_the_cause(
    plans: list[Script], limit_bytes: int, delay_seed: int, failing: float
) -> None:
    """Whatever is read, by whom and when: the bytes of the file, and all memory comes back."""
    delays = random.Random(delay_seed)

    class MoodySource(FakeSource):
        async def fetch(self, start: int, stop: int) -> bytes:
            data = await super().fetch(start, stop)
            if delays.random() < failing:
                raise StoreUnavailable("a.bin", "a bad day")
            return data

    async def follow(reader: PrefetchReader, cursor: int, plan: Script) -> None:
        for offset, length, pause_s in plan:
            await trio.sleep(pause_s)
            stop = max(offset, min(offset + length, SIZE))
            try:
                data = await reader.read(offset, length, cursor)
            except StoreUnavailable:
                assert failing
            else:
                assert bytes(data) == content(offset, stop)

    async def main() -> None:
        source = MoodySource(SIZE, lambda: delays.choice([0.0, 0.001, 0.02, 0.5]))
        async with new_reader(source, limit_bytes) as (reader, _), trio.open_nursery() as nursery:
            for cursor, plan in enumerate(plans):
                nursery.start_soon(follow, reader, cursor, plan)

    trio.run(main, clock=MockClock(autojump_threshold=0))


@settings(max_examples=25, deadline=None)
@given(
    length=st.sampled_from([4 * KiB * 17, 128 * KiB, MiB]),
    reorder=st.integers(1, 8),
    seeded=st.booleans(),
    limit_bytes=st.sampled_from([32 * MiB, 512 * MiB]),
    shuffle_seed=st.integers(0, 1 << 32),
)
def test_any_sequential_pass_fetches_every_byte_once(
    length: int, reorder: int, seeded: bool, limit_bytes: int, shuffle_seed: int
) -> None:
    """Reads of any size, up to 1 MiB out of order and at once, behind a seed or not."""
    chance = random.Random(shuffle_seed)

    async def main() -> None:
        source = FakeSource(SIZE, lambda: chance.choice([0.001, 0.02, 0.1]))
        async with new_reader(source, limit_bytes) as (reader, budget):
            if seeded:
                await seed(reader, budget, 0, MiB)
            starts = list(range(0, SIZE, length))
            group = max(1, min(reorder, MiB // length))
            for at in range(0, len(starts), group):
                batch = starts[at : at + group]
                chance.shuffle(batch)
                async with trio.open_nursery() as nursery:
                    for start in batch:
                        nursery.start_soon(check_read, reader, start, min(start + length, SIZE))
        assert source.fetched_bytes == SIZE - (MiB if seeded else 0)

    trio.run(main, clock=MockClock(autojump_threshold=0))
