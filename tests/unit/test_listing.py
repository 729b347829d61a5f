"""One program's reading of a directory: a snapshot that grows page by page."""

import pytest
import trio
from trio.testing import MockClock

from tests.fs.stores import ScriptedStore
from ucfuse.errors import StoreUnavailable
from ucfuse.metrics import Metrics
from ucfuse.names.inodes import Directory
from ucfuse.names.listing import Listing, ListingEntry
from ucfuse.names.superblock import Superblock
from ucfuse.store.memory import MemoryStore
from ucfuse.store.metered import MeteredStore
from ucfuse.volume import Key

pytestmark = pytest.mark.timeout(20)


@pytest.fixture
def names(metrics: Metrics) -> Superblock:
    return Superblock("", 1.0, metrics)


@pytest.fixture
def listing(names: Superblock, store: ScriptedStore, metrics: Metrics) -> Listing:
    return _listing(names, store, metrics)


def _listing(
    names: Superblock,
    store: ScriptedStore,
    metrics: Metrics,
    directory: Directory | None = None,
) -> Listing:
    metered = MeteredStore(store, metrics)
    return Listing(names, metered, directory or names.inodes.root, 1.0)


async def _entry(listing: Listing, position: int) -> ListingEntry | None:
    return next(listing.at_hand(position)) if await listing.reaches(position) else None


async def _all(listing: Listing, position: int = 0) -> list[str]:
    shown = []
    while (entry := await _entry(listing, position)) is not None:
        shown.append(entry.name)
        position = entry.next_position
    return shown


async def _fill(memory: MemoryStore, count: int) -> list[str]:
    keys = [f"f{index:04d}" for index in range(count)]
    for key in keys:
        await memory.put(Key(key), b"")
    return keys


@pytest.mark.parametrize("count", [0, 1, 1000, 1001, 2500])
async def test_every_name_comes_once(
    listing: Listing, memory: MemoryStore, metrics: Metrics, count: int
) -> None:
    keys = await _fill(memory, count)

    assert await _all(listing) == keys
    assert metrics.store_requests["LIST"] == max(1, -(-count // 1000))


async def test_pages_are_asked_for_as_the_program_reads_on(
    listing: Listing, memory: MemoryStore, metrics: Metrics
) -> None:
    await _fill(memory, 2500)

    for position in range(1000):
        assert await _entry(listing, position) is not None

    assert metrics.store_requests["LIST"] == 1
    assert await _entry(listing, 2499) is not None
    assert await _entry(listing, 2500) is None


async def test_reading_again_from_the_start_sees_what_is_new(
    listing: Listing, memory: MemoryStore, clock: MockClock
) -> None:
    await _fill(memory, 2)
    assert await _all(listing) == ["f0000", "f0001"]
    await memory.put(Key("g"), b"")
    clock.jump(2)

    assert await _all(listing) == ["f0000", "f0001", "g"]


async def test_a_fresh_directory_is_listed_from_memory(
    names: Superblock,
    store: ScriptedStore,
    memory: MemoryStore,
    metrics: Metrics,
    clock: MockClock,
) -> None:
    keys = await _fill(memory, 3)
    for _ in range(3):
        assert await _all(_listing(names, store, metrics)) == keys
    assert metrics.store_requests["LIST"] == 1

    clock.jump(2)
    assert await _all(_listing(names, store, metrics)) == keys
    assert metrics.store_requests["LIST"] == 2


async def test_names_that_only_exist_here_come_last(
    names: Superblock, listing: Listing, memory: MemoryStore
) -> None:
    keys = await _fill(memory, 3)
    names.created(names.inodes.root, "a-new", None)

    assert await _all(listing) == [*keys, "a-new"]


async def test_a_name_removed_while_the_listing_is_read_is_left_out(
    names: Superblock, listing: Listing, memory: MemoryStore
) -> None:
    await _fill(memory, 3)
    assert await _entry(listing, 0) is not None
    node = names.known(names.inodes.root, "f0001")
    assert node is not None

    names.removed(node)

    assert await _all(listing, 1) == ["f0002"]


async def test_a_page_that_fails_is_an_error_and_is_asked_for_again(
    names: Superblock, listing: Listing, memory: MemoryStore, store: ScriptedStore
) -> None:
    keys = await _fill(memory, 1500)
    store.fail("LIST", StoreUnavailable(""), skip=1)

    with pytest.raises(StoreUnavailable):
        await _entry(listing, 1200)

    assert set(names.inodes.root.children) == set(keys[:1000])
    assert await _all(listing, 1000) == keys[1000:]


async def test_several_tasks_may_read_one_listing(
    listing: Listing, memory: MemoryStore, metrics: Metrics
) -> None:
    await _fill(memory, 1500)
    seen: list[str] = []

    async def read(position: int) -> None:
        entry = await _entry(listing, position)
        assert entry is not None
        seen.append(entry.name)

    assert await _entry(listing, 1) is not None
    async with trio.open_nursery() as nursery:
        for position in range(1000, 1500):
            nursery.start_soon(read, position)

    assert len(set(seen)) == 500
    assert metrics.store_requests["LIST"] == 2


async def test_a_directory_that_is_renamed_goes_on_under_its_new_key(
    names: Superblock, store: ScriptedStore, memory: MemoryStore, metrics: Metrics
) -> None:
    for index in range(1500):
        await memory.put(Key(f"d/f{index:04d}"), b"")
        await memory.put(Key(f"e/f{index:04d}"), b"")
    directory = names.observe(names.inodes.root, "d", None, True, trio.current_time())
    assert isinstance(directory, Directory)
    listing = _listing(names, store, metrics, directory)
    shown: list[str] = []

    async def read() -> None:
        shown.extend(await _all(listing))

    async with store.hold("LIST", "d/", skip=1, answered=True).met_by(read):
        names.renamed(directory, names.inodes.root, "e")

    assert shown == [f"f{index:04d}" for index in range(1500)]


async def test_a_name_that_becomes_known_by_another_way_while_the_listing_runs_is_not_lost(
    names: Superblock, listing: Listing, memory: MemoryStore, store: ScriptedStore
) -> None:
    """It was created before the listing began, and committed before it ended."""
    await _fill(memory, 2)
    file = names.created(names.inodes.root, "new", None)
    shown: list[str] = []

    async def read() -> None:
        shown.extend(await _all(listing))

    async with store.hold("LIST", answered=True).met_by(read):
        began = trio.current_time()
        await memory.put(Key("new"), b"1")
        names.committed(file, (await memory.head(Key("new"))).info, began)

    assert shown == ["f0000", "f0001", "new"]
