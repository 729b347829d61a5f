"""Renames of what is large, or still being written."""

from pathlib import Path

import pytest

from tests.fs.kernel import Kernel, bytes_in, keys_in
from tests.fs.stores import ScriptedStore
from ucfuse.errors import AccessDenied, ObjectChanged, StoreUnavailable
from ucfuse.fs.copies import Copies
from ucfuse.fs.filesystem import VolumeFilesystem
from ucfuse.metrics import Metrics
from ucfuse.store.memory import MemoryStore
from ucfuse.volume import Key, MiB
from ucfuse.writing.records import Record, Stage, read_log
from ucfuse.writing.session_directory import OWN_NAMES

pytestmark = pytest.mark.timeout(60)

BLOCK = bytes(range(256)) * 4096


async def test_a_directory_takes_files_along_that_are_being_written(
    fs: VolumeFilesystem, program: Kernel, other: Kernel, memory: MemoryStore, metrics: Metrics
) -> None:
    """Nothing half-written appears, under neither name."""
    await program.mkdir("old")
    await program.write_file("old/done", b"done")
    await memory.put(Key("old/base"), b"0123456789")
    small = await program.begin_file("old/small", b"half")
    large = await program.open("old/large", "w")
    for start in range(20):
        await fs.write(large, start * MiB, BLOCK)
    exclusive = await program.open("old/exclusive", "w", exclusive=True)
    await fs.write(exclusive, 0, b"e")
    update = await program.open("old/base", "r+")
    await fs.write(update, 3, b"xxx")

    await other.rename("old", "new")

    assert await keys_in(memory) == ["new/", "new/base", "new/done", "new/exclusive"]
    assert await bytes_in(memory, "new/exclusive") == b""
    assert await bytes_in(memory, "new/base") == b"0123456789"
    await fs.write(small, 4, b"+half")
    await fs.write(large, 20 * MiB, BLOCK)
    for handle in (small, large, exclusive, update):
        await program.close(handle)

    assert await bytes_in(memory, "new/small") == b"half+half"
    assert await bytes_in(memory, "new/large") == BLOCK * 21
    assert await bytes_in(memory, "new/exclusive") == b"e"
    assert await bytes_in(memory, "new/base") == b"012xxx6789"
    assert not [key for key in await keys_in(memory) if key.startswith("old")]
    assert metrics.store_requests["ABORT"] == 1
    assert fs.uncommitted() == []


async def test_a_file_whose_parts_left_is_completed_and_copied(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore, metrics: Metrics
) -> None:
    handle = await program.open("a", "w")
    for start in range(20):
        await fs.write(handle, start * MiB, BLOCK)
    await program.rename("a", "b")
    await fs.write(handle, 20 * MiB, b"tail")
    await program.close(handle)

    assert await keys_in(memory) == ["b"]
    assert await bytes_in(memory, "b") == BLOCK * 20 + b"tail"
    assert metrics.store_requests["COPY"] == 1


@pytest.fixture
def copies(fs: VolumeFilesystem) -> Copies:
    """Copies to which little is much."""
    return Copies(fs._services, limit_bytes=10 * MiB, range_bytes=6 * MiB)


async def test_an_object_above_the_limit_is_copied_in_ranges(
    copies: Copies, memory: MemoryStore, metrics: Metrics
) -> None:
    await memory.put(Key("a"), BLOCK * 20)
    version = (await memory.head(Key("a"))).info

    copied = await copies.copy(version, Key("b"), None)

    assert copied == (await memory.head(Key("b"))).info
    assert await bytes_in(memory, "b") == BLOCK * 20
    assert (metrics.store_requests["PARTCOPY"], metrics.store_requests["COPY"]) == (4, 0)


async def test_a_source_that_changes_during_a_copy_in_ranges_leaves_nothing(
    copies: Copies, memory: MemoryStore, store: ScriptedStore, metrics: Metrics
) -> None:
    await memory.put(Key("a"), BLOCK * 20)
    version = (await memory.head(Key("a"))).info
    store.fail("PARTCOPY", ObjectChanged("a"), skip=2)

    with pytest.raises(ObjectChanged):
        await copies.copy(version, Key("b"), None)

    assert await bytes_in(memory, "b") is None
    assert metrics.store_requests["ABORT"] == 1


async def test_the_journal_names_the_upload_of_a_copy_in_ranges_while_it_runs(
    copies: Copies, memory: MemoryStore, store: ScriptedStore, staging_dir: Path
) -> None:
    """So the mount after a crash can abort it; its ranges cost the bucket's owner money."""
    await memory.put(Key("a"), BLOCK * 20)
    version = (await memory.head(Key("a"))).info
    async with store.hold("PARTCOPY").met_by(copies.copy, version, Key("b"), None):
        [record] = the_records(staging_dir)

    assert record.key == "b"
    assert record.upload is not None
    assert (record.stage, record.size) == (Stage.WRITING, 0)
    assert the_records(staging_dir) == []
    assert not left_of(staging_dir)


async def test_the_upload_of_a_copy_that_could_not_be_aborted_stays_in_the_journal(
    copies: Copies, memory: MemoryStore, store: ScriptedStore, staging_dir: Path
) -> None:
    await memory.put(Key("a"), BLOCK * 20)
    version = (await memory.head(Key("a"))).info
    store.fail("PARTCOPY", ObjectChanged("a"))
    store.fail("ABORT", AccessDenied("b"))
    with pytest.raises(ObjectChanged):
        await copies.copy(version, Key("b"), None)

    [record] = the_records(staging_dir)
    assert record.upload is not None
    assert left_of(staging_dir) == [record.file]


def the_records(staging_dir: Path) -> list[Record]:
    """What the journal of the one session says is not settled."""
    [session] = staging_dir.glob("session-*")
    return list(read_log(session).records.values())


def left_of(staging_dir: Path) -> list[str]:
    """The staging files of the one session."""
    [session] = staging_dir.glob("session-*")
    return [path.name for path in session.iterdir() if path.name not in OWN_NAMES]


async def test_a_rename_that_fails_leaves_everything_where_it_was(
    program: Kernel, memory: MemoryStore, store: ScriptedStore
) -> None:
    await program.mkdir("old")
    await program.write_file("old/a", b"a")
    handle = await program.begin_file("old/b", b"b")
    store.fail("COPY", StoreUnavailable("old/a"))
    with pytest.raises(StoreUnavailable):
        await program.rename("old", "new")
    await program.close(handle)

    assert await bytes_in(memory, "old/a") == b"a"
    assert await bytes_in(memory, "old/b") == b"b"
    assert await program.read_file("old/a") == b"a"
