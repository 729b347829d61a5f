"""O_EXCL: the store decides who gets the name, by a placeholder."""

import pytest
import trio
import trio.testing

from tests.fs.kernel import Kernel, bytes_in, intent, keys_in
from tests.fs.stores import ScriptedStore
from ucfuse.errors import AlreadyExists, StaleName, StoreUnavailable
from ucfuse.fs.creations import CREATE_METADATA
from ucfuse.fs.filesystem import VolumeFilesystem
from ucfuse.names.inodes import ROOT_INODE
from ucfuse.store.memory import MemoryStore
from ucfuse.volume import HandleId, Key

pytestmark = pytest.mark.timeout(20)

X = Key("x")


async def test_the_name_is_taken_in_the_store_at_open(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore
) -> None:
    handle = await program.open("x", "w", exclusive=True)

    head = await memory.head(X)
    assert head.info.size == 0
    assert set(head.metadata) == {CREATE_METADATA}
    assert head.metadata[CREATE_METADATA]

    await fs.write(handle, 0, b"data")
    await program.close(handle)
    head = await memory.head(X)
    assert dict(head.metadata) == {}
    assert await bytes_in(memory, "x") == b"data"


async def test_an_exclusive_file_that_is_not_written_is_an_empty_object_without_metadata(
    program: Kernel, memory: MemoryStore
) -> None:
    await program.close(await program.open("x", "w", exclusive=True))

    head = await memory.head(X)
    assert (head.info.size, dict(head.metadata)) == (0, {})


async def test_an_object_put_elsewhere_wins_the_name(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore
) -> None:
    await memory.put(X, b"theirs")

    with pytest.raises(AlreadyExists):  # the kernel's lookup was just before that
        await fs.create(ROOT_INODE, "x", intent("w", exclusive=True), program.caller())

    assert await bytes_in(memory, "x") == b"theirs"
    assert await program.read_file("x") == b"theirs"


async def test_of_two_programs_one_gets_the_name(
    fs: VolumeFilesystem, program: Kernel, other: Kernel, memory: MemoryStore
) -> None:
    outcomes: list[str] = []

    async def create(who: Kernel) -> None:
        try:
            handle, _ = await fs.create(ROOT_INODE, "x", intent("w", exclusive=True), who.caller())
        except AlreadyExists:
            outcomes.append("exists")
        else:
            outcomes.append("created")
            await who.close(handle)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(create, program)
        nursery.start_soon(create, other)

    assert sorted(outcomes) == ["created", "exists"]


async def test_a_lookup_that_sees_the_placeholder_does_not_become_a_second_inode(
    fs: VolumeFilesystem, program: Kernel, other: Kernel, store: ScriptedStore, memory: MemoryStore
) -> None:
    numbers: list[int] = []
    handles: list[int] = []

    async def create() -> None:
        handle, attributes = await fs.create(
            ROOT_INODE, "x", intent("w", exclusive=True), program.caller()
        )
        handles.append(handle)
        numbers.append(attributes.number)

    async with store.hold("PUT", "x", answered=True).met_by(create):
        seen = await other.lookup("x")

    await fs.write(handles[0], 0, b"data")  # type: ignore[arg-type]
    assert (await other.lookup("x")).number == numbers[0]
    assert (await other.lookup("x")).size == 4
    await program.close(handles[0])  # type: ignore[arg-type]
    assert (await fs.getattr(seen.number, other.other_caller())).size in (0, 4)
    assert await other.read_file("x") == b"data"


async def test_the_placeholder_goes_with_the_name(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore
) -> None:
    handle = await program.open("x", "w", exclusive=True)
    await fs.write(handle, 0, b"data")

    await program.unlink("x")

    assert await keys_in(memory) == []
    await program.close(handle)
    assert await keys_in(memory) == []


async def test_what_another_client_put_over_the_placeholder_is_not_removed_with_it(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore
) -> None:
    handle = await program.open("x", "w", exclusive=True)
    await memory.put(X, b"theirs")

    await program.unlink("x")
    await program.close(handle)

    assert await bytes_in(memory, "x") == b"theirs"


