"""A request that is cancelled leaves no lock, no pin and no memory behind, wherever it was."""

from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing

from tests.fs.kernel import Kernel, bytes_in, intent
from tests.fs.stores import ScriptedStore
from ucfuse.budget import MemoryBudget
from ucfuse.errors import VolumeError
from ucfuse.fs.filesystem import VolumeFilesystem
from ucfuse.names.inodes import ROOT_INODE, File
from ucfuse.store.memory import MemoryStore
from ucfuse.volume import Key, MiB

pytestmark = pytest.mark.timeout(60)

STEPS = 18


async def _cancelled_after(steps: int, work: Callable[[], Awaitable[object]]) -> bool:
    """Run `work`, cancelled after so many turns of the loop; whether it had ended by then."""
    ended = False

    async def run() -> None:
        nonlocal ended
        await work()
        ended = True

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        for _ in range(steps):
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    await trio.testing.wait_all_tasks_blocked()
    return ended


def _files(fs: VolumeFilesystem) -> list[File]:
    nodes = fs._superblock.inodes._by_number.values()
    return [node for node in nodes if isinstance(node, File)]


def _assert_at_rest(fs: VolumeFilesystem, budget: MemoryBudget) -> None:
    """Nothing is held: every pin and bond belongs to uncommitted bytes."""
    for file in _files(fs):
        content = fs._contents.known(file)
        dirty = content is not None and content.is_dirty
        assert (file.path, file.pins, file.bound) == (file.path, dirty, dirty)
        if content is not None:
            assert not content.lock.locked()
    assert fs._services.claims._by_key == {}
    assert fs._services.claims._trees == []
    assert budget.reserved_bytes == 0


@pytest.mark.parametrize("steps", range(STEPS))
@pytest.mark.parametrize("mode", ["r", "a", "w"])
async def test_an_open(
    fs: VolumeFilesystem,
    program: Kernel,
    memory: MemoryStore,
    budget: MemoryBudget,
    steps: int,
    mode: str,
) -> None:
    await memory.put(Key("x"), b"a" * 1000)
    number = (await program.lookup("x")).number
    if steps % 2:
        await memory.put(Key("x"), b"b" * 1000)

    async def open_and_close() -> None:
        handle = await program.open("x", mode, number=number)
        with trio.CancelScope(shield=True):
            await program.close(handle)

    await _cancelled_after(steps, open_and_close)
    fs.end_ticket(program.thread)

    _assert_at_rest(fs, budget)
    assert fs.open_handles() == 0


@pytest.mark.parametrize("steps", range(STEPS))
@pytest.mark.parametrize("what", ["fsync", "flush", "truncate", "read", "write"])
async def test_work_on_an_open_file(
    fs: VolumeFilesystem,
    program: Kernel,
    memory: MemoryStore,
    budget: MemoryBudget,
    steps: int,
    what: str,
) -> None:
    await memory.put(Key("x"), b"a" * 2 * MiB)
    handle = await program.open("x", "r+")
    number = (await program.lookup("x")).number
    await fs.write(handle, 5, b"####")
    works: dict[str, Callable[[], Awaitable[object]]] = {
        "fsync": lambda: fs.fsync(handle),
        "flush": lambda: fs.flush(handle),
        "truncate": lambda: fs.set_size(number, 100, None, program.other_caller()),
        "read": lambda: fs.read(handle, MiB, 4096),
        "write": lambda: fs.write(handle, 100, b"!!!!"),
    }

    await _cancelled_after(steps, works[what])
    stored = await bytes_in(memory, "x")
    try:
        await program.close(handle)
    except VolumeError:
        # The request under way was carried out, but nobody heard of it.
        assert stored is not None
        assert stored[5:9] == b"####"

    _assert_at_rest(fs, budget)


@pytest.mark.parametrize("steps", range(STEPS))
@pytest.mark.parametrize(
    "what", ["unlink", "rename", "rename_dir", "mkdir", "rmdir", "mknod", "exclusive", "list"]
)
async def test_work_on_names(
    fs: VolumeFilesystem,
    program: Kernel,
    memory: MemoryStore,
    budget: MemoryBudget,
    steps: int,
    what: str,
) -> None:
    await memory.put(Key("d/x"), b"data")
    await memory.put(Key("e/"), b"")
    parent = (await program.lookup("d")).number
    await program.lookup("d/x")
    await program.lookup("e")
    caller = program.other_caller()

    async def create_exclusively() -> None:
        handle, _ = await fs.create(parent, "new", intent("w", exclusive=True), caller)
        with trio.CancelScope(shield=True):
            await program.close(handle)

    works: dict[str, Callable[[], Awaitable[object]]] = {
        "unlink": lambda: fs.unlink(parent, "x", caller),
        "rename": lambda: fs.rename(parent, "x", ROOT_INODE, "y", no_replace=False, caller=caller),
        "rename_dir": lambda: fs.rename(
            ROOT_INODE, "d", ROOT_INODE, "n", no_replace=False, caller=caller
        ),
        "mkdir": lambda: fs.mkdir(parent, "sub", caller),
        "rmdir": lambda: fs.rmdir(ROOT_INODE, "e", caller),
        "mknod": lambda: fs.mknod(parent, "node", caller),
        "exclusive": create_exclusively,
        "list": lambda: program.listdir("d"),
    }

    await _cancelled_after(steps, works[what])

    _assert_at_rest(fs, budget)
    if what.startswith("rename"):  # wherever it stopped, the bytes are somewhere
        found = [await bytes_in(memory, key) for key in ("d/x", "y", "n/x")]
        assert b"data" in found


async def test_an_open_of_a_changed_file_that_nobody_waits_for_any_more(
    fs: VolumeFilesystem,
    program: Kernel,
    memory: MemoryStore,
    store: ScriptedStore,
    budget: MemoryBudget,
) -> None:
    await memory.put(Key("x"), b"old")
    number = (await program.lookup("x")).number
    await memory.put(Key("x"), b"newer")
    gate = store.hold("GET", answered=True)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(program.open, "x")
        await gate.reached.wait()
        nursery.cancel_scope.cancel()
    gate.open()
    await trio.testing.wait_all_tasks_blocked()

    fs.forget(number, 100)
    assert _files(fs) == []  # neither version of it is kept for anybody
    assert fs.open_handles() == 0
    _assert_at_rest(fs, budget)


async def test_a_claim_that_was_waited_for_is_not_held(
    fs: VolumeFilesystem,
    program: Kernel,
    other: Kernel,
    memory: MemoryStore,
    store: ScriptedStore,
    budget: MemoryBudget,
) -> None:
    await memory.put(Key("x"), b"data")
    await program.lookup("x")

    async with store.hold("COPY", "x").met_by(program.rename, "x", "y"):
        with trio.move_on_after(0.01):
            await other.unlink("x")

    _assert_at_rest(fs, budget)
    assert await bytes_in(memory, "y") == b"data"
    await other.unlink("y")
    assert await bytes_in(memory, "y") is None


@pytest.mark.parametrize("steps", range(0, 60, 3))
async def test_a_multipart_commit(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore, budget: MemoryBudget, steps: int
) -> None:
    data = bytes(range(256)) * (9 * MiB // 256)
    handle = await program.open("x", "w")
    for start in range(0, len(data), MiB):
        await fs.write(handle, start, data[start : start + MiB])

    await _cancelled_after(steps, lambda: fs.fsync(handle))
    await program.close(handle)

    assert await bytes_in(memory, "x") == data
    _assert_at_rest(fs, budget)
