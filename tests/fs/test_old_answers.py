"""Answers that are older than the last local change of a name are not applied to it."""

from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from tests.fs.kernel import Kernel
from tests.fs.stores import ScriptedStore
from ucfuse.errors import StoreUnavailable
from ucfuse.fs.filesystem import VolumeFilesystem
from ucfuse.names.inodes import ROOT_INODE
from ucfuse.store.memory import MemoryStore
from ucfuse.volume import Key

pytestmark = pytest.mark.timeout(20)


async def _while_answer_is_under_way(
    store: ScriptedStore,
    kind: str,
    ask: Callable[[], Awaitable[object]],
    change: Callable[[], Awaitable[object]],
) -> None:
    """Let `change` happen between the store's answer to `ask` and its arrival."""
    gate = store.hold(kind, answered=True)

    async def asking() -> None:
        await ask()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(asking)
        await gate.reached.wait()
        await change()
        gate.open()


@pytest.fixture
def raw_listing(fs: VolumeFilesystem) -> Callable[[], Awaitable[list[str]]]:
    return lambda: Kernel(fs, thread=3000).listdir()


async def test_an_old_listing_does_not_bring_a_removed_file_back(
    program: Kernel,
    memory: MemoryStore,
    store: ScriptedStore,
    raw_listing: Callable[[], Awaitable[list[str]]],
) -> None:
    await memory.put(Key("x"), b"1")
    await program.lookup("x")

    await _while_answer_is_under_way(store, "LIST", raw_listing, lambda: program.unlink("x"))

    assert not await program.exists("x")
    assert await program.listdir() == []


async def test_an_old_listing_does_not_bring_an_unknown_removed_file_back(
    program: Kernel,
    memory: MemoryStore,
    store: ScriptedStore,
    raw_listing: Callable[[], Awaitable[list[str]]],
) -> None:
    await memory.put(Key("x"), b"1")
    await memory.put(Key("y"), b"1")

    await _while_answer_is_under_way(store, "LIST", raw_listing, lambda: program.unlink("x"))

    assert await program.listdir() == ["y"]


async def test_an_old_listing_does_not_take_a_committed_file_away_or_back(
    program: Kernel,
    memory: MemoryStore,
    store: ScriptedStore,
    raw_listing: Callable[[], Awaitable[list[str]]],
) -> None:
    await memory.put(Key("x"), b"1")
    number = (await program.lookup("x")).number

    async def commit() -> None:
        await program.write_file("x", b"22")
        await program.write_file("new", b"333")

    await _while_answer_is_under_way(store, "LIST", raw_listing, commit)

    attributes = await program.lookup("x")
    assert (attributes.number, attributes.size) == (number, 2)
    assert (await program.lookup("new")).size == 3
    assert sorted(await program.listdir()) == ["new", "x"]


async def test_an_old_listing_does_not_undo_a_rename(
    program: Kernel,
    memory: MemoryStore,
    store: ScriptedStore,
    raw_listing: Callable[[], Awaitable[list[str]]],
) -> None:
    await memory.put(Key("a"), b"1")
    await memory.put(Key("d/k"), b"1")
    number = (await program.lookup("a")).number

    async def rename() -> None:
        await program.rename("a", "b")
        await program.rename("d", "e")

    await _while_answer_is_under_way(store, "LIST", raw_listing, rename)

    assert (await program.lookup("b")).number == number
    assert not await program.exists("a")
    assert not await program.exists("d")
    assert await program.listdir() == ["b", "e"]


@pytest.mark.parametrize("change", ["commit", "unlink", "rename"])
async def test_an_old_head_changes_nothing(
    fs: VolumeFilesystem,
    program: Kernel,
    memory: MemoryStore,
    store: ScriptedStore,
    clock: MockClock,
    change: str,
) -> None:
    await memory.put(Key("x"), b"1")
    number = (await program.lookup("x")).number
    await memory.put(Key("x"), b"333")  # what the HEAD will tell of
    clock.jump(2)

    async def apply() -> None:
        if change == "commit":
            handle = await program.open("x", "w", number=number)
            await fs.write(handle, 0, b"22")
            await program.close(handle)
        elif change == "unlink":
            await fs.unlink(ROOT_INODE, "x", program.other_caller())
        else:
            await program.write_file("y", b"22")
            await fs.rename(
                ROOT_INODE, "y", ROOT_INODE, "x", no_replace=False, caller=program.other_caller()
            )

    asker = Kernel(fs, thread=3000)
    await _while_answer_is_under_way(
        store, "HEAD", lambda: fs.getattr(number, asker.other_caller()), apply
    )

    if change == "unlink":
        assert not await program.exists("x")
    else:
        assert (await program.lookup("x")).size == 2
        assert await program.read_file("x") == b"22"
    if change == "commit":
        assert (await program.lookup("x")).number == number


