"""How old what is shown may be, and what it costs to renew it."""

from itertools import islice

import pytest
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.fs.kernel import Kernel
from tests.fs.stores import ScriptedStore
from ucfuse.errors import NotFound, StoreUnavailable
from ucfuse.fs.filesystem import VolumeFilesystem
from ucfuse.metrics import Metrics
from ucfuse.names.inodes import ROOT_INODE
from ucfuse.store.memory import MemoryStore
from ucfuse.volume import Key

pytestmark = pytest.mark.timeout(30)


async def _fill(memory: MemoryStore, count: int, directory: str = "") -> None:
    for index in range(count):
        await memory.put(Key(f"{directory}f{index:04d}"), b"x" * index)


async def test_stat_within_the_ttl_asks_nothing(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore, metrics: Metrics
) -> None:
    await memory.put(Key("x"), b"1")
    number = (await program.lookup("x")).number
    before = metrics.store_requests.copy()

    for _ in range(3):
        await program.lookup("x")
        await fs.getattr(number, program.other_caller())

    assert metrics.store_requests - before == {}


async def test_the_kernel_may_keep_a_name_only_as_long_as_it_is_fresh(
    program: Kernel, memory: MemoryStore, clock: MockClock
) -> None:
    await memory.put(Key("x"), b"1")
    assert 0.5 < (await program.lookup("x")).valid_s <= 1
    clock.jump(0.7)
    assert 0 < (await program.lookup("x")).valid_s <= 0.3


async def test_a_dirty_file_is_never_kept(program: Kernel, memory: MemoryStore) -> None:
    handle = await program.begin_file("x", b"1")
    assert (await program.lookup("x")).valid_s == 0
    await program.close(handle)


async def test_stat_after_the_ttl_sees_what_another_client_did(
    program: Kernel, memory: MemoryStore, clock: MockClock
) -> None:
    await memory.put(Key("x"), b"1")
    await memory.put(Key("y"), b"1")
    await program.lookup("x")
    await program.lookup("y")
    await memory.put(Key("x"), b"22")
    await memory.delete(Key("y"))
    clock.jump(1.1)

    assert (await program.lookup("x")).size == 2
    assert not await program.exists("y")


async def test_a_name_that_does_not_exist_is_asked_for_every_time(
    program: Kernel, memory: MemoryStore
) -> None:
    assert not await program.exists("x")
    await memory.put(Key("x"), b"1")

    assert await program.exists("x")


async def test_a_listing_of_2500_names_costs_three_pages_and_no_stat_after_it_anything(
    program: Kernel, memory: MemoryStore, metrics: Metrics, clock: MockClock
) -> None:
    await _fill(memory, 2500)
    before = metrics.store_requests.copy()

    names = await program.listdir()
    for name in names[::100]:
        await program.lookup(name)

    assert len(names) == 2500
    assert metrics.store_requests - before == {"LIST": 3}


async def test_a_second_listing_within_the_ttl_asks_nothing(
    program: Kernel, memory: MemoryStore, metrics: Metrics, clock: MockClock
) -> None:
    await _fill(memory, 20)
    await program.listdir()
    before = metrics.store_requests.copy()

    assert len(await program.listdir()) == 20
    assert metrics.store_requests - before == {}

    clock.jump(1.1)
    await memory.put(Key("new"), b"")
    await memory.delete(Key("f0003"))
    names = await program.listdir()
    assert "new" in names
    assert "f0003" not in names
    assert metrics.store_requests - before == {"LIST": 1}


async def test_an_expired_name_of_a_listed_directory_costs_one_page_which_renews_the_next_ones(
    program: Kernel, memory: MemoryStore, metrics: Metrics, clock: MockClock
) -> None:
    await _fill(memory, 100, "d/")
    names = await program.listdir("d")
    parent = (await program.lookup("d")).number
    clock.jump(1.1)
    before = metrics.store_requests.copy()

    for name in names:
        found = await program.fs.lookup(parent, name, program.caller())
        await program.fs.getattr(found.number, program.caller())

    assert metrics.store_requests - before == {"LIST": 1}


async def test_an_open_of_an_expired_name_costs_its_own_request_alone(
    program: Kernel, memory: MemoryStore, metrics: Metrics, clock: MockClock
) -> None:
    """The lookup asks as the open would, and the open takes its answer over."""
    await memory.put(Key("x"), b"data")
    await program.read_file("x")
    clock.jump(60)
    before = metrics.store_requests.copy()

    await program.close(await program.open("x"))

    assert metrics.store_requests - before == {"GET": 1}


