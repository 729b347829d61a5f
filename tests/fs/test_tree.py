"""Many volumes in one tree: virtual levels, routing, and volumes that do not disturb each other."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

import pytest
import trio
from trio.testing import MockClock

from tests.fs.kernel import FakeProbe, Kernel, bytes_in, intent, keys_in
from tests.fs.stores import ScriptedStore
from ucfuse.budget import MemoryBudget
from ucfuse.catalog.interface import Place
from ucfuse.catalog.volumes_file import VolumesFile
from ucfuse.config import MountConfig, Source, StoreOptions, VolumeEntry
from ucfuse.errors import (
    AcrossVolumes,
    IsADirectory,
    NotFound,
    NotSupported,
    ReadOnlyVolume,
    StaleName,
    StoreUnavailable,
)
from ucfuse.fs.catalog_folders import FIRST_VOLUME_INDEX
from ucfuse.fs.filesystem import VolumeFilesystem
from ucfuse.fs.portability_log import Portability
from ucfuse.fs.tree import VolumeTree
from ucfuse.metrics import Metrics
from ucfuse.names.inodes import ROOT_INODE
from ucfuse.store.memory import MemoryStore
from ucfuse.volume import Key

NAMES = ("main.default.images", "main.default.text", "main.other.images", "frozen.default.x")


def entry_named(name: str) -> VolumeEntry:
    return VolumeEntry(name=name, source=Source(None), store=StoreOptions(), read_only=False)


async def opens_none(place: Place, index: int) -> VolumeFilesystem:
    raise AssertionError(f"{place} is open from the start")


@dataclass
class Forest:
    """A tree of volumes, and the bucket behind each."""

    tree: VolumeTree
    buckets: dict[str, MemoryStore]
    stores: dict[str, ScriptedStore]


@pytest.fixture
async def forest(
    config: MountConfig, probe: FakeProbe, nursery: trio.Nursery
) -> AsyncIterator[Forest]:
    buckets = {name: MemoryStore() for name in NAMES}
    stores = {name: ScriptedStore(bucket) for name, bucket in buckets.items()}
    budget = MemoryBudget(config.memory_limit_bytes)
    async with AsyncExitStack() as stack:
        volumes = {}
        for index, name in enumerate(NAMES, FIRST_VOLUME_INDEX):
            volume = VolumeFilesystem(
                replace(config, read_only=name.startswith("frozen")),
                stores[name],
                budget,
                Metrics(),
                probe,
                volume_index=index,
            )
            volumes[name] = await stack.enter_async_context(volume)
        tree = VolumeTree(
            VolumesFile([entry_named(name) for name in NAMES]),
            opens_none,
            nursery,
            Portability(config.emulation, probe),
            ttl_s=1.0,
            timeout_s=30.0,
            served=volumes,
        )
        yield Forest(tree, buckets, stores)
    assert budget.reserved_bytes == 0


@pytest.fixture
def tree(forest: Forest) -> VolumeTree:
    return forest.tree


@pytest.fixture
def program(tree: VolumeTree) -> Kernel:
    return Kernel(tree)


async def test_catalogs_and_schemas_show_what_is_in_them(program: Kernel) -> None:
    """README, Many volumes: catalogs and schemas are directories."""
    assert await program.listdir() == ["main", "frozen"]
    assert await program.listdir("main") == ["default", "other"]
    assert await program.listdir("main/default") == ["images", "text"]
    assert (await program.lookup("main/default")).is_fixed
    assert not (await program.lookup("main/default/images")).is_fixed
    for missing in ("none", "main/none", "main/default/none"):
        assert not await program.exists(missing)


async def test_each_volume_has_its_own_files(forest: Forest, program: Kernel) -> None:
    """README, Many volumes: every volume is a place of its own."""
    for name in NAMES[:3]:
        path = name.replace(".", "/")
        await program.mkdir(f"{path}/d")
        await program.write_file(f"{path}/d/f", name.encode())

    for name in NAMES[:3]:
        assert await bytes_in(forest.buckets[name], "d/f") == name.encode()
        assert await program.read_file(f"{name.replace('.', '/')}/d/f") == name.encode()
        assert await keys_in(forest.buckets[name]) == ["d/", "d/f"]


async def test_no_number_is_used_twice_in_the_mount(program: Kernel) -> None:
    """Programs tell files apart by inode number (cp, tar, git)."""
    paths = ["", "main", "main/default", "main/other", "frozen", "frozen/default"]
    for name in NAMES[:3]:
        path = name.replace(".", "/")
        await program.write_file(f"{path}/f", b"x")
        paths += [path, f"{path}/f"]

    numbers = [(await program.lookup(path)).number for path in paths]

    assert len(set(numbers)) == len(paths)


CHANGES: dict[str, Callable[[Kernel], object]] = {
    "mkdir": lambda p: p.mkdir("main/new"),
    "mkdir at the top": lambda p: p.mkdir("new"),
    "mknod": lambda p: p.mknod("main/default/f"),
    "create": lambda p: p.write_file("main/default/f", b"x"),
    "rmdir of a volume": lambda p: p.rmdir("main/default/images"),
    "rmdir of a catalog": lambda p: p.rmdir("main"),
    "unlink": lambda p: p.unlink("main/default"),
    "rename of a volume": lambda p: p.rename("main/default/images", "main/default/n"),
    "rename out of a volume": lambda p: p.rename("main/default/images/f", "main/default/f"),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_virtual_directories_cannot_be_changed(program: Kernel, change: str) -> None:
    """README, Many volumes: changes of catalogs and schemas are refused."""
    await program.write_file("main/default/images/f", b"x")

    with pytest.raises(NotSupported):
        await CHANGES[change](program)  # type: ignore[misc]


async def test_a_virtual_directory_is_not_a_file(tree: VolumeTree, program: Kernel) -> None:
    with pytest.raises(IsADirectory):
        await tree.open(ROOT_INODE, intent("r"), program.caller())
    with pytest.raises(StaleName):
        await tree.getattr(type(ROOT_INODE)(77), program.caller())
    with pytest.raises(NotFound):
        await tree.lookup(ROOT_INODE, "main.default", program.caller())


async def test_a_rename_to_another_volume_is_refused_and_changes_nothing(
    forest: Forest, program: Kernel
) -> None:
    """README, Many volumes: a rename stays in its volume (EXDEV elsewhere)."""
    await program.write_file("main/default/images/f", b"x")

    with pytest.raises(AcrossVolumes):
        await program.rename("main/default/images/f", "main/default/text/f")
    await program.rename("main/default/images/f", "main/default/images/g")

    assert await keys_in(forest.buckets["main.default.images"]) == ["g"]
    assert await keys_in(forest.buckets["main.default.text"]) == []


async def test_one_volume_may_be_read_only(program: Kernel) -> None:
    """README, Many volumes: `read_only` holds for its volume alone."""
    with pytest.raises(ReadOnlyVolume):
        await program.write_file("frozen/default/x/f", b"x")
    await program.write_file("main/default/text/f", b"x")


async def test_a_listing_goes_on_where_it_stopped(tree: VolumeTree, program: Kernel) -> None:
    handle = await tree.opendir(ROOT_INODE, program.other_caller())

    rest = [entry.name for entry in await tree.readdir(handle, 1)]
    await tree.releasedir(handle)

    assert rest == ["frozen"]


async def test_an_open_that_another_open_follows_elsewhere_leaves_nothing_behind(
    forest: Forest, program: Kernel
) -> None:
    """A thread that goes to another volume has given up the open that was to be repeated."""
    images = forest.buckets["main.default.images"]
    await program.write_file("main/default/images/f", b"old")
    await program.write_file("main/default/text/f", b"text")
    number = (await program.lookup("main/default/images/f")).number
    await images.put(Key("f"), b"newer")

    with pytest.raises(StaleName):
        await forest.tree.open(number, intent("r"), program.caller())
    assert await program.read_file("main/default/text/f") == b"text"
    await images.put(Key("f"), b"newest")

    assert await program.read_file("main/default/images/f") == b"newest"


async def test_opens_find_the_newest_version_in_every_volume(
    forest: Forest, program: Kernel
) -> None:
    """README, What you can rely on: newest version."""
    for name in NAMES[:3]:
        path = f"{name.replace('.', '/')}/f"
        await program.write_file(path, b"old")
        await forest.buckets[name].put(Key("f"), b"newer")
        assert await program.read_file(path) == b"newer"


async def test_uncommitted_files_are_named_with_their_volume(
    tree: VolumeTree, program: Kernel
) -> None:
    handle = await program.open("main/other/images/f", "w")
    await tree.write(handle, 0, b"x")

    (file,) = tree.uncommitted()
    assert file.path == "main/other/images/f"
    await program.close(handle)
    assert tree.uncommitted() == []


async def test_a_volume_that_stalls_holds_no_other_volume_up(
    forest: Forest, program: Kernel, clock: MockClock
) -> None:
    """README, Many volumes: a store that does not answer slows no other volume down."""
    other = Kernel(forest.tree, thread=2000)
    await program.write_file("main/default/images/f", b"x")
    forest.stores["main.default.images"].hold("GET")
    clock.jump(2.0)
    began = trio.current_time()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(_fails, program, "main/default/images/f")
        await trio.testing.wait_all_tasks_blocked()
        await other.write_file("main/default/text/g", b"goes on")
        assert await other.read_file("main/default/text/g") == b"goes on"
        assert trio.current_time() - began < 10
        clock.jump(61)


async def _fails(program: Kernel, path: str) -> None:
    with pytest.raises(StoreUnavailable):
        await program.read_file(path)


async def test_commits_of_all_volumes_run_side_by_side(
    forest: Forest, program: Kernel, clock: MockClock
) -> None:
    """A volume that is away does not keep the others from committing at the end."""
    for volume in ("images", "text"):
        handle = await program.open(f"main/default/{volume}/f", "w")
        await forest.tree.write(handle, 0, b"x")
        forest.stores[f"main.default.{volume}"].fail("PUT", StoreUnavailable("f", "no"))
        with pytest.raises(StoreUnavailable):
            await program.close(handle)
    forest.stores["main.default.images"].hold("PUT")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(forest.tree.commit_all)
        await trio.testing.wait_all_tasks_blocked()
        clock.jump(301)  # the end of the patience with the one that stalls

    assert await bytes_in(forest.buckets["main.default.text"], "f") == b"x"
    assert [file.path for file in forest.tree.uncommitted()] == ["main/default/images/f"]
