"""Names: directories, what cannot be a name, and what is shown beside a directory."""

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from tests.fs.kernel import Kernel, bytes_in, intent, keys_in
from tests.fs.stores import ScriptedStore
from ucfuse.errors import (
    AlreadyExists,
    DirectoryNotEmpty,
    IsADirectory,
    NameTooLong,
    NotADirectory,
    NotFound,
    StoreUnavailable,
)
from ucfuse.fs.filesystem import VolumeFilesystem
from ucfuse.metrics import Metrics
from ucfuse.names.inodes import ROOT_INODE
from ucfuse.names.rules import BESIDE_DIRECTORY_SUFFIX
from ucfuse.store.memory import MemoryStore
from ucfuse.volume import Key

pytestmark = pytest.mark.timeout(20)


async def test_a_directory_is_made_by_a_marker(program: Kernel, memory: MemoryStore) -> None:
    attributes = await program.mkdir("d")

    assert attributes.is_directory
    assert await keys_in(memory) == ["d/"]
    assert await program.listdir() == ["d"]
    assert await program.listdir("d") == []


async def test_a_directory_or_file_that_is_there_cannot_be_made(
    program: Kernel, memory: MemoryStore
) -> None:
    await program.mkdir("d")
    await memory.put(Key("f"), b"")
    await program.lookup("f")

    with pytest.raises(AlreadyExists):
        await program.mkdir("d")
    with pytest.raises(AlreadyExists):
        await program.mkdir("f")
    with pytest.raises(AlreadyExists):
        await program.mknod("f")


async def test_a_directory_that_another_client_made_meanwhile_exists(
    program: Kernel, memory: MemoryStore
) -> None:
    await memory.put(Key("d/"), b"")

    with pytest.raises(AlreadyExists):
        await program.mkdir("d")

    assert (await program.lookup("d")).is_directory


async def test_of_two_mkdirs_one_succeeds(
    program: Kernel, other: Kernel, memory: MemoryStore
) -> None:
    outcomes: list[bool] = []

    async def make(who: Kernel) -> None:
        try:
            await who.mkdir("d")
        except AlreadyExists:
            outcomes.append(False)
        else:
            outcomes.append(True)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(make, program)
        nursery.start_soon(make, other)

    assert sorted(outcomes) == [False, True]


async def test_mknod_is_in_the_store_at_once(program: Kernel, memory: MemoryStore) -> None:
    attributes = await program.mknod("x")

    assert attributes.size == 0
    assert await bytes_in(memory, "x") == b""
    with pytest.raises(AlreadyExists):
        await program.mknod("x")


async def test_only_an_empty_directory_can_be_removed(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore
) -> None:
    await program.mkdir("d")
    await memory.put(Key("d/x"), b"")
    with pytest.raises(DirectoryNotEmpty):
        await program.rmdir("d")

    await memory.delete(Key("d/x"))
    handle = await program.open("d/y", "w")
    with pytest.raises(DirectoryNotEmpty):
        await program.rmdir("d")
    await program.unlink("d/y")
    await program.close(handle)
    await program.mkdir("d/e")
    with pytest.raises(DirectoryNotEmpty):
        await program.rmdir("d")

    await program.rmdir("d/e")
    await program.rmdir("d")
    assert await keys_in(memory) == []
    assert not await program.exists("d")


async def test_files_and_directories_are_removed_each_in_its_own_way(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore
) -> None:
    await program.mkdir("d")
    await memory.put(Key("f"), b"")

    with pytest.raises(IsADirectory):
        await program.unlink("d")
    with pytest.raises(NotADirectory):
        await program.rmdir("f")
    with pytest.raises(NotFound):
        await fs.unlink(ROOT_INODE, "none", program.other_caller())


async def test_a_directory_that_was_emptied_here_exists_until_rmdir(
    program: Kernel, memory: MemoryStore, clock: MockClock
) -> None:
    await memory.put(Key("d/e/x"), b"")
    assert await program.listdir("d/e") == ["x"]

    await program.unlink("d/e/x")
    clock.jump(5)

    assert await program.listdir("d/e") == []
    assert await program.listdir() == ["d"]
    await program.rmdir("d/e")
    clock.jump(5)
    assert await program.listdir("d") == []
    await program.rmdir("d")
    assert await program.listdir() == []


async def test_a_directory_with_only_an_uncommitted_file_exists(
    program: Kernel, memory: MemoryStore, clock: MockClock
) -> None:
    await memory.put(Key("d/x"), b"")
    handle = await program.open("d/new", "w")
    await memory.delete(Key("d/x"))
    clock.jump(5)

    assert sorted(await program.listdir()) == ["d"]
    assert await program.listdir("d") == ["new"]
    await program.close(handle)
    assert await bytes_in(memory, "d/new") == b""


async def test_a_file_beside_a_directory_of_its_name_has_another_name(
    program: Kernel, memory: MemoryStore
) -> None:
    await memory.put(Key("a"), b"file")
    await memory.put(Key("a/b"), b"below")
    beside = "a" + BESIDE_DIRECTORY_SUFFIX

    assert sorted(await program.listdir()) == ["a", beside]
    assert (await program.lookup("a")).is_directory
    assert await program.read_file(beside) == b"file"
    assert await program.read_file("a/b") == b"below"


async def test_a_file_beside_a_directory_is_found_without_a_listing(
    program: Kernel, memory: MemoryStore
) -> None:
    await memory.put(Key("a"), b"file")
    await memory.put(Key("a/b"), b"below")

    assert await program.read_file("a" + BESIDE_DIRECTORY_SUFFIX) == b"file"


