"""Opening: the newest committed version, by one question, and never a mix."""

import math
from contextlib import suppress

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from tests.fs.kernel import Kernel, bytes_in, intent
from tests.fs.stores import ScriptedStore
from ucfuse.errors import NotFound, ObjectChanged, StaleName, StoreUnavailable
from ucfuse.fs.filesystem import VolumeFilesystem
from ucfuse.fs.repeats import BEAT_S
from ucfuse.metrics import Metrics
from ucfuse.names.tickets import LIFETIME_S
from ucfuse.store.memory import MemoryStore
from ucfuse.volume import Key, MiB

pytestmark = pytest.mark.timeout(20)

X = Key("x")


async def test_an_unchanged_file_keeps_its_inode_and_costs_one_question_per_open(
    program: Kernel, memory: MemoryStore, metrics: Metrics
) -> None:
    await memory.put(X, b"a" * 1000)
    number = (await program.lookup("x")).number
    before = metrics.store_requests.copy()

    for opens in range(1, 4):
        handle = await program.open("x", number=number)
        if opens == 1:  # later the kernel has the bytes
            assert await program.read_open(handle) == b"a" * 1000
        assert metrics.store_requests - before == {"GET": opens}
        await program.close(handle)

    assert (await program.lookup("x")).number == number


async def test_delivered_bytes_are_not_fetched_again(
    program: Kernel, memory: MemoryStore, metrics: Metrics
) -> None:
    await memory.put(X, b"a" * 3 * MiB)
    assert await program.read_file("x") == b"a" * 3 * MiB
    received = metrics.store_bytes_received

    await program.close(await program.open("x"))

    assert metrics.store_bytes_received == received


async def test_a_listing_in_between_does_not_make_delivered_bytes_unknown(
    program: Kernel, memory: MemoryStore, metrics: Metrics, clock: MockClock
) -> None:
    await memory.put(X, b"a" * MiB)
    assert await program.read_file("x") == b"a" * MiB
    clock.jump(2)
    await program.listdir()
    received = metrics.store_bytes_received

    await program.close(await program.open("x"))

    assert metrics.store_bytes_received == received


async def test_a_changed_file_gets_a_new_inode_and_its_open_one_question(
    program: Kernel, memory: MemoryStore, metrics: Metrics
) -> None:
    await memory.put(X, b"old")
    number = (await program.lookup("x")).number
    await program.close(await program.open("x", number=number))
    await memory.put(X, b"newer")
    before = metrics.store_requests.copy()

    handle = await program.open("x", number=number)

    assert metrics.store_requests - before == {"GET": 1}
    assert await program.read_open(handle) == b"newer"
    assert metrics.store_requests - before == {"GET": 1}
    assert (await program.lookup("x")).number != number
    await program.close(handle)


async def test_an_open_handle_keeps_what_was_delivered_and_gets_nothing_of_another_version(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore
) -> None:
    await memory.put(X, b"a" * 3 * MiB)
    handle = await program.open("x")
    number = (await program.lookup("x")).number
    await memory.put(X, b"b" * 3 * MiB)

    assert await program.read_file("x") == b"b" * 3 * MiB
    assert (await fs.getattr(number, program.caller())).links == 0
    assert bytes(await fs.read(handle, 0, MiB)) == b"a" * MiB  # fetched by the open
    with pytest.raises(ObjectChanged):
        await fs.read(handle, 2 * MiB, MiB)
    await program.close(handle)


async def test_a_file_deleted_elsewhere_is_stale_at_first_and_then_absent(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore
) -> None:
    await memory.put(X, b"old")
    number = (await program.lookup("x")).number
    await memory.delete(X)

    with pytest.raises(StaleName):
        await fs.open(number, intent("r"), program.caller())
    with pytest.raises(NotFound):
        await program.walk("x")
    with pytest.raises(NotFound):
        await program.open("x", number=number)


@pytest.mark.parametrize("mode", ["a", "w"])
async def test_a_file_whose_directories_vanished_elsewhere_is_created_again(
    program: Kernel, memory: MemoryStore, clock: MockClock, mode: str
) -> None:
    await memory.put(Key("d1/d2/d3/f"), b"old")
    number = (await program.lookup("d1/d2/d3/f")).number
    await memory.delete(Key("d1/d2/d3/f"))
    clock.jump(2)

    handle = await program.open("d1/d2/d3/f", mode, number=number)
    await program.fs.write(handle, 0, b"new")
    await program.close(handle)

    assert await bytes_in(memory, "d1/d2/d3/f") == b"new"
    assert await program.read_file("d1/d2/d3/f") == b"new"


