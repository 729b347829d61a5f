"""Directories of many thousand names: served page by page, and cheap to remember."""

import gc
import tracemalloc
from dataclasses import replace
from functools import partial
from typing import Any

import trio

from tests.fs.kernel import FakeProbe, Kernel
from tests.fs.stores import ScriptedStore
from ucfuse.budget import MemoryBudget
from ucfuse.config import MountConfig
from ucfuse.errors import StoreUnavailable
from ucfuse.fs.filesystem import VolumeFilesystem
from ucfuse.metrics import Metrics
from ucfuse.names.inodes import ROOT_INODE
from ucfuse.store.api import ListPage
from ucfuse.store.memory import MemoryStore
from ucfuse.volume import ETag, Key, KiB, MiB

PAGE_COUNT = 1000


async def fill(memory: MemoryStore, count: int) -> None:
    for number in range(count):
        await memory.put(Key(f"image-{number:08d}.jpg"), b"")


async def test_first_entries_come_before_the_last_page(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore, store: ScriptedStore
) -> None:
    """A program sees what the store has told, while the store still makes up the rest."""
    await fill(memory, 3 * PAGE_COUNT + 5)
    second_page = store.hold("LIST", skip=1)
    handle = await fs.opendir(ROOT_INODE, program.other_caller())

    first = list(await fs.readdir(handle, 0))

    assert [entry.name for entry in first[:2]] == ["image-00000000.jpg", "image-00000001.jpg"]
    assert len(first) == PAGE_COUNT
    assert not second_page.reached.is_set()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(program.read_directory, handle, first[-1].next_id))
        await second_page.reached.wait()
        assert [e.name for e in await fs.readdir(handle, 5)] == [e.name for e in first[5:]]
        second_page.open()
    await fs.releasedir(handle)


async def test_a_listing_that_breaks_off_is_an_error_and_goes_on_afterwards(
    fs: VolumeFilesystem, program: Kernel, memory: MemoryStore, store: ScriptedStore
) -> None:
    """What was told stays told; the end is never made up."""
    await fill(memory, 2 * PAGE_COUNT)
    store.fail("LIST", StoreUnavailable("", "cut"), skip=1)
    handle = await fs.opendir(ROOT_INODE, program.other_caller())
    first = list(await fs.readdir(handle, 0))

    try:
        rest = list(await fs.readdir(handle, PAGE_COUNT))
        raise AssertionError(f"{len(rest)} entries instead of an error")
    except StoreUnavailable:
        rest = await program.read_directory(handle, PAGE_COUNT)
    await fs.releasedir(handle)

    assert len(first) + len(rest) == 2 * PAGE_COUNT
    assert len({entry.name for entry in first + rest}) == 2 * PAGE_COUNT


class FreshAnswers(ScriptedStore):
    """Shares no string with the bucket, as a store behind a network does not."""

    async def list_page(self, *args: Any, **options: Any) -> ListPage:
        page = await super().list_page(*args, **options)
        objects = [
            replace(info, key=Key("".join(info.key)), etag=ETag("".join(info.etag)))
            for info in page.objects
        ]
        return replace(page, objects=objects)


async def test_a_name_costs_less_than_a_kibibyte(config: MountConfig, memory: MemoryStore) -> None:
    """With all that is remembered of it, while the directory is open."""
    count = 10 * PAGE_COUNT
    await fill(memory, count)
    budget = MemoryBudget(64 * MiB)
    async with VolumeFilesystem(config, FreshAnswers(memory), budget, Metrics(), FakeProbe()) as fs:
        program = Kernel(fs)
        handle = await fs.opendir(ROOT_INODE, program.other_caller())
        gc.collect()
        tracemalloc.start()
        try:
            entry_count, start = 0, 0
            while page := list(await fs.readdir(handle, start)):
                for entry in page:
                    fs.remember(entry.attributes.number)
                start, entry_count = page[-1].next_id, entry_count + len(page)
                del page, entry
            held, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        await fs.releasedir(handle)

    assert entry_count == count
    assert held / count < KiB
    assert peak / count < 1.5 * KiB  # what one page needs on its way counts more among so few
