"""Bytes of small files go to the kernel with the open: only where nobody can be writing.

A push that comes after a program's write would put the old bytes over it.
"""

from dataclasses import dataclass, field
from typing import Any

import pytest
import trio
import trio.testing

from tests.fs.kernel import Kernel, bytes_in, intent
from tests.fs.stores import ScriptedStore
from ucfuse.budget import MemoryBudget
from ucfuse.errors import StaleName, StoreUnavailable
from ucfuse.metrics import Metrics
from ucfuse.store.api import Buffer
from ucfuse.store.memory import MemoryStore
from ucfuse.volume import InodeNo, Key, MiB

pytestmark = pytest.mark.timeout(20)

X = Key("x")


@dataclass
class FakePageCache:
    """Notes what is pushed; takes nothing while `is_full`."""

    pushed: list[tuple[int, bytes]] = field(default_factory=list)
    is_full: bool = False

    def push(self, number: InodeNo, data: Buffer) -> bool:
        if self.is_full:
            return False
        self.pushed.append((number, bytes(data)))
        return True


@pytest.fixture
def cache() -> FakePageCache:
    return FakePageCache()


@pytest.fixture
def parts(cache: FakePageCache) -> dict[str, Any]:
    return {"page_cache": cache}


async def test_a_small_file_is_pushed_whole_and_no_byte_of_it_stays_here(
    program: Kernel, memory: MemoryStore, cache: FakePageCache, budget: MemoryBudget
) -> None:
    for size in (1, 4096, 150_000, MiB):
        await memory.put(X, b"a" * size)
        async with program.opened("x"):
            assert cache.pushed.pop()[1] == b"a" * size
            assert budget.reserved_bytes == 0


async def test_what_was_pushed_is_not_fetched_again(
    program: Kernel, memory: MemoryStore, cache: FakePageCache, metrics: Metrics
) -> None:
    await memory.put(X, b"a" * 1000)
    for _ in range(3):
        await program.close(await program.open("x"))
    assert len(cache.pushed) == 1
    assert metrics.store_bytes_received == 1000


async def test_empty_and_large_files_are_not_pushed(
    program: Kernel, memory: MemoryStore, cache: FakePageCache
) -> None:
    for size in (0, MiB + 1, 3 * MiB):
        await memory.put(X, b"a" * size)
        assert await program.read_file("x") == b"a" * size
    assert cache.pushed == []


async def test_what_the_kernel_does_not_take_is_read(
    program: Kernel, memory: MemoryStore, cache: FakePageCache
) -> None:
    cache.is_full = True
    await memory.put(X, b"a" * 1000)
    assert await program.read_file("x") == b"a" * 1000


async def test_nothing_is_pushed_while_a_reader_may_wait_for_a_page(
    program: Kernel, other: Kernel, memory: MemoryStore, cache: FakePageCache
) -> None:
    cache.is_full = True
    await memory.put(X, b"a" * 1000)
    async with program.opened("x"):
        cache.is_full = False
        assert await other.read_file("x") == b"a" * 1000
    assert cache.pushed == []


async def test_nothing_is_pushed_while_the_file_is_open_for_writing(
    program: Kernel, other: Kernel, memory: MemoryStore, cache: FakePageCache
) -> None:
    await memory.put(X, b"a" * 1000)
    async with program.opened("x", "r+"):
        await other.close(await other.open("x"))
    assert cache.pushed == []


async def test_nothing_is_pushed_while_an_open_for_writing_is_on_its_way(
    program: Kernel, other: Kernel, memory: MemoryStore, store: ScriptedStore, cache: FakePageCache
) -> None:
    await memory.put(X, b"a" * 1000)
    async with store.hold("GET", answered=True).met_by(other.read_file, "x") as nursery:
        nursery.start_soon(program.write_file, "x", b"b", "r+")
        await trio.testing.wait_all_tasks_blocked()
    assert cache.pushed == []
    assert await bytes_in(memory, "x") == b"b" + b"a" * 999


async def test_bytes_fetched_before_a_write_are_not_pushed_after_it(
    program: Kernel, other: Kernel, memory: MemoryStore, store: ScriptedStore, cache: FakePageCache
) -> None:
    await memory.put(X, b"a" * 1000)
    async with store.hold("GET", answered=True).met_by(other.read_file, "x"):
        await program.write_file("x", b"b" * 10, "w")
    assert (await program.lookup("x")).size == 10
    assert all(data == b"b" * 10 for _, data in cache.pushed)


@pytest.mark.parametrize("size", [0, 10, 2000])
async def test_nothing_is_pushed_while_the_file_is_truncated(
    program: Kernel,
    other: Kernel,
    memory: MemoryStore,
    store: ScriptedStore,
    cache: FakePageCache,
    size: int,
) -> None:
    await memory.put(X, b"a" * 1000)
    async with store.hold("PUT").met_by(program.truncate, "x", size):
        await other.close(await other.open("x"))
    assert cache.pushed == []


async def test_nothing_is_pushed_while_the_file_is_committed(
    program: Kernel, other: Kernel, memory: MemoryStore, store: ScriptedStore, cache: FakePageCache
) -> None:
    await memory.put(X, b"a" * 1000)
    number = (await program.lookup("x")).number
    async with store.hold("PUT").met_by(program.write_file, "x", b"b" * 10):
        await other.close(await other.open("x", number=number))
    assert cache.pushed == []


async def test_nothing_is_pushed_while_the_file_is_renamed(
    program: Kernel, other: Kernel, memory: MemoryStore, store: ScriptedStore, cache: FakePageCache
) -> None:
    await memory.put(X, b"a" * 1000)
    number = (await program.lookup("x")).number
    async with store.hold("COPY").met_by(program.rename, "x", "y"):
        await other.close(await other.open("x", number=number))
    assert cache.pushed == []
    await program.close(await program.open("y"))
    assert [data for _, data in cache.pushed] == [b"a" * 1000]


async def test_an_open_that_is_repeated_has_its_bytes_though_another_open_pushed_them(
    program: Kernel, other: Kernel, memory: MemoryStore, cache: FakePageCache
) -> None:
    """The kernel may drop the file, and with it the pages, before the repeat comes."""
    await memory.put(X, b"a")
    number = (await program.lookup("x")).number
    await memory.put(X, b"b" * 1000)
    with pytest.raises(StaleName):
        await program.fs.open(number, intent("r"), program.caller())

    newer = (await other.lookup("x")).number
    await other.close(await other.open("x", number=newer))
    assert cache.pushed == [(newer, b"b" * 1000)]
    program.fs.forget(newer, 1)
    await memory.put(X, b"c")

    handle = await program._open_once("x", "r", intent("r"), again=True)
    assert cache.pushed == [(newer, b"b" * 1000)] * 2
    await program.close(handle)


async def test_a_version_that_failed_to_commit_is_never_covered_by_the_old_one(
    program: Kernel, other: Kernel, memory: MemoryStore, store: ScriptedStore, cache: FakePageCache
) -> None:
    await memory.put(X, b"a" * 1000)
    store.fail("PUT", StoreUnavailable("x", "away"))
    with pytest.raises(StoreUnavailable):
        await program.write_file("x", b"b" * 10, "w")
    assert await other.read_file("x") == b"b" * 10
    assert cache.pushed == []