async def test_a_descriptor_of_an_old_version_opens_it_again(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore
) -> None:
    """/proc/self/fd and O_PATH: no name is looked up, the same thread asks for the inode again."""
    await memory.put(X, b"old")
    handle = await program.open("x")
    number = (await program.lookup("x")).number
    await memory.put(X, b"newer")
    fs.end_ticket(program.thread)

    with pytest.raises(StaleName):
        await fs.open(number, intent("r"), program.caller())
    again = await fs.open(number, intent("r"), program.caller())

    assert await program.read_open(again) == b"old"
    await program.close(again)
    await program.close(handle)


async def test_a_removed_file_can_be_opened_through_its_descriptor(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore
) -> None:
    handle = await program.begin_file("x", b"data")
    number = (await program.lookup("x")).number
    await program.unlink("x")

    with pytest.raises(StaleName):
        await fs.open(number, intent("r"), program.caller())
    again = await fs.open(number, intent("r"), program.caller())

    assert await program.read_open(again) == b"data"
    await program.close(again)
    await program.close(handle)
    assert await bytes_in(memory, "x") is None


async def test_a_version_that_comes_between_the_repeated_lookup_and_open_is_no_error(
    fs: VolumeFilesystem, program: Kernel, other: Kernel, memory: MemoryStore
) -> None:
    """The repeat counts as arrived at the ticket's time, and its inode was confirmed since."""
    await memory.put(X, b"1")
    old = (await program.lookup("x")).number
    await memory.put(X, b"22")
    with pytest.raises(StaleName):
        await fs.open(old, intent("r"), program.caller())
    second = (await program.walk("x")).number
    await memory.put(X, b"333")
    assert await other.read_file("x") == b"333"

    handle = await fs.open(second, intent("r"), program.caller())

    with suppress(ObjectChanged):  # never delivered, and gone: but nothing of the third version
        assert bytes(await fs.read(handle, 0, 10)) == b"22"
    await program.close(handle)


async def test_an_inode_that_lost_its_name_before_the_open_is_repeated_only_once(
    fs: VolumeFilesystem, program: Kernel, other: Kernel, memory: MemoryStore
) -> None:
    """The kernel repeats an open once: whatever its first answer leads to must open."""
    await memory.put(X, b"1")
    old = (await program.lookup("x")).number
    await memory.put(X, b"22")
    assert await other.read_file("x") == b"22"  # `old` has no name any more
    await memory.put(X, b"333")

    handle = await program.open("x", number=old)

    assert await program.read_open(handle) == b"333"
    await program.close(handle)


async def test_a_repeat_opens_what_the_first_try_found_though_it_was_renamed_over_since(
    fs: VolumeFilesystem, program: Kernel, other: Kernel, memory: MemoryStore
) -> None:
    """The open is older than the rename, and the bytes that it found came with its answer."""
    await memory.put(X, b"1")
    old = (await program.lookup("x")).number
    await memory.put(X, b"22")
    await other.write_file("y", b"333")
    with pytest.raises(StaleName):
        await fs.open(old, intent("r"), program.caller())
    await other.rename("y", "x")

    number = (await program.walk("x")).number
    handle = await fs.open(number, intent("r"), program.caller())

    assert await program.read_open(handle) == b"22"
    assert await other.read_file("x") == b"333"
    await program.close(handle)


async def test_a_repeat_opens_though_this_process_stood_still_since_the_first_try(
    fs: VolumeFilesystem, program: Kernel, other: Kernel, memory: MemoryStore, clock: MockClock
) -> None:
    """Stopped, suspended or starved: the repeat waited in the queue all the time."""
    await memory.put(X, b"1")
    old = (await program.lookup("x")).number
    await memory.put(X, b"22")
    with pytest.raises(StaleName):
        await fs.open(old, intent("r"), program.caller())

    clock.jump(30)
    await trio.testing.wait_all_tasks_blocked()
    await memory.put(X, b"333")
    assert await other.read_file("x") == b"333"

    number = (await program.walk("x")).number
    handle = await fs.open(number, intent("r"), program.caller())
    assert await program.read_open(handle) == b"22"
    await program.close(handle)


