"""Answers that are older than the last local change of a name are not applied to it."""

import pytest
from trio.testing import MockClock

from tests.fs.kernel import Kernel
from tests.fs.stores import ScriptedStore
from ucfuse.errors import StoreUnavailable
from ucfuse.fs.filesystem import VolumeFilesystem
from ucfuse.names.inodes import ROOT_INODE
from ucfuse.store.memory import MemoryStore
from ucfuse.volume import Key

pytestmark = pytest.mark.timeout(20)


async def test_an_old_listing_does_not_bring_a_removed_file_back(
    program: Kernel, other: Kernel, memory: MemoryStore, store: ScriptedStore
) -> None:
    await memory.put(Key("x"), b"1")
    await program.lookup("x")

    async with store.hold("LIST", answered=True).met_by(other.listdir):
        await program.unlink("x")

    assert not await program.exists("x")
    assert await program.listdir() == []


async def test_an_old_listing_does_not_bring_an_unknown_removed_file_back(
    program: Kernel, other: Kernel, memory: MemoryStore, store: ScriptedStore
) -> None:
    await memory.put(Key("x"), b"1")
    await memory.put(Key("y"), b"1")

    async with store.hold("LIST", answered=True).met_by(other.listdir):
        await program.unlink("x")

    assert await program.listdir() == ["y"]


async def test_an_old_listing_does_not_take_a_committed_file_away_or_back(
    program: Kernel, other: Kernel, memory: MemoryStore, store: ScriptedStore
) -> None:
    await memory.put(Key("x"), b"1")
    number = (await program.lookup("x")).number

    async with store.hold("LIST", answered=True).met_by(other.listdir):
        await program.write_file("x", b"22")
        await program.write_file("new", b"333")

    attributes = await program.lookup("x")
    assert (attributes.number, attributes.size) == (number, 2)
    assert (await program.lookup("new")).size == 3
    assert sorted(await program.listdir()) == ["new", "x"]


async def test_an_old_listing_does_not_undo_a_rename(
    program: Kernel, other: Kernel, memory: MemoryStore, store: ScriptedStore
) -> None:
    await memory.put(Key("a"), b"1")
    await memory.put(Key("d/k"), b"1")
    number = (await program.lookup("a")).number

    async with store.hold("LIST", answered=True).met_by(other.listdir):
        await program.rename("a", "b")
        await program.rename("d", "e")

    assert (await program.lookup("b")).number == number
    assert not await program.exists("a")
    assert not await program.exists("d")
    assert await program.listdir() == ["b", "e"]


@pytest.mark.parametrize("change", ["commit", "unlink", "rename"])
async def test_an_old_head_changes_nothing(
    fs: VolumeFilesystem,
    program: Kernel,
    other: Kernel,
    memory: MemoryStore,
    store: ScriptedStore,
    clock: MockClock,
    change: str,
) -> None:
    await memory.put(Key("x"), b"1")
    number = (await program.lookup("x")).number
    await memory.put(Key("x"), b"333")  # what the HEAD will tell of
    clock.jump(2)

    asker = other.other_caller()
    async with store.hold("HEAD", answered=True).met_by(fs.getattr, number, asker):
        caller = program.other_caller()
        if change == "commit":
            handle = await program.open("x", "w", number=number)
            await fs.write(handle, 0, b"22")
            await program.close(handle)
        elif change == "unlink":
            await fs.unlink(ROOT_INODE, "x", caller)
        else:
            await program.write_file("y", b"22")
            await fs.rename(ROOT_INODE, "y", ROOT_INODE, "x", no_replace=False, caller=caller)

    if change == "unlink":
        assert not await program.exists("x")
    else:
        assert (await program.lookup("x")).size == 2
        assert await program.read_file("x") == b"22"
    if change == "commit":
        assert (await program.lookup("x")).number == number


@pytest.mark.parametrize("deleted", [False, True])
async def test_an_old_first_get_does_not_revert_a_commit(
    program: Kernel, other: Kernel, memory: MemoryStore, store: ScriptedStore, deleted: bool
) -> None:
    """Nor does its answer that there is no such file take the name."""
    await memory.put(Key("x"), b"1")
    number = (await program.lookup("x")).number
    if deleted:
        await memory.delete(Key("x"))
    seen: list[bytes] = []

    async def read() -> None:
        handle = await other.open("x", number=number)
        seen.append(await other.read_open(handle))
        await other.close(handle)

    async with store.hold("GET", answered=True).met_by(read):
        await program.write_file("x", b"22")

    assert seen == [b"22"]
    assert (await program.lookup("x")).number == number
    assert await program.read_file("x") == b"22"


@pytest.mark.parametrize(("key", "old", "new"), [("a", "a", "b"), ("d/a", "d", "e")])
async def test_a_lookup_during_a_rename_does_not_bring_the_old_name_back(
    program: Kernel,
    other: Kernel,
    memory: MemoryStore,
    store: ScriptedStore,
    key: str,
    old: str,
    new: str,
) -> None:
    """The source is still in the store while it is deleted; here the file has its new name."""
    await memory.put(Key(key), b"1")

    async with store.hold("DELETE", key).met_by(program.rename, old, new):
        await other.listdir()

    assert await other.listdir() == [new]
    assert not await other.exists(old)


async def test_a_file_that_is_committed_while_a_listing_runs_is_in_the_listing(
    program: Kernel, other: Kernel, memory: MemoryStore, store: ScriptedStore
) -> None:
    """It was there before the listing began and is there after it."""
    await memory.put(Key("a"), b"1")
    handle = await program.begin_file("x", b"data")
    listed: list[list[str]] = []

    async def ask() -> None:
        listed.append(await other.listdir())

    async with store.hold("LIST", answered=True).met_by(ask):
        await program.close(handle)

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


async def test_uncommitted_names_are_listed_and_stay(program: Kernel, memory: MemoryStore) -> None:
    await memory.put(Key("z"), b"1")
    handle = await program.begin_file("new", b"data")

    assert sorted(await program.listdir()) == ["new", "z"]
    assert (await program.lookup("new")).size == 4
    await program.close(handle)
    assert await program.listdir() == ["new", "z"]