async def test_an_old_first_get_does_not_revert_a_commit(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore, store: ScriptedStore
) -> None:
    await memory.put(Key("x"), b"1")
    number = (await program.lookup("x")).number
    reader = Kernel(fs, thread=3000)
    seen: list[bytes] = []

    async def read() -> None:
        handle = await reader.open("x", number=number)
        seen.append(await reader.read_open(handle))
        await reader.close(handle)

    await _while_answer_is_under_way(store, "GET", read, lambda: program.write_file("x", b"22"))

    assert seen == [b"22"]
    assert (await program.lookup("x")).number == number
    assert await program.read_file("x") == b"22"


async def test_a_missing_answer_from_before_a_commit_does_not_take_the_name(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore, store: ScriptedStore
) -> None:
    await memory.put(Key("x"), b"1")
    number = (await program.lookup("x")).number
    await memory.delete(Key("x"))
    reader = Kernel(fs, thread=3000)
    seen: list[bytes] = []

    async def read() -> None:
        handle = await reader.open("x", number=number)
        seen.append(await reader.read_open(handle))
        await reader.close(handle)

    await _while_answer_is_under_way(store, "GET", read, lambda: program.write_file("x", b"22"))

    assert seen == [b"22"]
    assert (await program.lookup("x")).number == number


async def test_a_lookup_during_a_rename_does_not_bring_the_old_name_back(
    program: Kernel, other: Kernel, memory: MemoryStore, store: ScriptedStore
) -> None:
    """The source is still in the store while it is deleted; here the file has its new name."""
    await memory.put(Key("a"), b"1")
    gate = store.hold("DELETE", "a")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(program.rename, "a", "b")
        await gate.reached.wait()
        await other.listdir()
        gate.open()

    assert await other.listdir() == ["b"]
    assert not await other.exists("a")


async def test_a_lookup_during_a_directory_rename_does_not_bring_the_old_name_back(
    program: Kernel, other: Kernel, memory: MemoryStore, store: ScriptedStore
) -> None:
    await memory.put(Key("d/a"), b"1")
    gate = store.hold("DELETE", "d/a")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(program.rename, "d", "e")
        await gate.reached.wait()
        await other.listdir()
        gate.open()

    assert await other.listdir() == ["e"]
    assert not await other.exists("d")


async def test_a_file_that_is_committed_while_a_listing_runs_is_in_the_listing(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore, store: ScriptedStore
) -> None:
    """It was there before the listing began and is there after it."""
    await memory.put(Key("a"), b"1")
    handle = await program.open("x", "w")
    await fs.write(handle, 0, b"data")
    listed: list[list[str]] = []

    async def ask() -> None:
        listed.append(await Kernel(fs, thread=3000).listdir())

    await _while_answer_is_under_way(store, "LIST", ask, lambda: program.close(handle))

    assert listed == [["a", "x"]]


@pytest.mark.promise("P24")
async def test_a_failed_page_removes_no_names(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore, store: ScriptedStore
) -> None:
    for index in range(1500):
        await memory.put(Key(f"f{index:04d}"), b"")
    assert len(await program.listdir()) == 1500
    number = (await program.lookup("f1400")).number
    fs._superblock.inodes.root.listed_at = float("-inf")
    store.fail("LIST", StoreUnavailable(""), skip=1)

    with pytest.raises(StoreUnavailable):
        await program.listdir()

    assert (await program.lookup("f1400")).number == number
    assert len(await program.listdir()) == 1500


async def test_uncommitted_names_are_listed_and_stay(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore
) -> None:
    await memory.put(Key("z"), b"1")
    handle = await program.open("new", "w")
    await fs.write(handle, 0, b"data")

    assert sorted(await program.listdir()) == ["new", "z"]
    assert (await program.lookup("new")).size == 4
    await program.close(handle)
    assert await program.listdir() == ["new", "z"]