async def test_a_repeat_that_a_long_rename_in_its_directory_holds_up_opens(
    fs: VolumeFilesystem,
    program: Kernel,
    other: Kernel,
    store: ScriptedStore,
    memory: MemoryStore,
    clock: MockClock,
) -> None:
    """The kernel locks a directory in which it renames: lookups there come after that."""
    await memory.put(X, b"1")
    old = (await program.lookup("x")).number
    await other.write_file("y", b"333")
    await memory.put(X, b"22")
    with pytest.raises(StaleName):
        await fs.open(old, intent("r"), program.caller())
    async with store.hold("COPY").met_by(other.rename, "y", "z"):
        clock.jump(10)
    await memory.put(X, b"4444")

    number = (await program.walk("x")).number
    handle = await fs.open(number, intent("r"), program.caller())

    assert await program.read_open(handle) == b"22"
    await program.close(handle)


async def test_a_thread_of_another_pid_namespace_opens_the_new_version(
    fs: VolumeFilesystem, memory: MemoryStore
) -> None:
    stranger = Kernel(fs, thread=0)
    await memory.put(X, b"old")
    number = (await stranger.lookup("x")).number
    await memory.put(X, b"newer")

    handle = await stranger.open("x", number=number)

    assert await stranger.read_open(handle) == b"newer"
    await stranger.close(handle)


async def test_threads_that_cannot_be_told_apart_never_get_the_old_version_by_name(
    fs: VolumeFilesystem, memory: MemoryStore
) -> None:
    """The old inode is stale for all of them until nothing but descriptors can lead to it."""
    one, two = Kernel(fs, thread=0), Kernel(fs, thread=0)
    await memory.put(X, b"old")
    number = (await one.lookup("x")).number
    await memory.put(X, b"newer")
    with pytest.raises(StaleName):
        await fs.open(number, intent("r"), one.caller())

    with pytest.raises(StaleName):
        await fs.open(number, intent("r"), two.caller())


async def test_a_stranger_opens_the_old_version_once_only_descriptors_lead_to_it(
    fs: VolumeFilesystem, memory: MemoryStore, clock: MockClock
) -> None:
    stranger = Kernel(fs, thread=0)
    await memory.put(X, b"old")
    held = await stranger.open("x")
    number = (await stranger.lookup("x")).number
    await memory.put(X, b"newer")
    with pytest.raises(StaleName):
        await fs.open(number, intent("r"), stranger.caller())

    clock.jump(2)
    handle = await fs.open(number, intent("r"), stranger.caller())

    assert await stranger.read_open(handle) == b"old"
    await stranger.close(handle)
    await stranger.close(held)


# --- questions -------------------------------------------------------------------------------


async def test_one_question_runs_and_one_waits_for_all_opens_of_a_key(
    fs: VolumeFilesystem, memory: MemoryStore, store: ScriptedStore, metrics: Metrics
) -> None:
    await memory.put(X, b"old")
    number = (await Kernel(fs).lookup("x")).number
    before = metrics.store_requests.copy()
    opened: list[int] = []

    async def open_and_close(thread: int) -> None:
        program = Kernel(fs, thread)
        handle = await program.open("x", number=number)
        opened.append(thread)
        await program.close(handle)

    async with store.hold("GET").met_by(open_and_close, 1) as nursery:
        for thread in range(2, 10):
            nursery.start_soon(open_and_close, thread)
        await trio.testing.wait_all_tasks_blocked()
        assert metrics.store_requests - before == {"GET": 1}

    assert sorted(opened) == list(range(1, 10))
    assert (metrics.store_requests - before)["GET"] == 2


async def test_an_open_is_not_served_by_a_question_that_began_before_it(
    fs: VolumeFilesystem, memory: MemoryStore, store: ScriptedStore
) -> None:
    await memory.put(X, b"old")
    number = (await Kernel(fs).lookup("x")).number
    first, second = Kernel(fs, 1), Kernel(fs, 2)
    seen: dict[int, bytes] = {}

    async def read(program: Kernel) -> None:
        handle = await program.open("x", number=number)
        seen[program.thread] = await program.read_open(handle)
        await program.close(handle)

    async with store.hold("GET", answered=True).met_by(read, first) as nursery:
        await memory.put(X, b"newer")
        nursery.start_soon(read, second)
        await trio.testing.wait_all_tasks_blocked()

    assert seen[1] in (b"old", b"newer")
    assert seen[2] == b"newer"


