"""`--freshness`: what was validated a moment ago is used, and files in order are fetched ahead."""

from dataclasses import replace

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from tests.fs.kernel import Kernel
from tests.fs.stores import ScriptedStore
from ucfuse.budget import MemoryBudget
from ucfuse.config import MountConfig
from ucfuse.metrics import Metrics
from ucfuse.store.memory import MemoryStore
from ucfuse.volume import Key, MiB

pytestmark = pytest.mark.timeout(20)

FRESHNESS_S = 10.0
X = Key("x")


@pytest.fixture
def config(config: MountConfig) -> MountConfig:
    return replace(config, freshness_s=FRESHNESS_S, metadata_ttl_s=300.0)


async def make_files(memory: MemoryStore, program: Kernel, count: int, size: int = 10) -> list[str]:
    """Make and list files; return their names in order."""
    for number in range(count):
        await memory.put(Key(f"d/{number:03d}"), b"%d" % (number % 10) * size)
    assert len(await program.listdir("d")) == count
    return [f"d/{number:03d}" for number in range(count)]


async def test_a_file_read_a_moment_ago_is_opened_without_asking(
    program: Kernel, memory: MemoryStore, metrics: Metrics, clock: MockClock
) -> None:
    await memory.put(X, b"old")
    assert await program.read_file("x") == b"old"
    before = metrics.store_requests.copy()
    await memory.put(X, b"new")

    await program.close(await program.open("x"))
    assert metrics.store_requests == before

    clock.jump(FRESHNESS_S + 1)
    assert await program.read_file("x") == b"new"


async def test_bytes_that_are_not_at_hand_are_asked_for_whatever_the_age(
    program: Kernel, memory: MemoryStore
) -> None:
    """Else the read would find another version, and fail."""
    await memory.put(X, b"old")
    await program.lookup("x")
    await memory.put(X, b"new")
    assert await program.read_file("x") == b"new"


async def test_an_open_for_writing_asks_whatever_the_age(
    program: Kernel, memory: MemoryStore, metrics: Metrics
) -> None:
    await memory.put(X, b"old")
    assert await program.read_file("x") == b"old"
    before = metrics.store_requests["HEAD"]
    await program.close(await program.open("x", "r+"))
    assert metrics.store_requests["HEAD"] == before + 1


async def test_files_opened_in_order_are_there_before_their_open(
    program: Kernel, memory: MemoryStore, store: ScriptedStore, metrics: Metrics
) -> None:
    names = await make_files(memory, program, 100)
    for name in names[:4]:
        await program.read_file(name)
    await trio.testing.wait_all_tasks_blocked()
    asked = metrics.store_requests["GET"]
    assert 4 < asked < 100

    gate = store.hold("GET", names[4])  # it was asked for already: nobody will come here
    assert await program.read_file(names[4]) == b"4" * 10
    assert not gate.reached.is_set()
    for name in names[5:]:
        await program.read_file(name)
        await trio.testing.wait_all_tasks_blocked()
    assert metrics.store_requests["GET"] == 100, "each was asked for once"


async def test_an_open_waits_for_the_fetch_that_is_under_way(
    program: Kernel, memory: MemoryStore, store: ScriptedStore, metrics: Metrics
) -> None:
    names = await make_files(memory, program, 5)
    gate = store.hold("GET", names[4])
    for name in names[:4]:
        await program.read_file(name)
    with trio.fail_after(10):
        await gate.reached.wait()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(program.read_file, names[4])
        await trio.testing.wait_all_tasks_blocked()
        gate.open()
    assert metrics.store_requests["GET"] == 5


async def test_without_an_order_nothing_is_fetched_ahead(
    program: Kernel, memory: MemoryStore, metrics: Metrics
) -> None:
    names = await make_files(memory, program, 200)
    for number in (150, 20, 90, 199, 50, 0, 120):
        await program.read_file(names[number])
    await trio.testing.wait_all_tasks_blocked()
    assert metrics.store_requests["GET"] == 7


async def test_workers_that_take_turns_are_in_order_together(
    program: Kernel, other: Kernel, memory: MemoryStore, metrics: Metrics
) -> None:
    names = await make_files(memory, program, 60)
    for first, second in zip(names[0:20:2], names[1:20:2], strict=True):
        await other.read_file(second)
        await program.read_file(first)
    await trio.testing.wait_all_tasks_blocked()
    assert metrics.store_requests["GET"] > 20


async def test_what_is_held_is_bounded_and_given_back_when_it_is_no_longer_fresh(
    program: Kernel, memory: MemoryStore, budget: MemoryBudget, clock: MockClock
) -> None:
    names = await make_files(memory, program, 40, size=MiB)
    for name in names[:12]:
        await program.read_file(name)
        await trio.testing.wait_all_tasks_blocked()
        assert budget.reserved_bytes <= budget.limit_bytes // 4
    assert budget.reserved_bytes > 4 * MiB
    clock.jump(FRESHNESS_S + 1)
    await trio.testing.wait_all_tasks_blocked()
    assert budget.reserved_bytes == 0


async def test_a_version_that_came_before_the_fetch_is_the_one_that_is_read(
    program: Kernel, memory: MemoryStore
) -> None:
    names = await make_files(memory, program, 8)
    await memory.put(Key(names[5]), b"newer")
    for name in names[:5]:
        await program.read_file(name)
    await trio.testing.wait_all_tasks_blocked()
    assert await program.read_file(names[5]) == b"newer"


async def test_a_file_written_here_after_it_was_fetched_is_read_as_written(
    program: Kernel, memory: MemoryStore
) -> None:
    names = await make_files(memory, program, 8)
    for name in names[:5]:
        await program.read_file(name)
    await trio.testing.wait_all_tasks_blocked()
    await program.write_file(names[5], b"written")
    assert await program.read_file(names[5]) == b"written"


async def test_a_file_that_cannot_be_fetched_ahead_is_asked_for_again_by_its_open(
    program: Kernel, memory: MemoryStore, store: ScriptedStore
) -> None:
    names = await make_files(memory, program, 8)
    await memory.delete(Key(names[5]))
    for name in names[:5]:
        await program.read_file(name)
    await trio.testing.wait_all_tasks_blocked()
    await memory.put(Key(names[5]), b"back")
    assert not await program.exists("nothing")
    assert await program.read_file(names[5]) == b"back"
