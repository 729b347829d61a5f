"""Hard links as conditional copies: one winner, the newest bytes, and two files afterwards."""

from dataclasses import replace
from typing import Any

import pytest

from tests.fs.kernel import FakeProbe, Kernel, bytes_in, keys_in
from tests.fs.stores import ScriptedStore
from ucfuse.budget import MemoryBudget
from ucfuse.config import MountConfig
from ucfuse.errors import AlreadyExists, NotPermitted, ReadOnlyVolume, StoreUnavailable
from ucfuse.fs.filesystem import VolumeFilesystem
from ucfuse.metrics import Metrics
from ucfuse.store.linking import CopyCondition
from ucfuse.store.memory import MemoryStore
from ucfuse.store.metered import MeteredStore
from ucfuse.volume import Key, MiB

pytestmark = pytest.mark.timeout(30)


@pytest.fixture
def ignores_copy_condition() -> bool:
    """Whether the store copies over what has the name."""
    return False


@pytest.fixture
def config(config: MountConfig) -> MountConfig:
    return replace(config, hardlinks_copy=True)


@pytest.fixture
def parts(metered: MeteredStore, ignores_copy_condition: bool) -> dict[str, Any]:
    return {"copy_condition": CopyCondition(metered, "", is_ignored=ignores_copy_condition)}


async def test_a_link_is_a_copy_in_the_store_with_an_inode_of_its_own(
    program: Kernel, memory: MemoryStore, metrics: Metrics
) -> None:
    await memory.put(Key("a"), b"data")

    linked = await program.link("a", "b")

    assert await keys_in(memory) == ["a", "b"]
    assert metrics.store_requests["COPY"] == 1
    assert metrics.store_requests["PUT"] == metrics.store_requests["GET"] == 0
    original = await program.lookup("a")
    assert (linked.links, original.links, linked.size) == (1, 1, 4)
    assert linked.number != original.number
    assert await program.read_file("b") == b"data"


async def test_what_is_written_to_one_does_not_show_in_the_other(program: Kernel) -> None:
    await program.write_file("a", b"same")
    await program.link("a", "b")

    await program.write_file("a", b"new")

    assert await program.read_file("b") == b"same"


@pytest.mark.parametrize("ignores_copy_condition", [False, True])
async def test_a_file_that_is_being_written_is_linked_with_all_bytes_so_far(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore
) -> None:
    async with program.opened("tmp", "w") as handle:
        await fs.write(handle, 0, b"first")
        await program.link("tmp", "b")
        assert await bytes_in(memory, "b") == b"first"
        await fs.write(handle, 5, b" and more")

    assert await bytes_in(memory, "b") == b"first"
    assert await bytes_in(memory, "tmp") == b"first and more"


@pytest.mark.parametrize("ignores_copy_condition", [False, True])
async def test_a_large_dirty_file_is_linked(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore
) -> None:
    data = bytes(range(256)) * (17 * MiB // 256)
    async with program.opened("tmp", "w") as handle:
        for start in range(0, len(data), MiB):
            await fs.write(handle, start, data[start : start + MiB])
        await program.link("tmp", "b")

    assert await bytes_in(memory, "b") == data


@pytest.mark.parametrize("ignores_copy_condition", [False, True])
@pytest.mark.parametrize("data", [b"", b"mine"])
async def test_a_name_that_another_client_took_is_eexist_and_stays(
    program: Kernel, memory: MemoryStore, store: ScriptedStore, data: bytes
) -> None:
    await memory.put(Key("a"), data)
    await memory.put(Key("b"), b"theirs")
    parent, name = await program.parent("b")
    number = (await program.lookup("a")).number

    with pytest.raises(AlreadyExists):
        await program.fs.link(number, parent, name, program.other_caller())

    assert await bytes_in(memory, "b") == b"theirs"
    assert await program.read_file("b") == b"theirs"


async def test_an_empty_file_is_linked(program: Kernel, memory: MemoryStore) -> None:
    await program.write_file("a", b"")

    await program.link("a", "b")

    assert await bytes_in(memory, "b") == b""


async def test_a_name_that_is_not_stored_yet_is_taken(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore
) -> None:
    await memory.put(Key("a"), b"data")
    number = (await program.lookup("a")).number
    async with program.opened("b", "w") as handle:
        await fs.write(handle, 0, b"unsent")
        parent, name = await program.parent("b")
        with pytest.raises(AlreadyExists):
            await fs.link(number, parent, name, program.other_caller())

    assert await bytes_in(memory, "b") == b"unsent"


async def test_the_newest_version_is_linked_when_it_changed_elsewhere(
    program: Kernel, memory: MemoryStore
) -> None:
    await memory.put(Key("a"), b"old")
    await program.lookup("a")
    await memory.put(Key("a"), b"newest")

    await program.link("a", "b")

    assert await bytes_in(memory, "b") == b"newest"


async def test_a_link_whose_answer_is_lost_is_no_loser(
    program: Kernel, memory: MemoryStore, store: ScriptedStore
) -> None:
    await memory.put(Key("a"), b"data")
    store.fail("COPY", StoreUnavailable("a", "cut"))

    with pytest.raises(StoreUnavailable):
        await program.link("a", "b")
    await program.link("a", "b")

    assert await bytes_in(memory, "b") == b"data"


async def test_links_are_refused_unless_asked_for(
    config: MountConfig, memory: MemoryStore, budget: MemoryBudget, metrics: Metrics
) -> None:
    """README, P33: hard links are EPERM; on a read-only volume EROFS."""
    await memory.put(Key("a"), b"data")
    for options, refusal in (({}, NotPermitted), ({"read_only": True}, ReadOnlyVolume)):
        plain = replace(config, hardlinks_copy=False, **options)  # type: ignore[arg-type]
        async with VolumeFilesystem(plain, memory, budget, metrics, FakeProbe()) as fs:
            with pytest.raises(refusal):
                await Kernel(fs).link("a", "b")
