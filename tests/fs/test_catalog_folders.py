"""Catalogs that change while they are shown: what is asked, what is opened, and what stays."""

from collections import Counter
from dataclasses import replace

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.fs.kernel import FakeProbe, Kernel
from ucfuse.budget import GrowingBudget
from ucfuse.catalog.interface import Found, Names, Place
from ucfuse.config import MountConfig, Source, StoreOptions, VolumeEntry
from ucfuse.errors import AccessDenied, NotFound, NotInCatalog, StoreUnavailable, VolumeError
from ucfuse.fs.filesystem import VolumeFilesystem
from ucfuse.fs.portability_log import Portability
from ucfuse.fs.tree import VolumeTree
from ucfuse.metrics import Metrics
from ucfuse.store.memory import MemoryStore

TTL_S = 1.0


class FakeCatalog:
    """A catalog that a test changes. Remembers nothing, so it counts every question."""

    def __init__(self) -> None:
        self.volumes: dict[Place, str] = {("main", "default", "images"): "1"}
        self.counts: Counter[str] = Counter()
        self.failure: VolumeError | None = None
        self.is_silent = False

    async def names(self, above: Place) -> Names:
        await self._answer(f"list {'.'.join(above)}")
        depth = len(above)
        places = [place for place in self.volumes if place[:depth] == above]
        if not places:
            raise NotFound("/".join(above))
        return Names({place[depth]: self._identity(place[: depth + 1]) for place in places}, TTL_S)

    async def find(self, place: Place) -> Found:
        await self._answer(f"find {'.'.join(place)}")
        if not any(each[: len(place)] == place for each in self.volumes):
            raise NotFound("/".join(place))
        return Found(self._identity(place), TTL_S)

    async def volume(self, place: Place) -> VolumeEntry:
        raise AssertionError("the opener asks, not the tree")

    def knows(self, place: Place) -> bool:
        return False

    def _identity(self, place: Place) -> str:
        return self.volumes.get(place, "")

    async def _answer(self, question: str) -> None:
        self.counts[question] += 1
        await trio.lowlevel.checkpoint()
        if self.is_silent:
            await trio.sleep_forever()
        if self.failure is not None:
            raise self.failure


class Opener:
    """Opens volumes in memory, or fails as told."""

    def __init__(self, config: MountConfig, probe: FakeProbe, nursery: trio.Nursery) -> None:
        self._config, self._probe, self._nursery = config, probe, nursery
        self._budget = GrowingBudget(config.memory_limit_bytes)
        self.opened: list[tuple[Place, int]] = []
        self.failure: VolumeError | None = None

    async def __call__(self, place: Place, index: int) -> VolumeFilesystem:
        self.opened.append((place, index))
        await trio.sleep(0.01)
        if self.failure is not None:
            raise self.failure
        fs: VolumeFilesystem = await self._nursery.start(self._serve, index)
        return fs

    async def _serve(self, index: int, task_status: trio.TaskStatus[VolumeFilesystem]) -> None:
        volume = VolumeFilesystem(
            replace(self._config, source=Source("bucket"), store=StoreOptions()),
            MemoryStore(),
            self._budget.join(),
            Metrics(),
            self._probe,
            volume_index=index,
        )
        async with volume:
            task_status.started(volume)
            await trio.sleep_forever()


@pytest.fixture
def catalog() -> FakeCatalog:
    return FakeCatalog()


@pytest.fixture
def opener(config: MountConfig, probe: FakeProbe, nursery: trio.Nursery) -> Opener:
    return Opener(config, probe, nursery)


@pytest.fixture
def tree(
    catalog: FakeCatalog,
    opener: Opener,
    config: MountConfig,
    probe: FakeProbe,
    nursery: trio.Nursery,
) -> VolumeTree:
    return VolumeTree(
        catalog,
        opener,
        nursery,
        Portability(config.emulation, probe),
        ttl_s=TTL_S,
        timeout_s=10.0,
        served={},
    )


@pytest.fixture
def program(tree: VolumeTree) -> Kernel:
    return Kernel(tree)


