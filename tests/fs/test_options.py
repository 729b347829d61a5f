"""A volume that is read-only, or only a part of its bucket."""

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from tests.fs.kernel import FakeProbe, Kernel, bytes_in, intent, keys_in
from tests.fs.stores import ScriptedStore
from ucfuse.budget import MemoryBudget
from ucfuse.config import MountConfig, Source
from ucfuse.errors import ReadOnlyVolume
from ucfuse.fs.filesystem import VolumeFilesystem
from ucfuse.metrics import Metrics
from ucfuse.names.inodes import ROOT_INODE
from ucfuse.store.memory import MemoryStore
from ucfuse.volume import Key

pytestmark = pytest.mark.timeout(20)


async def test_nothing_can_be_changed_on_a_read_only_volume(
    config: MountConfig,
    store: ScriptedStore,
    memory: MemoryStore,
    probe: FakeProbe,
    budget: MemoryBudget,
) -> None:
    await memory.put(Key("d/x"), b"data")
    read_only = replace(config, read_only=True)
    async with VolumeFilesystem(read_only, store, budget, Metrics(), probe) as fs:
        program = Kernel(fs)
        parent = (await program.lookup("d")).number
        number = (await program.lookup("d/x")).number
        caller = program.other_caller()
        refused: list[Callable[[], Awaitable[object]]] = [
            lambda: fs.open(number, intent("r+"), caller),
            lambda: fs.open(number, intent("w"), caller),
            lambda: fs.create(parent, "new", intent("w"), caller),
            lambda: fs.set_size(number, 0, None, caller),
            lambda: fs.mknod(parent, "new", caller),
            lambda: fs.mkdir(parent, "new", caller),
            lambda: fs.unlink(parent, "x", caller),
            lambda: fs.rmdir(ROOT_INODE, "d", caller),
            lambda: fs.rename(parent, "x", parent, "y", no_replace=False, caller=caller),
        ]
        for request in refused:
            with pytest.raises(ReadOnlyVolume):
                await request()

        assert await program.read_file("d/x") == b"data"
        assert await program.listdir("d") == ["x"]


async def test_a_prefix_is_the_root_and_nothing_outside_is_seen_or_touched(
    config: MountConfig,
    store: ScriptedStore,
    memory: MemoryStore,
    probe: FakeProbe,
    budget: MemoryBudget,
) -> None:
    outside = ["other", "p", "p-x", "q/y"]
    for key in [*outside, "p/a", "p/d/b"]:
        await memory.put(Key(key), key.encode())
    part = replace(config, source=Source("bucket", "p/"))
    async with VolumeFilesystem(part, store, budget, Metrics(), probe) as fs:
        program = Kernel(fs)
        assert sorted(await program.listdir()) == ["a", "d"]
        assert await program.read_file("d/b") == b"p/d/b"
        await program.write_file("new", b"data")
        await program.rename("d", "e")
        await program.mkdir("made")
        await program.unlink("a")

    assert await keys_in(memory) == sorted([*outside, "p/e/b", "p/made/", "p/new"])
    assert await bytes_in(memory, "p/new") == b"data"