async def test_a_question_that_fails_reaches_all_who_wait_and_the_next_open_asks_again(
    fs: VolumeFilesystem, memory: MemoryStore, store: ScriptedStore
) -> None:
    await memory.put(X, b"data")
    number = (await Kernel(fs).lookup("x")).number
    gate = store.hold("GET")
    store.fail("GET", StoreUnavailable("x"))
    failed: list[int] = []

    async def fail_to_open(thread: int) -> None:
        program = Kernel(fs, thread)
        with pytest.raises(StoreUnavailable):
            await program.open("x", number=number)
        failed.append(thread)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(fail_to_open, 1)
        await gate.reached.wait()
        nursery.start_soon(fail_to_open, 2)
        nursery.start_soon(fail_to_open, 3)
        await trio.testing.wait_all_tasks_blocked()
        gate.fail(StoreUnavailable("x"))

    assert sorted(failed) == [1, 2, 3]
    assert await Kernel(fs).read_file("x") == b"data"


async def test_a_store_that_stalls_makes_an_open_fail_in_time(
    program: Kernel, memory: MemoryStore, store: ScriptedStore, clock: MockClock
) -> None:
    await memory.put(X, b"data")
    number = (await program.lookup("x")).number
    gate = store.hold("GET")
    failed = trio.Event()

    async def fail_to_open() -> None:
        with pytest.raises(StoreUnavailable):
            await program.open("x", number=number)
        failed.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(fail_to_open)
        await gate.reached.wait()
        clock.jump(61)
        await failed.wait()

    assert await program.read_file("x") == b"data"


async def test_an_open_that_waits_for_a_stalled_question_has_its_own_time_for_the_next(
    fs: VolumeFilesystem, memory: MemoryStore, store: ScriptedStore, clock: MockClock
) -> None:
    await memory.put(X, b"data")
    number = (await Kernel(fs).lookup("x")).number
    gate = store.hold("GET")
    late: list[bytes] = []

    async def fail_to_open() -> None:
        with pytest.raises(StoreUnavailable):
            await Kernel(fs, 1).open("x", number=number)

    async def open_late() -> None:
        program = Kernel(fs, 2)
        handle = await program.open("x", number=number)
        late.append(await program.read_open(handle))
        await program.close(handle)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(fail_to_open)
        await gate.reached.wait()
        clock.jump(fs._config.read_timeout_s - 5)
        nursery.start_soon(open_late)
        await trio.testing.wait_all_tasks_blocked()
        clock.jump(6)

    assert late == [b"data"]


async def test_every_open_sees_the_newest_version_while_another_client_goes_on_writing(
    fs: VolumeFilesystem, memory: MemoryStore, clock: MockClock
) -> None:
    """No error reaches a program, nothing is older than the last put before the open, no mix."""
    versions = 300
    readers = 16
    completed = 0
    await memory.put(X, _version(0))
    number = (await Kernel(fs).lookup("x")).number
    dentry = [number]
    opens = 0

    async def write(done: trio.CancelScope) -> None:
        nonlocal completed
        for version in range(1, versions):
            await memory.put(X, _version(version))
            completed = version
            for _ in range(version % 7):
                await trio.lowlevel.checkpoint()
        done.cancel()

    async def read(thread: int) -> None:
        nonlocal opens
        program = Kernel(fs, thread)
        while True:
            newest = completed
            handle = await program.open("x", number=dentry[0])
            opens += 1
            try:
                data = bytes(await fs.read(handle, 0, MiB))
            except ObjectChanged:
                data = b""
            if data:
                assert data == _version(int(data[:8]))
                assert int(data[:8]) >= newest
            await program.close(handle)
            dentry[0] = (await program.lookup("x")).number

    async with trio.open_nursery() as nursery:
        for thread in range(1, readers + 1):
            nursery.start_soon(read, thread)
        nursery.start_soon(write, nursery.cancel_scope)

    assert opens > readers


def _version(number: int) -> bytes:
    return b"%08d" % number * (number % 5 + 1)


async def test_tickets_leave_nothing_pinned(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore, clock: MockClock
) -> None:
    await memory.put(X, b"old")
    attributes = await program.lookup("x")
    file = fs._superblock.inodes.file(attributes.number)
    await memory.put(X, b"newer")
    with pytest.raises(StaleName):
        await fs.open(attributes.number, intent("r"), program.caller())
    found = fs._superblock.known(fs._superblock.inodes.root, "x")
    assert (file.pins, found.pins) == (1, 1)  # type: ignore[union-attr]

    fs.end_ticket(program.thread)

    assert (file.pins, found.pins) == (0, 0)  # type: ignore[union-attr]
    assert math.isfinite(file.detached_at)