async def test_the_placeholder_goes_when_the_file_is_renamed(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore
) -> None:
    """mkstemp, write, rename: how programs replace a file."""
    await memory.put(Key("y"), b"old")
    handle = await program.open("x", "w", exclusive=True)
    await fs.write(handle, 0, b"data")

    await program.rename("x", "y")

    assert await keys_in(memory) == ["y"]
    await program.close(handle)
    assert await keys_in(memory) == ["y"]
    assert await bytes_in(memory, "y") == b"data"


async def test_a_placeholder_that_cannot_be_put_leaves_no_name(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore, store: ScriptedStore
) -> None:
    store.fail("PUT", StoreUnavailable("x"))

    with pytest.raises(StoreUnavailable):
        await program.open("x", "w", exclusive=True)

    assert not await program.exists("x")
    assert fs.open_handles() == 0
    assert fs.uncommitted() == []


async def test_a_placeholder_that_cannot_be_removed_is_still_removed_with_the_name_later(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore, store: ScriptedStore
) -> None:
    handle = await program.open("x", "w", exclusive=True)
    store.fail("DELETE", StoreUnavailable("x"))
    with pytest.raises(StoreUnavailable):
        await program.unlink("x")
    assert await program.exists("x")

    await program.unlink("x")

    assert await keys_in(memory) == []
    await program.close(handle)
    assert await keys_in(memory) == []


async def begin_and_fail_to_rename(program: Kernel, store: ScriptedStore) -> HandleId:
    """Begin `x` exclusively; a rename to `y` cannot remove its placeholder."""
    handle = await program.open("x", "w", exclusive=True)
    await program.fs.write(handle, 0, b"data")
    store.fail("DELETE", StoreUnavailable("x"))
    with pytest.raises(StoreUnavailable):
        await program.rename("x", "y")
    return handle


async def test_an_exclusive_file_whose_placeholder_could_not_be_removed_is_committed_at_close(
    program: Kernel, memory: MemoryStore, store: ScriptedStore
) -> None:
    handle = await begin_and_fail_to_rename(program, store)

    await program.close(handle)

    assert await bytes_in(memory, "x") == b"data"
    assert await bytes_in(memory, "y") is None


async def test_a_rename_that_could_not_remove_the_placeholder_removes_it_when_tried_again(
    program: Kernel, memory: MemoryStore, store: ScriptedStore
) -> None:
    handle = await begin_and_fail_to_rename(program, store)

    await program.rename("x", "y")
    await program.close(handle)

    assert await keys_in(memory) == ["y"]
    assert await bytes_in(memory, "y") == b"data"


async def test_a_placeholder_that_a_listing_shows_before_its_maker_hears_of_it_is_the_file_made(
    fs: VolumeFilesystem,
    program: Kernel,
    other: Kernel,
    memory: MemoryStore,
    store: ScriptedStore,
) -> None:
    handles = []

    async def create() -> None:
        handles.append(await program.open("x", "w", exclusive=True))

    async with store.hold("PUT", "x", answered=True).met_by(create):
        seen = await other.lookup("x")

    await fs.write(handles[0], 0, b"data")
    await program.close(handles[0])
    assert (await other.lookup("x")).number != seen.number
    with trio.fail_after(1), pytest.raises(StaleName):  # the kernel looks the name up again
        await fs.open(seen.number, intent("r"), other.caller())
    assert await other.read_file("x") == b"data"
    assert await bytes_in(memory, "x") == b"data"


async def test_a_directory_that_a_listing_shows_before_its_maker_hears_of_it_is_one_directory(
    program: Kernel, other: Kernel, memory: MemoryStore, store: ScriptedStore
) -> None:
    async with store.hold("PUT", "d/", answered=True).met_by(program.mkdir, "d"):
        seen = await other.lookup("d")

    assert (await program.lookup("d")).number == seen.number
    await other.write_file("d/x", b"data")
    assert await program.read_file("d/x") == b"data"
