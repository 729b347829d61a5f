"""Strict modes: what is refused stays refused up to the close, and nothing half-written is stored.

In posix mode the same operations are noted, and done.
"""

from dataclasses import replace

import pytest

from tests.fs.kernel import FakeProbe, Kernel, bytes_in, keys_in
from ucfuse.budget import MemoryBudget
from ucfuse.config import MountConfig
from ucfuse.errors import AccessDenied, NotPermitted, NotPortable, ReadOnlyVolume
from ucfuse.fs.filesystem import VolumeFilesystem
from ucfuse.fs.portability_log import Portability
from ucfuse.metrics import Metrics
from ucfuse.portability import Emulation, Operation
from ucfuse.store.memory import MemoryStore
from ucfuse.volume import HandleId, Key, MiB

pytestmark = pytest.mark.timeout(30)


@pytest.fixture
def emulation() -> Emulation:
    return Emulation.DATABRICKS


@pytest.fixture
def config(config: MountConfig, emulation: Emulation) -> MountConfig:
    return replace(config, emulation=emulation)


def operations(fs: VolumeFilesystem) -> list[Operation]:
    policy: Portability = fs._portability
    return [met.operation for met in policy.encounters]


async def refused(fs: VolumeFilesystem, handle: HandleId, offset: int) -> Operation:
    with pytest.raises(NotPortable) as refusal:
        await fs.write(handle, offset, b"refused")
    return refusal.value.operation


async def close_refused(fs: VolumeFilesystem, handle: HandleId) -> None:
    with pytest.raises(NotPortable):
        await fs.fsync(handle)
    with pytest.raises(NotPortable):
        await fs.flush(handle)
    await fs.release(handle)