@pytest.mark.parametrize("ttl_passed", [True, False])
async def test_what_only_looks_a_name_up_sees_that_it_was_deleted_elsewhere(
    program: Kernel, memory: MemoryStore, clock: MockClock, ttl_passed: bool
) -> None:
    """O_EXCL, mkdir, O_PATH: the kernel decides by the lookup alone."""
    await memory.put(Key("lock"), b"held")
    await program.read_file("lock")
    await memory.delete(Key("lock"))
    clock.jump(2 if ttl_passed else 0)

    if ttl_passed:
        with pytest.raises(NotFound):
            await program.walk("lock")
    else:
        await program.walk("lock")  # may be as old as the TTL


async def test_a_stat_is_not_taken_for_the_lookup_of_a_later_open(
    program: Kernel, memory: MemoryStore, clock: MockClock
) -> None:
    await memory.put(Key("x"), b"old")
    await program.read_file("x")
    clock.jump(2)
    number = (await program.lookup("x")).number
    await memory.put(Key("x"), b"new")

    handle = await program.open("x", number=number)

    assert await program.read_open(handle) == b"new"
    await program.close(handle)


async def test_a_stat_of_a_name_that_expired_and_changed_shows_the_new_version(
    program: Kernel, memory: MemoryStore, clock: MockClock
) -> None:
    await memory.put(Key("x"), b"old")
    number = (await program.lookup("x")).number
    await memory.put(Key("x"), b"newer")
    clock.jump(2)

    found = await program.lookup("x")

    assert (found.size, found.number != number, found.links) == (5, True, 1)


async def test_fstat_of_an_open_file_shows_its_version_after_it_changed_elsewhere(
    program: Kernel, memory: MemoryStore, clock: MockClock
) -> None:
    await memory.put(Key("x"), b"old")
    handle = await program.open("x")
    number = program.fs._handles.file(handle).content.file.number
    await memory.put(Key("x"), b"newer")
    clock.jump(2)

    shown = await program.fs.getattr(number, program.other_caller())

    assert (shown.size, shown.links) == (3, 0)
    await program.close(handle)


async def test_the_attributes_of_an_open_file_are_known_while_the_store_is_away(
    program: Kernel, memory: MemoryStore, store: ScriptedStore, clock: MockClock
) -> None:
    """The kernel asks before it reads from its own cache: an errno would end that read."""
    await memory.put(Key("x"), b"data")
    handle = await program.open("x")
    number = program.fs._handles.file(handle).content.file.number
    clock.jump(2)
    store.fail("HEAD", StoreUnavailable("x"))

    shown = await program.fs.getattr(number, program.other_caller())

    assert shown.size == 4
    assert shown.valid_s > 0
    await program.close(handle)


async def test_an_expired_name_that_was_deleted_is_gone_and_its_neighbours_stay(
    program: Kernel, memory: MemoryStore, clock: MockClock
) -> None:
    await _fill(memory, 5)
    await program.listdir()
    number = (await program.lookup("f0003")).number
    await memory.delete(Key("f0002"))
    await memory.delete(Key("f0004"))
    clock.jump(1.1)

    assert not await program.exists("f0002")
    assert not await program.exists("f0004")
    assert (await program.lookup("f0003")).number == number


async def test_an_expired_directory_is_renewed_by_a_page_too(
    program: Kernel, memory: MemoryStore, metrics: Metrics, clock: MockClock
) -> None:
    await memory.put(Key("d-x"), b"")
    await memory.put(Key("d/x"), b"")
    await memory.put(Key("e"), b"")
    await program.listdir()
    number = (await program.lookup("d")).number
    clock.jump(1.1)
    before = metrics.store_requests.copy()

    assert (await program.lookup("d")).number == number
    assert metrics.store_requests - before == {"LIST": 1}

    await memory.delete(Key("d/x"))
    clock.jump(1.1)
    assert not await program.exists("d")
    assert await program.exists("d-x")


async def test_programs_that_look_an_expired_directory_up_at_once_share_the_question(
    program: Kernel,
    memory: MemoryStore,
    store: ScriptedStore,
    metrics: Metrics,
    clock: MockClock,
) -> None:
    await memory.put(Key("d/x"), b"1")
    await program.lookup("d")
    clock.jump(2)
    before = metrics.store_requests.copy()

    async with store.hold("LIST").met_by(program.lookup, "d") as nursery:
        for _ in range(4):
            nursery.start_soon(program.lookup, "d")
        await wait_all_tasks_blocked()

    assert metrics.store_requests - before == {"LIST": 1}


