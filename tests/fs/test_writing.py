"""Writing: what is uploaded, and when."""

import os
import resource
from pathlib import Path

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from tests.fs.kernel import FakeProbe, Kernel, bytes_in, keys_in
from tests.fs.stores import ScriptedStore
from ucfuse.budget import MemoryBudget
from ucfuse.errors import BadHandle, ObjectChanged, OutcomeUnclear, StoreUnavailable
from ucfuse.fs.filesystem import VolumeFilesystem
from ucfuse.metrics import Metrics
from ucfuse.store.memory import MemoryStore
from ucfuse.volume import HandleId, Key, MiB

pytestmark = pytest.mark.timeout(30)

X = Key("x")


def pattern(size: int, seed: int = 1) -> bytes:
    block = bytes((index * seed * 7 + index // 251) % 256 for index in range(65536))
    return (block * (size // len(block) + 1))[:size]


async def test_what_is_written_is_in_the_store_at_close_and_not_before(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore
) -> None:
    handle = await program.begin_file("x", b"hello")
    assert await keys_in(memory) == []

    await fs.flush(handle)

    assert await bytes_in(memory, "x") == b"hello"
    await fs.release(handle)
    assert fs.uncommitted() == []


async def test_only_the_close_of_the_last_descriptor_commits(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore, probe: FakeProbe
) -> None:
    """A child's exec or exit closes its copy: FLUSH comes, the opener still has the file."""
    handle = await program.begin_file("x", b"half")
    probe.still_open[program.thread] = 1
    await fs.flush(handle)
    assert await keys_in(memory) == []

    await fs.write(handle, 4, b"+half")
    probe.still_open[program.thread] = 0
    await program.close(handle)

    assert await bytes_in(memory, "x") == b"half+half"


async def test_where_descriptors_cannot_be_counted_every_close_commits(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore, probe: FakeProbe
) -> None:
    handle = await program.begin_file("x", b"data")
    probe.still_open[program.thread] = None

    await fs.flush(handle)

    assert await bytes_in(memory, "x") == b"data"
    await fs.release(handle)


async def test_two_handles_of_one_process_commit_at_each_ones_own_close(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore, probe: FakeProbe
) -> None:
    one = await program.open("x", "w")
    two = await program.open("x", "r+")
    await fs.write(one, 0, b"one")
    probe.still_open[program.thread] = 1  # that of `two`
    await fs.flush(one)
    assert await bytes_in(memory, "x") == b"one"
    await fs.release(one)

    await fs.write(two, 3, b"two")
    probe.still_open[program.thread] = 0
    await program.close(two)

    assert await bytes_in(memory, "x") == b"onetwo"


async def test_fsync_commits_and_the_close_has_nothing_left_to_do(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore, metrics: Metrics
) -> None:
    handle = await program.begin_file("x", b"data")
    await fs.fsync(handle)
    assert await bytes_in(memory, "x") == b"data"

    await program.close(handle)

    assert metrics.store_requests["PUT"] == 1


async def test_created_but_not_written_is_an_empty_object(
    program: Kernel, memory: MemoryStore
) -> None:
    await program.close(await program.open("x", "w"))

    assert await bytes_in(memory, "x") == b""


async def test_opened_but_not_written_uploads_nothing(
    program: Kernel, memory: MemoryStore, metrics: Metrics
) -> None:
    await memory.put(X, b"data")

    for mode in ("r+", "a"):
        await program.close(await program.open("x", mode))

    assert metrics.store_requests["PUT"] == 0


async def test_truncated_at_open_but_not_written_is_an_empty_object(
    program: Kernel, memory: MemoryStore
) -> None:
    await memory.put(X, b"data")

    await program.close(await program.open("x", "w"))

    assert await bytes_in(memory, "x") == b""
    assert await program.read_file("x") == b""


async def test_append_keeps_what_was_there(program: Kernel, memory: MemoryStore) -> None:
    await memory.put(X, b"hello")

    await program.write_file("x", b" world", "a")

    assert await bytes_in(memory, "x") == b"hello world"
    assert await program.read_file("x") == b"hello world"


async def test_overwriting_the_middle_keeps_the_rest(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore
) -> None:
    data = pattern(3 * MiB)
    await memory.put(X, data)
    handle = await program.open("x", "r+")
    await fs.write(handle, MiB + 5, b"####")
    expected = data[: MiB + 5] + b"####" + data[MiB + 9 :]

    assert await program.read_open(handle) == expected
    await program.close(handle)

    assert await bytes_in(memory, "x") == expected
    assert await program.read_file("x") == expected


async def test_extending_gives_zeros_and_what_was_cut_off_does_not_come_back(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore
) -> None:
    await memory.put(X, b"0123456789")
    handle = await program.open("x", "r+")
    number = (await program.lookup("x")).number

    await fs.set_size(number, 4, handle, program.other_caller())
    await fs.set_size(number, 8, handle, program.other_caller())
    assert await bytes_in(memory, "x") == b"0123456789"  # a handle is open: its close commits
    await program.close(handle)

    assert await bytes_in(memory, "x") == b"0123\0\0\0\0"


@pytest.mark.parametrize("size", [0, 4, 15])
async def test_truncate_by_path_commits_at_once(
    program: Kernel, memory: MemoryStore, staging_dir: Path, size: int
) -> None:
    await memory.put(X, b"0123456789")

    attributes = await program.truncate("x", size)

    assert attributes.size == size
    assert await bytes_in(memory, "x") == b"0123456789"[:size].ljust(size, b"\0")


async def test_truncate_by_path_of_a_file_that_another_client_replaced_cuts_the_newest(
    program: Kernel, memory: MemoryStore, staging_dir: Path
) -> None:
    await memory.put(X, b"0123456789")
    await program.lookup("x")
    await memory.put(X, b"abcdefghij")

    await program.truncate("x", 4)

    assert await bytes_in(memory, "x") == b"abcd"


async def test_a_repeated_truncate_leaves_no_file_for_the_user(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore, staging_dir: Path
) -> None:
    """No byte that a program wrote was in it."""
    await memory.put(X, b"0123456789")
    number = (await program.lookup("x")).number
    await memory.put(X, b"abcdefghij")
    await program.truncate("x", 4)
    fs.forget(number, 100)
    fs.forget((await program.lookup("x")).number, 100)

    assert _staged(staging_dir) == []


async def test_a_mapping_changed_after_the_last_close_is_committed_behind_it(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore
) -> None:
    await memory.put(X, b"0123456789")
    handle = await program.open("x", "r+")
    await fs.flush(handle)
    await fs.write(handle, 0, b"####")
    await fs.release(handle)

    await _until_committed(fs)

    assert await bytes_in(memory, "x") == b"####456789"


async def test_a_mapping_changed_after_the_last_close_does_not_wait_for_readers(
    fs: VolumeFilesystem, program: Kernel, other: Kernel, memory: MemoryStore
) -> None:
    """RELEASE of the last writer commits, however long another program keeps reading."""
    await memory.put(X, b"0123456789")
    reading = await other.open("x")
    handle = await program.open("x", "r+")
    await fs.flush(handle)
    await fs.write(handle, 0, b"####")
    await fs.release(handle)

    await _until_committed(fs)

    assert await bytes_in(memory, "x") == b"####456789"
    await other.close(reading)


async def test_a_removed_file_is_never_uploaded(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore, staging_dir: Path
) -> None:
    handle = await program.begin_file("x", b"data")
    await program.unlink("x")
    assert fs.uncommitted() == []

    await fs.fsync(handle)
    await fs.write(handle, 4, b"more")
    assert await program.read_open(handle) == b"datamore"
    await program.close(handle)

    assert await keys_in(memory) == []
    assert not await program.exists("x")
    assert _staged(staging_dir) == []


async def test_removing_a_file_waits_for_its_running_commit(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore, store: ScriptedStore
) -> None:
    handle = await program.begin_file("x", b"data")

    async with store.hold("PUT", "x").met_by(fs.fsync, handle) as nursery:
        nursery.start_soon(program.unlink, "x")
        await trio.testing.wait_all_tasks_blocked()
    await program.close(handle)

    assert await keys_in(memory) == []
    assert await program.listdir() == []


async def test_removing_a_file_whose_commit_had_an_unclear_end_removes_the_object(
    program: Kernel, memory: MemoryStore, store: ScriptedStore
) -> None:
    store.fail("PUT", OutcomeUnclear("x"), carried_out=True)
    handle = await program.begin_file("x", b"data")
    with pytest.raises(OutcomeUnclear):
        await program.close(handle)

    await program.unlink("x")

    assert await keys_in(memory) == []
    assert not await program.exists("x")


async def test_two_programs_write_one_file(
    fs: VolumeFilesystem, program: Kernel, other: Kernel, memory: MemoryStore
) -> None:
    one = await program.open("x", "w")
    two = await other.open("x", "r+")
    await fs.write(one, 0, b"aaaa")
    await fs.write(two, 4, b"bbbb")
    assert await program.read_open(one) == b"aaaabbbb"
    assert len(fs.uncommitted()) == 1
    await program.close(one)
    assert await bytes_in(memory, "x") == b"aaaabbbb"

    await fs.write(two, 8, b"cc")
    await other.close(two)

    assert await bytes_in(memory, "x") == b"aaaabbbbcc"


async def test_a_write_waits_while_a_commit_runs(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore, store: ScriptedStore
) -> None:
    handle = await program.begin_file("x", b"old")
    written = trio.Event()

    async def write() -> None:
        await fs.write(handle, 0, b"new")
        written.set()

    async with store.hold("PUT", "x").met_by(fs.fsync, handle) as nursery:
        nursery.start_soon(write)
        await trio.testing.wait_all_tasks_blocked()
        assert not written.is_set()

    assert await bytes_in(memory, "x") == b"old"
    await program.close(handle)
    assert await bytes_in(memory, "x") == b"new"


@pytest.mark.parametrize("size", [9 * MiB, 20 * MiB])
async def test_a_large_file_goes_by_multipart(
    program: Kernel, memory: MemoryStore, metrics: Metrics, budget: MemoryBudget, size: int
) -> None:
    data = pattern(size)

    await program.write_file("x", data)

    assert await bytes_in(memory, "x") == data
    assert metrics.store_requests["PUT"] == 0
    assert metrics.store_requests["COMPLETE"] == 1
    assert await program.read_file("x") == data
    assert budget.reserved_bytes == 0


async def test_appending_to_a_large_file_keeps_it(program: Kernel, memory: MemoryStore) -> None:
    data = pattern(20 * MiB)
    await memory.put(X, data)

    await program.write_file("x", b"tail", "a")

    assert await bytes_in(memory, "x") == data + b"tail"


async def test_a_handle_for_reading_cannot_write(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore
) -> None:
    await memory.put(X, b"data")
    handle = await program.open("x")

    with pytest.raises(BadHandle):
        await fs.write(handle, 0, b"x")
    await program.close(handle)
    with pytest.raises(BadHandle):
        await fs.read(handle, 0, 1)


# --- failures --------------------------------------------------------------------------------


async def test_a_store_that_fails_at_close_is_tried_again_at_the_next_close(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore, store: ScriptedStore
) -> None:
    store.fail("PUT", StoreUnavailable("x"))
    handle = await program.begin_file("x", b"data")

    with pytest.raises(StoreUnavailable):
        await program.close(handle)
    (left,) = fs.uncommitted()
    assert (left.path, left.bytes) == ("x", 4)
    assert left.error
    assert await program.read_file("x") == b"data"

    await program.close(await program.open("x", "a"))

    assert await bytes_in(memory, "x") == b"data"
    assert fs.uncommitted() == []


async def test_a_store_that_fails_at_fsync_is_tried_again_at_close(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore, store: ScriptedStore
) -> None:
    await memory.put(X, b"0123456789")
    store.fail("PUT", StoreUnavailable("x"))
    handle = await program.begin_file("x", b"####", "r+")
    with pytest.raises(StoreUnavailable):
        await fs.fsync(handle)

    await program.close(handle)

    assert await bytes_in(memory, "x") == b"####456789"


@pytest.mark.parametrize("mode", ["w", "r+"])
async def test_a_commit_whose_end_was_unclear_is_no_conflict_with_itself(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore, store: ScriptedStore, mode: str
) -> None:
    """The store has our bytes though we never heard of it: the next close must find that out."""
    await memory.put(X, b"0123456789")
    store.fail("PUT", OutcomeUnclear("x"), carried_out=True)
    handle = await program.open("x", mode)
    await fs.write(handle, 0, b"####")
    with pytest.raises(OutcomeUnclear):
        await fs.fsync(handle)

    await program.close(handle)

    assert await bytes_in(memory, "x") == (b"####" if mode == "w" else b"####456789")
    assert fs.uncommitted() == []


async def test_commit_all_commits_what_no_program_is_writing(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore, store: ScriptedStore
) -> None:
    store.fail("PUT", StoreUnavailable("x"))
    with pytest.raises(StoreUnavailable):
        await program.write_file("x", b"data")
    writing = await program.open("y", "w")

    left = await fs.commit_all()

    assert await bytes_in(memory, "x") == b"data"
    assert [each.path for each in left] == ["y"]
    await program.close(writing)


# --- other clients ---------------------------------------------------------------------------


async def test_the_last_writer_of_a_whole_file_wins(program: Kernel, memory: MemoryStore) -> None:
    await memory.put(X, b"base")
    handle = await program.begin_file("x", b"ours")
    await memory.put(X, b"theirs")

    await program.close(handle)

    assert await bytes_in(memory, "x") == b"ours"
    assert await program.read_file("x") == b"ours"


async def test_a_new_file_wins_over_one_put_meanwhile(program: Kernel, memory: MemoryStore) -> None:
    handle = await program.begin_file("x", b"ours")
    await memory.put(X, b"theirs")

    await program.close(handle)

    assert await bytes_in(memory, "x") == b"ours"


@pytest.mark.parametrize("size", [100, 9 * MiB])
async def test_a_replacement_of_a_file_that_was_deleted_meanwhile_is_stored(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore, size: int
) -> None:
    await memory.put(X, b"base")
    handle = await program.open("x", "w")
    data = pattern(size)
    for start in range(0, size, MiB):
        await fs.write(handle, start, data[start : start + MiB])
    await memory.delete(X)

    await program.close(handle)

    assert await bytes_in(memory, "x") == data


@pytest.mark.parametrize("deleted", [False, True])
async def test_an_update_that_lost_is_an_error_and_its_bytes_are_kept(
    fs: VolumeFilesystem,
    program: Kernel,
    other: Kernel,
    memory: MemoryStore,
    staging_dir: Path,
    deleted: bool,
) -> None:
    await memory.put(X, b"0123456789")
    handle = await program.open("x", "r+")
    number = (await program.lookup("x")).number
    await fs.write(handle, 0, b"####")
    if deleted:
        await memory.delete(X)
    else:
        await memory.put(X, b"theirs")

    for _ in range(2):  # for ever
        with pytest.raises(ObjectChanged):
            await fs.fsync(handle)
    with pytest.raises(ObjectChanged):
        await fs.write(handle, 0, b"!")
    with pytest.raises(ObjectChanged):
        await fs.flush(handle)
    assert bytes(await fs.read(handle, 0, 4)) == b"####"
    assert (await fs.getattr(number, program.other_caller())).links == 0
    if deleted:
        assert not await other.exists("x")
    else:
        assert await other.read_file("x") == b"theirs"
    await fs.release(handle)

    assert await bytes_in(memory, "x") == (None if deleted else b"theirs")
    (kept,) = _staged(staging_dir)
    assert kept.read_bytes()[:4] == b"####"
    assert fs.uncommitted() == []


async def test_after_its_first_commit_a_replacement_is_an_update(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore
) -> None:
    handle = await program.begin_file("x", b"ours")
    await fs.fsync(handle)
    await memory.put(X, b"theirs")
    await fs.write(handle, 4, b"+")

    with pytest.raises(ObjectChanged):
        await program.close(handle)

    assert await bytes_in(memory, "x") == b"theirs"


async def test_a_lost_update_can_be_written_anew_by_name(
    program: Kernel, memory: MemoryStore
) -> None:
    await memory.put(X, b"0123456789")
    handle = await program.begin_file("x", b"####", "r+")
    await memory.put(X, b"theirs")
    with pytest.raises(ObjectChanged):
        await program.close(handle)

    await program.write_file("x", b"+", "a")

    assert await bytes_in(memory, "x") == b"theirs+"


async def test_staging_and_budget_are_given_back(
    fs: VolumeFilesystem,
    program: Kernel,
    memory: MemoryStore,
    staging_dir: Path,
    budget: MemoryBudget,
) -> None:
    await program.write_file("x", pattern(2 * MiB))
    number = (await program.lookup("x")).number
    await program.unlink("x")
    fs.forget(number, 100)

    assert _staged(staging_dir) == []
    assert budget.reserved_bytes == 0
    assert fs.open_handles() == 0


async def test_own_commit_learns_the_time_by_one_head(
    program: Kernel, memory: MemoryStore, metrics: Metrics
) -> None:
    await program.write_file("x", b"data")
    before = metrics.store_requests.copy()

    attributes = await program.lookup("x")

    assert (
        sum((metrics.store_requests - before).values()) <= 2
    )  # HEAD, and whether it is a directory
    head = await memory.head(X)
    assert head.info.mtime_s is not None
    assert attributes.mtime_ns == head.info.mtime_s * 1_000_000_000
    before = metrics.store_requests.copy()
    await program.lookup("x")
    assert metrics.store_requests - before == {}


async def test_stat_of_an_open_file_after_its_commit_costs_one_head(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore, metrics: Metrics
) -> None:
    handle = await program.begin_file("x", b"data")
    number = (await program.lookup("x")).number
    await fs.fsync(handle)
    before = metrics.store_requests.copy()

    attributes = await fs.getattr(number, program.other_caller())

    assert metrics.store_requests - before == {"HEAD": 1}
    head = await memory.head(X)
    assert head.info.mtime_s is not None
    assert attributes.mtime_ns == head.info.mtime_s * 1_000_000_000
    await program.close(handle)


async def _until_committed(fs: VolumeFilesystem) -> None:
    with trio.fail_after(5):
        while fs.uncommitted():
            await trio.lowlevel.checkpoint()


def _staged(directory: Path) -> list[Path]:
    return [path for path in directory.glob("session-*/*") if path.name not in ("lock", "journal")]


async def test_a_commit_without_an_answer_ends_in_time(
    fs: VolumeFilesystem,
    program: Kernel,
    memory: MemoryStore,
    store: ScriptedStore,
    clock: MockClock,
) -> None:
    handle = await program.begin_file("x", b"data")
    gate = store.hold("PUT", "x")
    ended = trio.Event()

    async def fail_to_sync() -> None:
        with pytest.raises(StoreUnavailable):
            await fs.fsync(handle)
        ended.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(fail_to_sync)
        await gate.reached.wait()
        clock.jump(301)
        await ended.wait()
    await program.close(handle)

    assert await bytes_in(memory, "x") == b"data"


@pytest.mark.parametrize("what", ["truncate", "mknod"])
async def test_the_kernel_does_not_keep_a_time_that_the_store_has_not_told(
    program: Kernel, memory: MemoryStore, what: str
) -> None:
    """It would change by itself a second later."""
    if what == "truncate":
        await memory.put(X, b"0123456789")
        attributes = await program.truncate("x", 4)
    else:
        attributes = await program.mknod("x")

    told = (await memory.head(X)).info.mtime_s
    assert told is not None
    assert attributes.valid_s == 0 or attributes.mtime_ns == told * 1_000_000_000


async def test_more_files_can_be_written_than_descriptors_may_be_open(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore
) -> None:
    """A copied tree has more files than the usual 1,024 descriptors of a process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    in_use = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (in_use + 50, hard))
    try:
        for index in range(100):
            await program.write_file(f"f{index:03d}", b"data")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert len(await keys_in(memory)) == 100
    assert await program.read_file("f000") == b"data"


@pytest.mark.parametrize("steps", range(12))
async def test_a_reader_that_closes_while_another_program_opens_to_replace_commits_nothing(
    fs: VolumeFilesystem,
    program: Kernel,
    other: Kernel,
    memory: MemoryStore,
    metrics: Metrics,
    steps: int,
) -> None:
    """The empty file between the opening and the first write is nobody's version."""
    await memory.put(X, b"base" * 1000)
    reading = await other.open("x")
    await other.read_open(reading)
    number = (await program.lookup("x")).number
    opened: list[HandleId] = []

    async def open_to_replace() -> None:
        opened.append(await program.open("x", "w", number=number))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(open_to_replace)
        for _ in range(steps):
            await trio.lowlevel.checkpoint()
        await other.close(reading)
    await trio.testing.wait_all_tasks_blocked()
    assert await bytes_in(memory, "x") == b"base" * 1000

    await fs.write(opened[0], 0, b"ours")
    await memory.put(X, b"theirs")
    await program.close(opened[0])
    assert await bytes_in(memory, "x") == b"ours"


async def test_append_to_a_new_file_loses_nothing_that_another_client_put_there(
    program: Kernel, memory: MemoryStore
) -> None:
    handle = await program.begin_file("log", b"ours", "a")
    await memory.put(Key("log"), b"theirs")

    with pytest.raises(ObjectChanged):
        await program.close(handle)

    assert await bytes_in(memory, "log") == b"theirs"


async def test_a_handle_that_emptied_the_file_replaces_though_another_committed_first(
    fs: VolumeFilesystem, program: Kernel, other: Kernel, memory: MemoryStore
) -> None:
    first = await program.open("x", "w")
    second = await other.open("x", "w")
    await fs.write(first, 0, b"first")
    await program.close(first)
    await memory.put(X, b"elsewhere")

    await fs.write(second, 0, b"second")
    await other.close(second)

    assert await bytes_in(memory, "x") == b"second"


@pytest.mark.promise("P28")
@pytest.mark.parametrize("event", ["unlink", "rename over"])
async def test_a_changed_file_keeps_the_bytes_that_nobody_has_read_yet_when_it_loses_its_name(
    program: Kernel, other: Kernel, memory: MemoryStore, event: str
) -> None:
    await memory.put(Key("x"), b"0123456789")
    await memory.put(Key("y"), b"another")
    handle = await program.begin_file("x", b"ab", "r+")
    await (other.unlink("x") if event == "unlink" else other.rename("y", "x"))

    assert await program.read_open(handle) == b"ab23456789"
    await program.close(handle)
    assert await bytes_in(memory, "x") == (None if event == "unlink" else b"another")


@pytest.mark.promise("P18")
@pytest.mark.parametrize("size", [10, 9 * MiB])
async def test_an_update_whose_base_was_deleted_elsewhere_is_a_conflict_and_the_name_is_free(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore, size: int
) -> None:
    """Of a large file the store copies what did not change: it has nothing to copy from."""
    await memory.put(Key("x"), b"o" * size)
    handle = await program.open("x", "a")
    await fs.write(handle, size, b"more")
    await memory.delete(Key("x"))
    with pytest.raises(ObjectChanged):
        await program.close(handle)

    assert fs.uncommitted() == []
    assert not await program.exists("x")
    await program.write_file("x", b"new")
    assert await bytes_in(memory, "x") == b"new"