async def test_a_file_written_in_order_is_stored(program: Kernel, memory: MemoryStore) -> None:
    data = bytes(range(256)) * (17 * MiB // 256)
    await program.write_file("a", data)
    await program.write_file("a", b"anew")
    await program.write_file("b", b"", mode="a")
    await program.write_file("b", b"an empty file may be appended to", mode="a")

    assert await bytes_in(memory, "a") == b"anew"
    assert await bytes_in(memory, "b") == b"an empty file may be appended to"


@pytest.mark.promise("P52")
@pytest.mark.parametrize(
    ("offset", "operation"), [(2, Operation.OVERWRITE), (99, Operation.SPARSE)]
)
async def test_a_new_file_that_is_refused_a_write_never_comes_to_be(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore, offset: int, operation: Operation
) -> None:
    handle = await program.begin_file("a", b"0123456789")

    assert await refused(fs, handle, offset) is operation
    assert await refused(fs, handle, 10) is operation  # even where it would go on in order
    assert "--emulate databricks" in str(fs.uncommitted()[0].error)
    await close_refused(fs, handle)

    assert not await program.exists("a")
    assert await keys_in(memory) == []
    assert fs.uncommitted() == []
    await program.write_file("a", b"the next try")
    assert await bytes_in(memory, "a") == b"the next try"


@pytest.mark.promise("P52")
async def test_a_file_that_was_replaced_keeps_its_version_when_a_write_is_refused(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore
) -> None:
    await memory.put(Key("a"), b"before")
    handle = await program.begin_file("a", b"0123456789")
    await refused(fs, handle, 0)
    await close_refused(fs, handle)

    assert await program.read_file("a") == b"before"
    assert await bytes_in(memory, "a") == b"before"


async def test_a_reader_keeps_what_it_has_open_and_others_see_the_version_before(
    fs: VolumeFilesystem, program: Kernel, other: Kernel, memory: MemoryStore
) -> None:
    await memory.put(Key("a"), b"before")
    handle = await program.begin_file("a", b"0123456789")
    async with other.opened("a") as reading:
        await refused(fs, handle, 0)
        await close_refused(fs, handle)

        assert await other.read_file("a") == b"before"
        assert bytes(await fs.read(reading, 0, 99)) == b"0123456789"


async def test_a_large_file_leaves_no_upload_behind(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore
) -> None:
    handle = await program.open("a", "w")
    for part in range(20):
        await fs.write(handle, part * MiB, bytes(MiB))
    await refused(fs, handle, 0)
    await close_refused(fs, handle)

    assert not await program.exists("a")
    assert await keys_in(memory) == []


@pytest.mark.promise("P52")
async def test_bytes_that_are_stored_are_not_changed_in_place(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore
) -> None:
    await memory.put(Key("a"), b"before")
    for offset, operation in (
        (0, Operation.OVERWRITE),
        (6, Operation.APPEND),
        (7, Operation.SPARSE),
    ):
        handle = await program.open("a", "r+")
        assert await refused(fs, handle, offset) is operation
        await close_refused(fs, handle)
    with pytest.raises(NotPortable):
        await program.open("a", "a")
    for size in (3, 99):
        with pytest.raises(NotPortable):
            await program.truncate("a", size)

    assert await bytes_in(memory, "a") == b"before"
    async with program.opened("a", "r+"):
        pass  # what was not written to may be closed
    await program.truncate("a", 6)
    await program.truncate("a", 0)
    assert await bytes_in(memory, "a") == b""


async def test_a_handle_that_did_nothing_wrong_is_not_held_responsible(
    fs: VolumeFilesystem, program: Kernel, other: Kernel, memory: MemoryStore
) -> None:
    await memory.put(Key("a"), b"before")
    wrong = await other.open("a", "r+")
    handle = await program.begin_file("a", b"0123456789")
    await refused(fs, wrong, 3)
    await close_refused(fs, wrong)

    await program.close(handle)
    assert await bytes_in(memory, "a") == b"0123456789"


async def test_what_fsync_has_stored_before_a_refusal_stays(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore
) -> None:
    handle = await program.begin_file("a", b"0123456789")
    await fs.fsync(handle)
    await fs.write(handle, 10, b"more")
    await refused(fs, handle, 0)
    await close_refused(fs, handle)

    assert await bytes_in(memory, "a") == b"0123456789"
    assert await program.read_file("a") == b"0123456789"


async def test_an_extension_by_a_handle_sticks_to_it(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore
) -> None:
    handle = await program.open("a", "w")
    number = (await program.lookup("a")).number
    with pytest.raises(NotPortable):
        await fs.set_size(number, 4096, handle, program.other_caller())
    assert await refused(fs, handle, 0) is Operation.SPARSE
    await close_refused(fs, handle)

    assert await keys_in(memory) == []


async def test_links_are_refused(fs: VolumeFilesystem, program: Kernel) -> None:
    await program.write_file("a", b"x")
    parent, name = await program.parent("new")
    with pytest.raises(NotPortable):
        await program.link("a", "new")
    with pytest.raises(NotPortable):
        await fs.symlink(parent, name, program.other_caller())


@pytest.mark.parametrize("emulation", [Emulation.POSIX, Emulation.SERVERLESS])
async def test_a_volume_without_the_privilege_is_eacces_in_strict_modes(
    config: MountConfig, memory: MemoryStore, budget: MemoryBudget, emulation: Emulation
) -> None:
    async def forbid() -> None:
        raise ReadOnlyVolume("main.default.images", "no privilege WRITE VOLUME")

    expected = AccessDenied if emulation.is_strict else ReadOnlyVolume
    async with VolumeFilesystem(
        config, memory, budget, Metrics(), FakeProbe(), permit=forbid
    ) as fs:
        with pytest.raises(expected, match="no privilege"):
            await Kernel(fs).write_file("a", b"x")


@pytest.mark.parametrize("emulation", [Emulation.POSIX])
async def test_in_posix_mode_the_same_is_done_and_noted(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore, metrics: Metrics
) -> None:
    handle = await program.begin_file("a", b"0123456789")
    await fs.write(handle, 2, b"xx")
    await fs.write(handle, 10, b"end")
    await fs.write(handle, 15, b"far")
    await program.close(handle)
    await program.write_file("a", b"!", mode="a")
    await program.truncate("a", 3)
    parent, name = await program.parent("new")
    with pytest.raises(NotPermitted):
        await program.link("a", "new")
    with pytest.raises(NotPermitted):
        await fs.symlink(parent, name, program.other_caller())

    assert await bytes_in(memory, "a") == b"01x"
    assert operations(fs) == [
        Operation.OVERWRITE,
        Operation.SPARSE,
        Operation.APPEND,
        Operation.SHORTEN,
        Operation.LINK,
        Operation.SYMLINK,
    ]
    assert {met.count for met in fs._portability.encounters} == {1}