async def test_that_a_directory_is_gone_is_asked_for_by_each_who_looks_it_up(
    program: Kernel, other: Kernel, memory: MemoryStore, store: ScriptedStore, clock: MockClock
) -> None:
    """Else one would hear of a time before its lookup, when somebody had not made it again yet."""
    await memory.put(Key("d/x"), b"1")
    await program.lookup("d")
    clock.jump(2)
    await memory.delete(Key("d/x"))

    store.hold("LIST", answered=True).open()
    found: list[bool] = []

    async def look() -> None:
        found.append(await other.exists("d"))

    gate = store.hold("LIST", answered=True)
    async with gate.met_by(program.exists, "d") as nursery:
        await memory.put(Key("d/x"), b"2")
        nursery.start_soon(look)
        await wait_all_tasks_blocked()

    assert found == [True]


async def test_an_open_renews_the_age_of_its_name(
    program: Kernel, memory: MemoryStore, metrics: Metrics, clock: MockClock
) -> None:
    await memory.put(Key("x"), b"1")
    number = (await program.lookup("x")).number
    clock.jump(1.1)
    await program.close(await program.open("x", number=number))
    before = metrics.store_requests.copy()

    await program.lookup("x")

    assert metrics.store_requests - before == {}


async def test_a_small_file_within_the_ttl_of_a_listing_costs_one_get(
    program: Kernel, memory: MemoryStore, metrics: Metrics
) -> None:
    await memory.put(Key("x"), b"data")
    await program.listdir()
    before = metrics.store_requests.copy()

    assert await program.read_file("x") == b"data"

    assert metrics.store_requests - before == {"GET": 1}


async def test_the_same_bytes_put_again_are_the_same_inode(
    program: Kernel, memory: MemoryStore, clock: MockClock
) -> None:
    await memory.put(Key("x"), b"data")
    number = (await program.lookup("x")).number
    await memory.put(Key("x"), b"data")
    clock.jump(1.1)

    attributes = await program.lookup("x")

    head = await memory.head(Key("x"))
    assert head.info.mtime_s is not None
    assert attributes.number == number
    assert attributes.mtime_ns == head.info.mtime_s * 1_000_000_000


async def test_a_file_that_became_a_directory_elsewhere_gets_another_number(
    program: Kernel, memory: MemoryStore, clock: MockClock
) -> None:
    await memory.put(Key("x"), b"data")
    number = (await program.lookup("x")).number
    await memory.delete(Key("x"))
    await memory.put(Key("x/y"), b"data")
    clock.jump(1.1)

    attributes = await program.lookup("x")
    assert attributes.is_directory
    assert attributes.number != number

    await memory.delete(Key("x/y"))
    await memory.put(Key("x"), b"again")
    clock.jump(1.1)
    again = await program.lookup("x")
    assert not again.is_directory
    assert again.number not in (number, attributes.number)


async def test_the_time_of_a_directory_is_that_of_the_last_change_made_in_it_here(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore
) -> None:
    await memory.put(Key("d/x"), b"")
    number = (await program.lookup("d")).number
    fixed = (await fs.getattr(number, program.other_caller())).mtime_ns

    await program.write_file("d/new", b"1")

    assert (await fs.getattr(number, program.other_caller())).mtime_ns > fixed
    assert (await fs.getattr(ROOT_INODE, program.other_caller())).is_directory


async def test_what_the_kernel_forgot_takes_no_memory(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore
) -> None:
    await _fill(memory, 50)
    directory = await fs.opendir(ROOT_INODE, program.other_caller())
    entries = await program.read_directory(directory)
    await fs.releasedir(directory)

    for entry in entries:
        fs.forget(entry.attributes.number, 1)

    assert len(fs._superblock.inodes) == 1


async def test_a_listing_goes_on_where_the_kernel_says(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore
) -> None:
    await _fill(memory, 1200)
    directory = await fs.opendir(ROOT_INODE, program.other_caller())
    seen: list[str] = []
    position = 0
    while page := list(islice(await fs.readdir(directory, position), 37)):
        seen += [entry.name for entry in page]
        position = page[-1].next_id
        if len(seen) == 37:
            await program.unlink("f0040")
    await fs.releasedir(directory)

    assert seen == [f"f{index:04d}" for index in range(1200) if index != 40]