async def test_a_file_beside_a_directory_stays_when_its_name_expires(
    program: Kernel, memory: MemoryStore, clock: MockClock
) -> None:
    await memory.put(Key("a"), b"file")
    await memory.put(Key("a/b"), b"below")
    beside = "a" + BESIDE_DIRECTORY_SUFFIX
    await program.listdir()
    number = (await program.lookup(beside)).number
    clock.jump(2)

    assert (await program.lookup(beside)).number == number
    assert await program.read_file(beside) == b"file"


async def test_a_file_beside_a_directory_is_written_and_removed_under_its_own_key(
    program: Kernel, memory: MemoryStore
) -> None:
    await memory.put(Key("a"), b"file")
    await memory.put(Key("a/b"), b"below")
    beside = "a" + BESIDE_DIRECTORY_SUFFIX

    await program.write_file(beside, b"changed")
    assert await bytes_in(memory, "a") == b"changed"
    await program.unlink(beside)

    assert await keys_in(memory) == ["a/b"]
    assert await program.listdir() == ["a"]


async def test_a_file_has_its_name_back_when_the_directory_is_gone(
    program: Kernel, memory: MemoryStore, clock: MockClock
) -> None:
    await memory.put(Key("a"), b"file")
    await memory.put(Key("a/b"), b"below")
    await program.listdir()
    await memory.delete(Key("a/b"))
    clock.jump(2)

    assert await program.listdir() == ["a"]
    assert await program.read_file("a") == b"file"


async def test_keys_that_cannot_be_names_are_skipped_and_counted(
    program: Kernel, memory: MemoryStore, metrics: Metrics
) -> None:
    long = "n" * 256
    for key in ("good", ".", "..", "nul\0", long, "d//x", "./y", "../z"):
        await memory.put(Key(key), b"")

    assert sorted(await program.listdir()) == ["d", "good"]
    assert metrics.skipped_keys == 6
    assert await program.listdir("d") == []
    assert metrics.skipped_keys == 7


async def test_names_and_keys_over_the_limits_are_refused(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore
) -> None:
    fits, too_long = "n" * 255, "n" * 256
    await program.write_file(fits, b"x")
    with pytest.raises(NameTooLong):
        await fs.lookup(ROOT_INODE, too_long, program.caller())
    with pytest.raises(NameTooLong):
        await fs.create(ROOT_INODE, "\u00e4" * 128, intent("w"), program.caller())
    path = ""
    for _ in range(4):
        path = f"{path}/{'d' * 250}".lstrip("/")
        await program.mkdir(path)
    with pytest.raises(NameTooLong):
        await program.mkdir(f"{path}/{'e' * 100}")
    assert await bytes_in(memory, fits) == b"x"


async def test_a_directory_whose_marker_would_be_too_long_a_key_is_refused(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore
) -> None:
    """The marker has one byte more than the name."""
    path = "/".join(["d" * 250] * 4)
    await memory.put(Key(path + "/x"), b"")
    name = "e" * (1024 - len(path) - 1)

    with pytest.raises(NameTooLong):
        await program.mkdir(f"{path}/{name}")


async def test_names_are_bytes_not_letters(program: Kernel, memory: MemoryStore) -> None:
    composed, decomposed = "\u00e4", "a\u0308"
    await program.write_file(composed, b"1")
    await program.write_file(decomposed, b"2")

    assert await bytes_in(memory, composed) == b"1"
    assert await bytes_in(memory, decomposed) == b"2"
    assert sorted(await program.listdir()) == sorted([composed, decomposed])


async def test_a_file_is_no_directory(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore
) -> None:
    await memory.put(Key("f"), b"")
    with pytest.raises(NotADirectory):
        await program.lookup("f/x")
    await program.mkdir("d")
    with pytest.raises(IsADirectory):
        await program.open("d")


async def test_a_removal_that_fails_keeps_the_name(
    program: Kernel, memory: MemoryStore, store: ScriptedStore
) -> None:
    await memory.put(Key("x"), b"1")
    await program.mkdir("d")
    store.fail("DELETE", StoreUnavailable("x"))
    store.fail("DELETE", StoreUnavailable("d/"), "d/")

    with pytest.raises(StoreUnavailable):
        await program.unlink("x")
    with pytest.raises(StoreUnavailable):
        await program.rmdir("d")

    assert await program.read_file("x") == b"1"
    assert sorted(await program.listdir()) == ["d", "x"]


async def test_a_name_that_was_removed_can_be_made_again_at_once(
    program: Kernel, memory: MemoryStore
) -> None:
    await program.write_file("x", b"1")
    await program.unlink("x")
    await program.mkdir("x")
    await program.rmdir("x")
    await program.write_file("x", b"2")

    assert await program.read_file("x") == b"2"
    assert await keys_in(memory) == ["x"]


async def test_opening_a_name_that_only_a_listing_knows_gives_a_living_inode(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore
) -> None:
    """The kernel has no reference yet when it asks to create the file."""
    await memory.put(Key("x"), b"1")
    directory = await fs.opendir(ROOT_INODE, program.other_caller())
    assert [entry.name for entry in await fs.readdir(directory, 0)] == ["x"]
    await fs.releasedir(directory)

    handle, attributes = await fs.create(ROOT_INODE, "x", intent("a"), program.caller())

    assert (await fs.getattr(attributes.number, program.other_caller())).size == 1
    await program.close(handle)
