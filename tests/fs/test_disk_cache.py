"""The disk cache behind a volume: opens still ask the store, bytes need not come from it."""

import os
import random
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import trio

from tests.fs.kernel import FakeProbe, Kernel
from tests.fs.stores import ScriptedStore
from ucfuse.budget import MemoryBudget
from ucfuse.config import MountConfig
from ucfuse.errors import ConfigError
from ucfuse.fs.filesystem import VolumeFilesystem
from ucfuse.metrics import Metrics
from ucfuse.reading.cache_directory import FOLDER
from ucfuse.store.memory import MemoryStore
from ucfuse.store.metered import MeteredStore
from ucfuse.volume import Key, KiB, MiB

SMALL = random.Random(1).randbytes(150 * KiB)
LARGE = random.Random(2).randbytes(5 * MiB + 77)


@dataclass
class Mounted:
    """One run of a mount with a cache."""

    program: Kernel
    metrics: Metrics
    budget: MemoryBudget

    @property
    def bytes_received(self) -> int:
        return self.metrics.store_bytes_received

    async def settle(self) -> None:
        """Wait until what was read is on the disk."""
        with trio.fail_after(30):
            while self.budget.reserved_bytes:
                await trio.to_thread.run_sync(lambda: None)


Run = Callable[[], AbstractAsyncContextManager[Mounted]]


@pytest.fixture
def cache_dir(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def cached_config(config: MountConfig, cache_dir: Path) -> MountConfig:
    return replace(config, disk_cache_bytes=64 * MiB, cache_dir=cache_dir)


@pytest.fixture
def run(cached_config: MountConfig, store: ScriptedStore) -> Run:
    """Start the volume; a second run is what a later mount sees."""

    @asynccontextmanager
    async def start() -> AsyncIterator[Mounted]:
        metrics, budget = Metrics(), MemoryBudget(64 * MiB)
        metered = MeteredStore(store, metrics)
        fs = VolumeFilesystem(cached_config, metered, budget, metrics, FakeProbe())
        async with fs:
            yield Mounted(Kernel(fs), metrics, budget)
        assert budget.reserved_bytes == 0

    return start


def pieces(cache_dir: Path) -> list[Path]:
    return sorted((cache_dir / FOLDER).glob("*.part"))


async def read_once(run: Run, path: str, data: bytes) -> None:
    async with run() as mounted:
        assert await mounted.program.read_file(path) == data
        await mounted.settle()


@pytest.mark.parametrize("data", [SMALL, LARGE, b"x"], ids=["small", "large", "tiny"])
async def test_a_later_mount_receives_no_byte_of_what_was_read(
    run: Run, memory: MemoryStore, data: bytes
) -> None:
    """It asks once whether the version is the newest, and is answered without a body."""
    await memory.put(Key("a"), data)
    await read_once(run, "a", data)

    async with run() as mounted:
        assert await mounted.program.read_file("a") == data

        assert mounted.bytes_received == 0
        assert mounted.metrics.store_requests["GET"] == 1


async def test_open_sees_the_newest_version_though_an_older_one_is_cached(
    run: Run, memory: MemoryStore
) -> None:
    """An open asks the store, cache or not; another version is never mixed in."""
    await memory.put(Key("a"), LARGE)
    await read_once(run, "a", LARGE)
    newer = random.Random(3).randbytes(len(LARGE))
    await memory.put(Key("a"), newer)

    async with run() as mounted:
        assert await mounted.program.read_file("a") == newer


async def test_cached_bytes_of_an_open_file_outlive_its_version(
    run: Run, memory: MemoryStore
) -> None:
    """Who has the file open goes on reading that version, as far as it is at hand."""
    await memory.put(Key("a"), LARGE)
    await read_once(run, "a", LARGE)

    async with run() as mounted, mounted.program.opened("a") as handle:
        await memory.put(Key("a"), b"other")

        assert await mounted.program.read_open(handle) == LARGE


async def test_a_renamed_file_is_read_anew(run: Run, memory: MemoryStore) -> None:
    """A version is that of a key; what comes back is right under the new name too."""
    await memory.put(Key("a"), LARGE)
    async with run() as mounted:
        assert await mounted.program.read_file("a") == LARGE
        await mounted.program.rename("a", "b")
        assert await mounted.program.read_file("b") == LARGE


async def test_what_this_mount_writes_is_never_read_from_the_cache(
    run: Run, memory: MemoryStore
) -> None:
    """Written bytes show at once, over cached ones."""
    await memory.put(Key("a"), LARGE)
    await read_once(run, "a", LARGE)
    async with run() as mounted:
        handle = await mounted.program.open("a", "r+")
        await mounted.program.fs.write(handle, MiB, b"changed")
        changed = LARGE[:MiB] + b"changed" + LARGE[MiB + 7 :]

        assert await mounted.program.read_open(handle) == changed
        await mounted.program.close(handle)
        assert await mounted.program.read_file("a") == changed

    await read_once(run, "a", changed)


async def test_random_bit_flips_are_never_served(
    run: Run, memory: MemoryStore, cache_dir: Path
) -> None:
    """Whatever the disk does to any file of the cache, programs read what the store has."""
    seed = random.randrange(1 << 32)
    rng = random.Random(seed)
    await memory.put(Key("small"), SMALL)
    await memory.put(Key("large"), LARGE)
    for _ in range(30):
        async with run() as mounted:
            for key, data in (("small", SMALL), ("large", LARGE)):
                assert await mounted.program.read_file(key) == data, f"seed {seed}"
            await mounted.settle()
        files = [path for path in (cache_dir / FOLDER).iterdir() if path.stat().st_size]
        for path in rng.choices(files, k=5):
            content = bytearray(path.read_bytes())
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
            path.write_bytes(content)


async def test_damage_costs_a_request_and_no_more(
    run: Run, memory: MemoryStore, cache_dir: Path
) -> None:
    """What was damaged is fetched again, and kept again."""
    await memory.put(Key("a"), LARGE)
    await read_once(run, "a", LARGE)
    for path in pieces(cache_dir):
        os.truncate(path, path.stat().st_size // 2)

    await read_once(run, "a", LARGE)

    async with run() as mounted:
        assert await mounted.program.read_file("a") == LARGE
        assert mounted.bytes_received == 0


async def test_volumes_do_not_mix_in_a_shared_directory(
    cached_config: MountConfig, memory: MemoryStore, run: Run
) -> None:
    """Two stores may hold equal keys and ETags."""
    await memory.put(Key("a"), SMALL)
    await read_once(run, "a", SMALL)
    elsewhere = replace(cached_config, store=replace(cached_config.store, address="https://b"))
    metrics, budget = Metrics(), MemoryBudget(64 * MiB)
    async with VolumeFilesystem(
        elsewhere, MeteredStore(memory, metrics), budget, metrics, FakeProbe()
    ) as fs:
        assert await Kernel(fs).read_file("a") == SMALL

        assert metrics.store_bytes_received == len(SMALL)


async def test_cache_that_cannot_be_used_keeps_the_volume_from_starting(
    cached_config: MountConfig, run: Run, tmp_path: Path
) -> None:
    """With a line that names the directory and the option."""
    (cached_config.cache_dir or tmp_path).touch()

    with pytest.raises(ConfigError, match="--cache-dir"):
        async with run():
            pass
