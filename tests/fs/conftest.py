"""A volume on the memory store, without FUSE: what the file system itself promises."""

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from trio.testing import MockClock

from tests.fs.kernel import FakeProbe, Kernel
from tests.fs.stores import ScriptedStore
from ucfuse.budget import MemoryBudget
from ucfuse.config import MountConfig, Source
from ucfuse.fs.filesystem import VolumeFilesystem
from ucfuse.metrics import Metrics
from ucfuse.store.memory import MemoryStore
from ucfuse.store.metered import MeteredStore
from ucfuse.volume import MiB


@pytest.fixture
def config(tmp_path: Path) -> MountConfig:
    return MountConfig(
        source=Source("bucket"),
        mountpoint=tmp_path / "mnt",
        uid=os.getuid(),
        gid=os.getgid(),
        state_dir=tmp_path / "state",
        memory_limit_bytes=64 * MiB,
    )


@pytest.fixture
def clock() -> MockClock:
    """A clock that can be put forward. A test has it by asking for it itself.

    It runs, since the order of events is told by time, but slowly: a machine under load must not
    let names expire in mid-test.
    """
    return MockClock(rate=0.05)


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def memory() -> MemoryStore:
    """The bucket itself, for the other client of a test."""
    return MemoryStore()


@pytest.fixture
def store(memory: MemoryStore) -> ScriptedStore:
    """The same bucket as the mount sees it: requests can be held up or made to fail."""
    return ScriptedStore(memory)


@pytest.fixture
def probe() -> FakeProbe:
    return FakeProbe()


@pytest.fixture
def budget(config: MountConfig) -> MemoryBudget:
    return MemoryBudget(config.memory_limit_bytes)


@pytest.fixture
def staging_dir(config: MountConfig) -> Path:
    return config.state_dir / "staging"


@pytest.fixture
def metered(store: ScriptedStore, metrics: Metrics) -> MeteredStore:
    return MeteredStore(store, metrics)


@pytest.fixture
def parts() -> dict[str, Any]:
    """What a file system has only in some tests, by the name of its argument."""
    return {}


@pytest.fixture
async def fs(
    config: MountConfig,
    metered: MeteredStore,
    budget: MemoryBudget,
    metrics: Metrics,
    probe: FakeProbe,
    parts: dict[str, Any],
) -> AsyncIterator[VolumeFilesystem]:
    async with VolumeFilesystem(config, metered, budget, metrics, probe, **parts) as filesystem:
        yield filesystem
    assert budget.reserved_bytes == 0


@pytest.fixture
def program(fs: VolumeFilesystem) -> Kernel:
    return Kernel(fs)


@pytest.fixture
def other(fs: VolumeFilesystem) -> Kernel:
    """Another program on the same mount."""
    return Kernel(fs, thread=2000)
