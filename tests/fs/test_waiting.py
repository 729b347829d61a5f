"""What a user sees of a commit that has to wait, and of staging that is full."""

from collections.abc import AsyncIterator
from dataclasses import replace
from random import Random

import pytest
import trio
import trio.testing

from tests.fs.kernel import FakeProbe, Kernel, bytes_in
from tests.fs.stores import ScriptedStore
from ucfuse.budget import MemoryBudget
from ucfuse.config import MountConfig
from ucfuse.errors import AccessDenied, StagingFull, StoreUnavailable, Throttled
from ucfuse.fs.filesystem import VolumeFilesystem
from ucfuse.metrics import Metrics
from ucfuse.store.memory import MemoryStore
from ucfuse.store.metered import MeteredStore
from ucfuse.store.retrying import RetryingStore
from ucfuse.volume import Key, MiB

pytestmark = pytest.mark.timeout(30)


async def test_a_commit_that_waits_says_for_what(
    config: MountConfig, store: ScriptedStore, memory: MemoryStore
) -> None:
    metrics, budget = Metrics(), MemoryBudget(64 * MiB)
    retrying = RetryingStore(MeteredStore(store, metrics), Random(1), metrics.troubles)
    async with VolumeFilesystem(config, retrying, budget, metrics, FakeProbe()) as fs:
        program = Kernel(fs)
        handle = await program.begin_file("x", b"data")
        store.fail("PUT", Throttled("x", "SlowDown"))
        again = store.hold("PUT")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fs.flush, handle)
            await again.reached.wait()
            (waiting,) = fs.uncommitted()
            assert waiting.path == "x"
            assert waiting.error is not None
            assert "SlowDown" in waiting.error
            again.open()
        assert fs.uncommitted() == []
        assert metrics.troubles == {}
        await fs.release(handle)
    assert await bytes_in(memory, "x") == b"data"


async def test_a_part_that_failed_is_answered_at_the_next_write(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore, store: ScriptedStore
) -> None:
    """Programs that write checkpoints may not look at the result of close."""
    handle = await program.open("x", "w")
    store.fail("PART", AccessDenied("x"))
    failed = False
    for start in range(40):
        try:
            await fs.write(handle, start * MiB, b"w" * MiB)
        except AccessDenied:
            failed = True
            await fs.write(handle, start * MiB, b"w" * MiB)
        await trio.testing.wait_all_tasks_blocked(0.001)
    assert failed

    await program.close(handle)

    assert await bytes_in(memory, "x") == b"w" * 40 * MiB


async def test_after_an_outage_at_close_the_next_close_commits(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore, store: ScriptedStore
) -> None:
    handle = await program.open("x", "w")
    for start in range(20):
        await fs.write(handle, start * MiB, b"w" * MiB)
    store.fail("COMPLETE", StoreUnavailable("x"))
    with pytest.raises(StoreUnavailable):
        await fs.flush(handle)
    assert fs.uncommitted()[0].error is not None

    await program.close(handle)

    assert await bytes_in(memory, "x") == b"w" * 20 * MiB
    assert fs.uncommitted() == []


@pytest.fixture
async def small_fs(
    config: MountConfig, memory: MemoryStore
) -> AsyncIterator[tuple[VolumeFilesystem, Kernel]]:
    """A volume that has room for 3 MiB of what is not committed yet."""
    limited = replace(config, staging_limit_bytes=3 * MiB)
    budget = MemoryBudget(64 * MiB)
    async with VolumeFilesystem(limited, memory, budget, Metrics(), FakeProbe()) as fs:
        yield fs, Kernel(fs)


@pytest.mark.promise("P17")
@pytest.mark.parametrize("mend", ["write", "truncate"])
async def test_a_full_staging_is_an_error_of_the_write_and_can_be_made_good(
    small_fs: tuple[VolumeFilesystem, Kernel], memory: MemoryStore, mend: str
) -> None:
    fs, program = small_fs
    await program.write_file("committed", b"c" * 2 * MiB)
    handle = await program.open("x", "w")
    for start in range(3):  # what is committed already gives way
        await fs.write(handle, start * MiB, b"w" * MiB)
    with pytest.raises(StagingFull):
        await fs.write(handle, 3 * MiB, b"w")
    with pytest.raises(StagingFull):
        await fs.fsync(handle)
    number = (await program.lookup("x")).number
    size = MiB if mend == "write" else 3 * MiB
    await fs.set_size(number, size, handle, program.other_caller())
    if mend == "write":
        for start in (1, 2):
            await fs.write(handle, start * MiB, b"w" * MiB)
    await program.close(handle)
    await program.write_file("y", b"y" * 2 * MiB)
    assert await program.read_file("committed") == b"c" * 2 * MiB
    assert await bytes_in(memory, "x") == b"w" * 3 * MiB


@pytest.mark.promise("P17")
@pytest.mark.parametrize("exclusive", [False, True])
async def test_a_file_that_a_full_staging_cut_off_is_neither_stored_nor_in_the_way(
    small_fs: tuple[VolumeFilesystem, Kernel], memory: MemoryStore, exclusive: bool
) -> None:
    """Both the write and the close said so; a short object would pass for the file."""
    fs, program = small_fs
    if not exclusive:
        await memory.put(Key("x"), b"before")
    handle = await program.open("x", "w", exclusive=exclusive)
    for start in range(3):
        await fs.write(handle, start * MiB, b"w" * MiB)
    with pytest.raises(StagingFull):
        await fs.write(handle, 3 * MiB, b"w")
    with pytest.raises(StagingFull):
        await program.close(handle)
    await trio.testing.wait_all_tasks_blocked()

    assert await bytes_in(memory, "x") == (None if exclusive else b"before")
    assert await program.exists("x") is not exclusive
    await program.write_file("y", b"y" * 2 * MiB)
    assert await bytes_in(memory, "y") == b"y" * 2 * MiB


async def test_nothing_of_an_unlinked_file_is_sent_any_more(
    fs: VolumeFilesystem, program: Kernel, metrics: Metrics, memory: MemoryStore
) -> None:
    handle = await program.open("x", "w")
    for start in range(9):
        await fs.write(handle, start * MiB, b"w" * MiB)
    while metrics.store_requests["PART"] < 1:
        await trio.testing.wait_all_tasks_blocked()
    await program.unlink("x")
    for start in range(9, 40):
        await fs.write(handle, start * MiB, b"w" * MiB)
    assert bytes(await fs.read(handle, 39 * MiB, MiB)) == b"w" * MiB
    await program.close(handle)

    while not metrics.store_requests["ABORT"]:
        await trio.testing.wait_all_tasks_blocked()
    assert metrics.store_requests["PART"] == 1
    assert metrics.store_requests["COMPLETE"] == 0
    assert await bytes_in(memory, "x") is None