async def test_a_ticket_that_nobody_comes_for_ends_by_itself(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore, clock: MockClock
) -> None:
    """Its thread was killed in the middle of the open."""
    await memory.put(X, b"old")
    number = (await program.lookup("x")).number
    file = fs._superblock.inodes.file(number)
    await memory.put(X, b"newer")
    with pytest.raises(StaleName):
        await fs.open(number, intent("r"), program.caller())
    assert file.pins == 1

    for _ in range(math.ceil(LIFETIME_S / BEAT_S) + 1):
        await trio.testing.wait_all_tasks_blocked()
        clock.jump(BEAT_S)
    await trio.testing.wait_all_tasks_blocked()

    assert file.pins == 0


async def test_a_truncating_open_of_an_inode_that_loses_its_name_again_is_no_error(
    fs: VolumeFilesystem, program: Kernel, other: Kernel, memory: MemoryStore
) -> None:
    """The kernel repeats an open once, also one that has nothing to ask the store."""
    await memory.put(X, b"1")
    old = (await program.lookup("x")).number
    await memory.put(X, b"22")
    assert await other.read_file("x") == b"22"  # `old` has no name any more
    with pytest.raises(StaleName):
        await fs.open(old, intent("w"), program.caller())
    second = (await program.walk("x")).number
    await memory.put(X, b"333")
    assert await other.read_file("x") == b"333"  # nor has `second`

    handle = await fs.open(second, intent("w"), program.caller())
    await fs.write(handle, 0, b"ours")
    await program.close(handle)

    assert await bytes_in(memory, "x") == b"ours"
    assert await program.read_file("x") == b"ours"


async def test_an_open_does_not_go_on_asking_about_an_inode_that_the_kernel_forgot(
    fs: VolumeFilesystem, program: Kernel, other: Kernel, memory: MemoryStore, store: ScriptedStore
) -> None:
    await memory.put(Key("k"), b"old")
    handle = await program.open("k")
    lost = (await program.walk("k")).number
    answer = store.hold("GET", "k")
    refused: list[StaleName] = []

    async def open_lost(kernel: Kernel) -> None:
        try:
            await fs.open(lost, intent("r"), kernel.caller())
        except StaleName as cause:
            refused.append(cause)

    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(open_lost, program)
            await answer.reached.wait()
            await memory.put(Key("k"), b"newer")
            await Kernel(fs, 3000).listdir()
            present = await Kernel(fs, 3000).walk("k")
            nursery.start_soon(open_lost, other)
            await trio.testing.wait_all_tasks_blocked()
            fs.forget(present.number, 2)  # the listing counts as one lookup
            answer.open()
    assert len(refused) == 2
    assert (await program.read_file("k")) == b"newer"
    await fs.release(handle)


@pytest.mark.promise("P2")
@pytest.mark.parametrize("first_gives_up", [True, False])
async def test_an_open_that_waited_behind_another_has_the_bytes_of_what_it_found(
    fs: VolumeFilesystem,
    program: Kernel,
    other: Kernel,
    memory: MemoryStore,
    store: ScriptedStore,
    first_gives_up: bool,
) -> None:
    """Whatever became of the other one, and of the file before the first read."""
    await memory.put(Key("k"), b"old")
    lost = (await program.walk("k")).number
    answers = [store.hold("GET", "k"), store.hold("GET", "k")]
    scope, read = trio.CancelScope(), []

    async def open_first() -> None:
        with scope, suppress(StaleName):
            await fs.open(lost, intent("r"), program.caller())

    async def open_and_read() -> None:
        handle = await other.open("k", number=lost)
        await memory.put(Key("k"), b"newest")
        read.append(await other.read_open(handle))
        await other.close(handle)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(open_first)
        await answers[0].reached.wait()
        await memory.put(Key("k"), b"newer")
        nursery.start_soon(open_and_read)
        await trio.testing.wait_all_tasks_blocked()
        if first_gives_up:
            scope.cancel()
        answers[0].open()
        await trio.testing.wait_all_tasks_blocked()
        fs.end_ticket(program.thread)
        answers[1].open()
    assert read == [b"newer"]
