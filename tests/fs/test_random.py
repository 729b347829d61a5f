"""Many programs and another client at once, in random order: no mix, no loss, nothing left held."""

import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from tests.fs.kernel import FakeProbe, Kernel, bytes_in, keys_in
from tests.fs.stores import ScriptedStore
from ucfuse.budget import MemoryBudget
from ucfuse.config import MountConfig
from ucfuse.errors import (
    AlreadyExists,
    NotFound,
    ObjectChanged,
    StaleName,
)
from ucfuse.fs.filesystem import VolumeFilesystem
from ucfuse.metrics import Metrics
from ucfuse.names.inodes import File
from ucfuse.store.memory import MemoryStore
from ucfuse.store.metered import MeteredStore
from ucfuse.volume import Key

pytestmark = pytest.mark.timeout(120)

NAMES = ["a", "b", "c", "d/a", "d/b"]
RUNS = 12
STEPS = 40


@dataclass
class World:
    """One volume, its programs and the other client. A version is one record over and over."""

    fs: VolumeFilesystem
    memory: MemoryStore
    rng: random.Random
    has_other_client: bool
    versions: set[bytes] = field(default_factory=lambda: {b""})
    count: int = 0
    writing: set[str] = field(default_factory=set)
    """Two programs that write one file at once mix their bytes, as anywhere."""

    def new_version(self) -> bytes:
        self.count += 1
        data = b"%08d" % self.count * self.rng.randint(1, 200)
        self.versions.add(data)
        return data

    async def pause(self) -> None:
        for _ in range(self.rng.randrange(6)):
            await trio.lowlevel.checkpoint()

    async def other_client(self) -> None:
        for _ in range(STEPS):
            key = Key(self.rng.choice(NAMES))
            if self.rng.random() < 0.7:
                await self.memory.put(key, self.new_version())
            else:
                await self.memory.delete(key)
            await self.pause()

    async def program(self, thread: int) -> None:
        kernel = Kernel(self.fs, thread)
        for _ in range(STEPS):
            name = self.rng.choice(NAMES)
            try:
                await self._act(kernel, name)
            except (NotFound, AlreadyExists, FileExistsError):
                pass  # another was faster
            except ObjectChanged:
                # A rename commits a file in mid-write; what is written then is an update of that.
                assert self.has_other_client
            await self.pause()

    async def _act(self, kernel: Kernel, name: str) -> None:
        match self.rng.randrange(6):
            case 0 | 1:
                await self._read(kernel, name)
            case 2:
                await self._replace(kernel, name)
            case 3:
                names = await kernel.listdir(self.rng.choice(["", "d"]))
                assert len(names) == len(set(names))
            case 4:
                await _repeated(lambda: kernel.unlink(name))
            case _:
                await _repeated(lambda: kernel.rename(name, self.rng.choice(NAMES)))

    async def _read(self, kernel: Kernel, name: str) -> None:
        handle = await kernel.open(name)
        try:
            # In one piece: a program of this mount may write between two.
            data = bytes(await self.fs.read(handle, 0, 1 << 20))
        except ObjectChanged:
            pass  # replaced while it was read
        else:
            assert data in self.versions
        finally:
            await kernel.close(handle)

    async def _replace(self, kernel: Kernel, name: str) -> None:
        if self.writing:
            return
        self.writing.add(name)
        try:
            await self._write(kernel, name)
        finally:
            self.writing.clear()

    async def _write(self, kernel: Kernel, name: str) -> None:
        data = self.new_version()
        handle = await kernel.open(name, "w", exclusive=self.rng.random() < 0.3)
        middle = len(data) // 16 * 8
        self.versions.add(data[:middle])
        await self.fs.write(handle, 0, data[:middle])
        await self.pause()
        try:
            await self.fs.write(handle, middle, data[middle:])
        finally:
            await kernel.close(handle)


async def _repeated(action: Callable[[], Awaitable[None]]) -> None:
    """The kernel repeats what was answered with ESTALE once; the program does the rest."""
    for _ in range(20):
        with suppress(StaleName):
            await action()
            return


@pytest.mark.parametrize("run", range(RUNS))
async def test_random_work_ends_with_what_the_store_has(
    config: MountConfig, memory: MemoryStore, store: ScriptedStore, clock: MockClock, run: int
) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)  # noqa: T201
    # Time passes, as it always does: what is asked at the moment of a change is asked again.
    clock.rate = 1.0
    budget, probe = MemoryBudget(config.memory_limit_bytes), FakeProbe()
    async with VolumeFilesystem(
        config, MeteredStore(store, Metrics()), budget, Metrics(), probe
    ) as fs:
        world = World(fs, memory, random.Random(seed), has_other_client=run % 2 == 1)
        await memory.put(Key("d/"), b"")
        async with trio.open_nursery() as nursery:
            for thread in range(1, 6):
                nursery.start_soon(world.program, thread)
            if world.has_other_client:
                nursery.start_soon(world.other_client)
        await trio.testing.wait_all_tasks_blocked()
        await _assert_settled(world, clock, budget)
    assert budget.reserved_bytes == 0


async def _assert_settled(world: World, clock: MockClock, budget: MemoryBudget) -> None:
    fs, kernel = world.fs, Kernel(world.fs, 99)
    for thread in range(1, 6):
        fs.end_ticket(thread)
    assert fs.uncommitted() == []
    assert fs.open_handles() == 0
    assert fs._services.claims._by_key == {}
    for node in fs._superblock.inodes._by_number.values():
        if isinstance(node, File):
            assert (node.path, node.pins, node.bound) == (node.path, 0, 0)
    stored = [key for key in await keys_in(world.memory) if key != "d/"]
    clock.jump(5)
    shown = [name for name in await kernel.listdir() if name != "d"]
    shown += [f"d/{name}" for name in await kernel.listdir("d")]
    assert sorted(shown) == sorted(stored)
    for key in stored:
        assert await kernel.read_file(key) == await bytes_in(world.memory, key)
        assert await bytes_in(world.memory, key) in world.versions
