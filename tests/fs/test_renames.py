"""Renames: names, bytes and open handles move along, and nothing is lost on the way."""

import pytest
import trio
import trio.testing

from tests.fs.kernel import Kernel, bytes_in, intent, keys_in
from tests.fs.stores import ScriptedStore
from ucfuse.errors import (
    AlreadyExists,
    DirectoryNotEmpty,
    IsADirectory,
    NotADirectory,
    NotFound,
    ObjectChanged,
    StaleName,
    StoreUnavailable,
    VolumeError,
)
from ucfuse.fs.filesystem import VolumeFilesystem
from ucfuse.metrics import Metrics
from ucfuse.names.inodes import ROOT_INODE
from ucfuse.store.memory import MemoryStore
from ucfuse.volume import Key, MiB

pytestmark = pytest.mark.timeout(30)

LARGE = 9 * MiB


async def _write_large(program: Kernel, path: str) -> bytes:
    data = bytes(range(256)) * (LARGE // 256)
    await program.write_file(path, data)
    return data


async def test_a_clean_file_is_copied_in_the_store(
    program: Kernel, memory: MemoryStore, metrics: Metrics
) -> None:
    await memory.put(Key("a"), b"data")
    number = (await program.lookup("a")).number

    await program.rename("a", "b")

    assert await keys_in(memory) == ["b"]
    assert metrics.store_requests["COPY"] == 1
    assert metrics.store_requests["PUT"] == metrics.store_requests["GET"] == 0
    assert (await program.lookup("b")).number == number
    assert not await program.exists("a")
    assert await program.read_file("b") == b"data"


async def test_a_file_that_was_never_sent_is_not_copied(
    program: Kernel, memory: MemoryStore, metrics: Metrics
) -> None:
    handle = await program.begin_file("a", b"data")

    await program.rename("a", "b")
    assert await keys_in(memory) == []
    await program.close(handle)

    assert metrics.store_requests["COPY"] == 0
    assert await keys_in(memory) == ["b"]
    assert await bytes_in(memory, "b") == b"data"


async def test_an_update_under_way_is_committed_first(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore
) -> None:
    await memory.put(Key("a"), b"0123456789")
    handle = await program.begin_file("a", b"####", "r+")

    await program.rename("a", "b")
    assert await bytes_in(memory, "b") == b"####456789"
    await fs.write(handle, 9, b"#")
    await program.close(handle)

    assert await keys_in(memory) == ["b"]
    assert await bytes_in(memory, "b") == b"####45678#"


@pytest.mark.parametrize("dirty", [False, True])
async def test_an_open_target_is_like_a_removed_file(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore, dirty: bool
) -> None:
    await memory.put(Key("a"), b"new")
    await memory.put(Key("b"), b"target")
    handle = await program.open("b", "r+" if dirty else "r")
    number = (await program.lookup("b")).number
    if dirty:
        await fs.write(handle, 0, b"TARGET")

    await program.rename("a", "b")

    assert (await fs.getattr(number, program.other_caller())).links == 0
    assert bytes(await fs.read(handle, 0, 10)).lower() == b"target"
    await program.close(handle)
    assert await bytes_in(memory, "b") == b"new"
    assert await program.read_file("b") == b"new"


async def test_a_new_file_renamed_over_another_and_removed_is_gone(
    program: Kernel, memory: MemoryStore
) -> None:
    await memory.put(Key("b"), b"target")
    handle = await program.begin_file("a", b"new")
    await program.rename("a", "b")

    await program.unlink("b")
    await program.close(handle)

    assert await keys_in(memory) == []
    assert not await program.exists("b")


async def test_a_new_file_renamed_over_another_and_renamed_again_leaves_nothing_there(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore
) -> None:
    await memory.put(Key("b"), b"target")
    handle = await program.begin_file("a", b"new")
    await program.rename("a", "b")
    await program.rename("b", "c")
    await fs.write(handle, 3, b"er")
    await program.close(handle)

    assert await keys_in(memory) == ["c"]
    assert await bytes_in(memory, "c") == b"newer"


async def test_without_replacement_a_taken_name_stays(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore
) -> None:
    await memory.put(Key("a"), b"1")
    await memory.put(Key("b"), b"2")
    with pytest.raises(AlreadyExists):
        await program.rename("a", "b", no_replace=True)

    await memory.put(Key("c"), b"3")  # after the kernel's lookup
    with pytest.raises(AlreadyExists):
        await fs.rename(
            ROOT_INODE, "a", ROOT_INODE, "c", no_replace=True, caller=program.other_caller()
        )
    handle = await program.open("new", "w")
    with pytest.raises(AlreadyExists):
        await program.rename("new", "b", no_replace=True)
    await program.close(handle)
    await program.rename("a", "free", no_replace=True)

    assert await keys_in(memory) == ["b", "c", "free", "new"]
    assert await bytes_in(memory, "c") == b"3"


async def test_a_source_that_was_replaced_elsewhere_is_stale_and_then_renamed_as_it_is(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore
) -> None:
    await memory.put(Key("a"), b"old")
    await program.lookup("a")
    await memory.put(Key("a"), b"newer")
    with pytest.raises(StaleName):
        await program.rename("a", "b")

    await program.rename("a", "b")  # the kernel's second try

    assert await keys_in(memory) == ["b"]
    assert await bytes_in(memory, "b") == b"newer"
    assert await program.read_file("b") == b"newer"


async def test_a_source_that_was_replaced_after_its_copy_is_not_deleted(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore, store: ScriptedStore
) -> None:
    await memory.put(Key("a"), b"old")

    async with store.hold("COPY", "a", answered=True).met_by(program.rename, "a", "b"):
        await memory.put(Key("a"), b"newer")

    assert await bytes_in(memory, "a") == b"newer"
    assert await bytes_in(memory, "b") == b"old"
    assert await program.read_file("a") == b"newer"


async def test_onto_itself_changes_nothing(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore, metrics: Metrics
) -> None:
    await memory.put(Key("a"), b"1")

    await program.rename("a", "a")

    assert metrics.store_requests["COPY"] == metrics.store_requests["DELETE"] == 0
    assert await program.read_file("a") == b"1"


async def test_files_and_directories_do_not_replace_each_other(
    program: Kernel, memory: MemoryStore
) -> None:
    await memory.put(Key("f"), b"1")
    await program.mkdir("d")
    await program.mkdir("full")
    await memory.put(Key("full/x"), b"1")

    with pytest.raises(IsADirectory):
        await program.rename("f", "d")
    with pytest.raises(NotADirectory):
        await program.rename("d", "f")
    with pytest.raises(DirectoryNotEmpty):
        await program.rename("d", "full")
    with pytest.raises(NotFound):
        await program.rename("none", "d")

    assert await keys_in(memory) == ["d/", "f", "full/", "full/x"]


async def test_a_directory_takes_the_place_of_an_empty_one(
    program: Kernel, memory: MemoryStore
) -> None:
    await program.mkdir("d")
    await program.write_file("d/x", b"1")
    await program.mkdir("e")

    await program.rename("d", "e")

    assert await keys_in(memory) == ["e/", "e/x"]
    assert await program.listdir() == ["e"]
    assert await program.listdir("e") == ["x"]


async def test_into_a_directory_that_does_not_know_the_name(
    program: Kernel, memory: MemoryStore
) -> None:
    await memory.put(Key("a"), b"new")
    await memory.put(Key("d/a"), b"old")
    parent = (await program.lookup("d")).number
    await program.lookup("a")

    await program.fs.rename(
        ROOT_INODE, "a", parent, "a", no_replace=False, caller=program.other_caller()
    )

    assert await keys_in(memory) == ["d/a"]
    assert await program.read_file("d/a") == b"new"


async def test_open_dirty_and_known_children_move_with_their_directory(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore
) -> None:
    await memory.put(Key("d/clean"), b"clean" * MiB)
    await memory.put(Key("d/sub/deep"), b"deep")
    reading = await program.open("d/clean")
    writing = await program.begin_file("d/new", b"half")
    numbers = {p: (await program.lookup(f"d/{p}")).number for p in ("clean", "new", "sub/deep")}

    await program.rename("d", "e")

    for path, number in numbers.items():
        assert (await program.lookup(f"e/{path}")).number == number
    assert await program.read_open(reading) == b"clean" * MiB
    await fs.write(writing, 4, b"+half")
    await program.close(writing)
    await program.close(reading)
    assert await keys_in(memory) == ["e/clean", "e/new", "e/sub/deep"]
    assert await bytes_in(memory, "e/new") == b"half+half"
    assert not await program.exists("d")
    assert await program.listdir() == ["e"]


@pytest.mark.parametrize("what", ["file", "directory"])
@pytest.mark.parametrize("kind", ["COPY", "DELETE"])
@pytest.mark.parametrize("answered", [False, True])
async def test_reads_through_an_open_handle_go_on_while_it_is_renamed(
    fs: VolumeFilesystem,
    program: Kernel,
    memory: MemoryStore,
    store: ScriptedStore,
    what: str,
    kind: str,
    answered: bool,
) -> None:
    data = bytes(range(256)) * (4 * MiB // 256)
    await memory.put(Key("d/x"), data)
    handle = await program.open("d/x")
    old, new = ("d/x", "d/y") if what == "file" else ("d", "e")

    async with store.hold(kind, "d/x", answered=answered).met_by(program.rename, old, new):
        assert bytes(await fs.read(handle, 2 * MiB, 4096)) == data[2 * MiB : 2 * MiB + 4096]

    assert bytes(await fs.read(handle, 3 * MiB, 4096)) == data[3 * MiB : 3 * MiB + 4096]
    assert bytes(await fs.read(handle, 0, 4096)) == data[:4096]
    await program.close(handle)


@pytest.mark.parametrize("what", ["file", "directory"])
async def test_what_is_written_during_a_rename_is_committed_under_the_new_name(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore, store: ScriptedStore, what: str
) -> None:
    """The copy of a multipart object has another ETag, which is no other client's version."""
    await program.mkdir("d")
    data = await _write_large(program, "d/x")
    handle = await program.open("d/x", "r+")
    old, new, path = ("d/x", "d/y", "d/y") if what == "file" else ("d", "e", "e/x")

    async with store.hold("COPY", "d/x").met_by(program.rename, old, new):
        with trio.move_on_after(0.2):  # or it waits for the rename
            await fs.write(handle, 0, b"####")
    await fs.write(handle, 0, b"####")
    await program.close(handle)

    assert await bytes_in(memory, path) == b"####" + data[4:]
    assert await program.read_file(path) == b"####" + data[4:]


async def test_a_version_put_elsewhere_is_not_shown_by_an_old_inode_after_a_directory_rename(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore
) -> None:
    """Never a mix: the handle has bytes of the old version, and its cached pages too."""
    await memory.put(Key("d/x"), b"a" * 3 * MiB)
    handle = await program.open("d/x")
    number = (await program.lookup("d/x")).number
    assert bytes(await fs.read(handle, 0, MiB)) == b"a" * MiB
    await memory.put(Key("d/x"), b"b" * 3 * MiB)

    await program.rename("d", "e")

    try:
        later = bytes(await fs.read(handle, 2 * MiB, 4096))
    except ObjectChanged:
        later = b""
    assert later == b""
    assert (await program.lookup("e/x")).number != number
    assert await program.read_file("e/x") == b"b" * 3 * MiB
    await program.close(handle)


@pytest.mark.promise("P27")
@pytest.mark.parametrize("kind", ["COPY", "DELETE"])
@pytest.mark.parametrize("skip", [0, 2, 4])
async def test_an_interrupted_directory_rename_loses_nothing(
    fs: VolumeFilesystem,
    program: Kernel,
    memory: MemoryStore,
    store: ScriptedStore,
    kind: str,
    skip: int,
) -> None:
    names = [f"f{index}" for index in range(5)]
    for name in names:
        await memory.put(Key(f"d/{name}"), name.encode())
    handle = await program.open("d/f3")
    store.fail(kind, StoreUnavailable("d"), skip=skip)

    with pytest.raises(StoreUnavailable):
        await program.rename("d", "e")

    keys = await keys_in(memory)
    for name in names:
        assert f"d/{name}" in keys or f"e/{name}" in keys
    assert await program.read_open(handle) == b"f3"
    await program.close(handle)
    there = "d" if kind == "COPY" else "e"
    assert await program.listdir(there) == names
    for name in names:
        assert await program.read_file(f"{there}/{name}") == name.encode()


@pytest.mark.parametrize("kind", ["COPY", "DELETE"])
async def test_an_interrupted_rename_of_a_file_loses_nothing(
    program: Kernel, memory: MemoryStore, store: ScriptedStore, kind: str
) -> None:
    await memory.put(Key("a"), b"data")
    store.fail(kind, StoreUnavailable("a"))

    with pytest.raises(StoreUnavailable):
        await program.rename("a", "b")

    assert b"data" in (await bytes_in(memory, "a"), await bytes_in(memory, "b"))
    assert await program.exists("a") or await program.exists("b")


async def test_a_rename_whose_commit_fails_keeps_the_bytes_for_the_next_close(
    program: Kernel, memory: MemoryStore, store: ScriptedStore
) -> None:
    await memory.put(Key("a"), b"0123")
    handle = await program.begin_file("a", b"##", "r+")
    store.fail("PUT", StoreUnavailable("a"))

    with pytest.raises(StoreUnavailable):
        await program.rename("a", "b")
    await program.close(handle)

    assert await bytes_in(memory, "a") == b"##23"
    assert await keys_in(memory) == ["a"]


# --- changes below a directory that is being renamed -------------------------------------------


@pytest.mark.parametrize("what", ["exclusive", "create", "mknod", "mkdir", "rmdir", "unlink"])
async def test_what_is_done_below_a_directory_during_its_rename_is_done_under_its_new_name(
    fs: VolumeFilesystem,
    program: Kernel,
    other: Kernel,
    memory: MemoryStore,
    store: ScriptedStore,
    what: str,
) -> None:
    """The kernel lets both go on at once: another directory is locked."""
    await memory.put(Key("d/k"), b"1")
    await memory.put(Key("d/old"), b"1")
    await program.mkdir("d/sub")
    await other.lookup("d/old")
    directory = (await other.lookup("d")).number

    async def act() -> None:
        match what:
            case "exclusive" | "create":
                wanted = intent("w", exclusive=what == "exclusive")
                handle, _ = await fs.create(directory, "x", wanted, other.caller())
                await fs.write(handle, 0, b"data")
                await other.close(handle)
            case "mknod":
                await fs.mknod(directory, "x", other.other_caller())
            case "mkdir":
                await fs.mkdir(directory, "x", other.other_caller())
            case "rmdir":
                await fs.rmdir(directory, "sub", other.other_caller())
            case _:
                await fs.unlink(directory, "old", other.other_caller())

    async with store.hold("COPY", "d/k").met_by(program.rename, "d", "e") as nursery:
        nursery.start_soon(act)
        await trio.testing.wait_all_tasks_blocked()

    added = {"mkdir": "e/x/", "rmdir": None, "unlink": None}.get(what, "e/x")
    removed = {"rmdir": "e/sub/", "unlink": "e/old"}.get(what)
    expected = {"e/k", "e/old", "e/sub/", added} - {removed, None}
    assert set(await keys_in(memory)) == expected
    assert not await program.exists("d")


async def test_a_file_moved_into_a_directory_during_its_rename_arrives_under_its_new_name(
    fs: VolumeFilesystem, program: Kernel, other: Kernel, memory: MemoryStore, store: ScriptedStore
) -> None:
    await memory.put(Key("d/k"), b"1")
    await memory.put(Key("y/x"), b"data")
    target = (await other.lookup("d")).number
    source = (await other.lookup("y")).number
    await other.lookup("y/x")
    stale: list[VolumeError] = []

    async def move() -> None:
        try:
            await fs.rename(source, "x", target, "x", no_replace=False, caller=other.other_caller())
        except StaleName as cause:  # then the kernel tries again
            stale.append(cause)
            await fs.rename(source, "x", target, "x", no_replace=False, caller=other.other_caller())

    async with store.hold("COPY", "d/k").met_by(program.rename, "d", "e") as nursery:
        nursery.start_soon(move)
        await trio.testing.wait_all_tasks_blocked()

    assert set(await keys_in(memory)) == {"e/k", "e/x"}
    assert await program.read_file("e/x") == b"data"


async def test_two_renames_of_one_name_run_one_after_another(
    fs: VolumeFilesystem, program: Kernel, other: Kernel, memory: MemoryStore
) -> None:
    await memory.put(Key("a"), b"data")
    await program.lookup("a")
    outcomes: list[str] = []

    async def rename(who: Kernel, to: str) -> None:
        try:
            await who.rename("a", to)
        except (StaleName, NotFound):
            outcomes.append("gone")
        else:
            outcomes.append(to)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(rename, program, "b")
        nursery.start_soon(rename, other, "c")

    (winner,) = [outcome for outcome in outcomes if outcome != "gone"]
    assert await keys_in(memory) == [winner]


async def test_a_rename_waits_for_a_running_commit(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore, store: ScriptedStore
) -> None:
    handle = await program.begin_file("a", b"data")

    async with store.hold("PUT", "a").met_by(fs.fsync, handle) as nursery:
        nursery.start_soon(program.rename, "a", "b")
        await trio.testing.wait_all_tasks_blocked()
    await program.close(handle)

    assert await keys_in(memory) == ["b"]
    assert await program.read_file("b") == b"data"