async def test_looking_at_names_opens_nothing(program: Kernel, opener: Opener) -> None:
    """README, Governed volumes: a volume is opened when something in it is first used."""
    assert await program.listdir("main/default") == ["images"]
    assert (await program.lookup("main/default/images")).is_directory
    assert opener.opened == []

    await program.write_file("main/default/images/f", b"x")
    assert await program.listdir("main/default/images") == ["f"]
    assert opener.opened == [(("main", "default", "images"), 1)]


async def test_many_that_use_a_volume_first_open_it_once(
    tree: VolumeTree, program: Kernel, opener: Opener
) -> None:
    number = (await program.lookup("main/default/images")).number

    async def use(thread: int) -> None:
        with pytest.raises(NotFound):
            await tree.lookup(number, "f", Kernel(tree, thread=thread).caller())

    async with trio.open_nursery() as programs:
        for thread in range(10):
            programs.start_soon(use, 5000 + thread)

    assert len(opener.opened) == 1


async def test_a_volume_that_cannot_be_opened_says_why_and_is_tried_again_later(
    program: Kernel, opener: Opener, clock: MockClock
) -> None:
    opener.failure = AccessDenied("v", "no privilege")
    for _ in range(3):
        with pytest.raises(AccessDenied, match="no privilege"):
            await program.listdir("main/default/images")
    assert len(opener.opened) == 1  # one program call asks several times

    opener.failure = None
    clock.jump(2.0)

    assert await program.listdir("main/default/images") == []


async def test_what_leads_to_an_open_volume_is_shown_while_the_catalog_is_silent(
    catalog: FakeCatalog, program: Kernel
) -> None:
    """README, Governed volumes: a catalog that is slow does not touch an open volume."""
    await program.write_file("main/default/images/f", b"data")
    catalog.is_silent = True
    began = trio.current_time()

    assert await program.read_file("main/default/images/f") == b"data"

    assert trio.current_time() - began < 5
    catalog.is_silent = False


async def test_an_open_volume_that_is_gone_loses_its_name_and_keeps_its_files(
    catalog: FakeCatalog, tree: VolumeTree, program: Kernel, clock: MockClock
) -> None:
    await program.write_file("main/default/images/f", b"data")
    handle = await program.open("main/default/images/f", "r")
    catalog.volumes = {("main", "default", "others"): "2"}

    await program.lookup("main/default/images")  # shown, and asked for behind that
    await wait_all_tasks_blocked()

    with pytest.raises(NotFound):
        await program.lookup("main/default/images")
    assert bytes(await tree.read(handle, 0, 10)) == b"data"
    await program.close(handle)


async def test_a_name_that_means_another_volume_is_another_directory(
    catalog: FakeCatalog, program: Kernel, opener: Opener
) -> None:
    await program.write_file("main/default/images/f", b"data")
    before = (await program.lookup("main/default/images")).number
    catalog.volumes[("main", "default", "images")] = "made anew"
    await program.lookup("main/default/images")
    await wait_all_tasks_blocked()

    assert (await program.lookup("main/default/images")).number != before
    assert await program.listdir("main/default/images") == []
    assert [index for _, index in opener.opened] == [1, 2]


async def test_a_name_that_was_shown_and_is_gone_is_news(
    catalog: FakeCatalog, program: Kernel
) -> None:
    await program.listdir("main/default")
    catalog.volumes = {("main", "default", "others"): "2"}

    with pytest.raises(NotInCatalog):
        await program.lookup("main/default/images")
    with pytest.raises(NotFound):
        await program.lookup("main/default/images")


async def test_what_waits_behind_a_failed_question_fails_with_it(
    catalog: FakeCatalog, tree: VolumeTree, program: Kernel
) -> None:
    """The kernel sends the lookups of one directory one after another."""
    number = (await program.lookup("main")).number
    catalog.failure = StoreUnavailable("main", "no connection")
    catalog.counts.clear()

    for name in ("a", "b", "c"):
        with pytest.raises(StoreUnavailable):
            await tree.lookup(number, name, program.caller())

    assert sum(catalog.counts.values()) == 1
