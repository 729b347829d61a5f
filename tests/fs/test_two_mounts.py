"""Two mounts of one bucket: who wins a race, what the loser is told, and where its bytes are."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import trio

from tests.fs.kernel import FakeProbe, Kernel, bytes_in, keys_in
from ucfuse.budget import MemoryBudget
from ucfuse.config import MountConfig
from ucfuse.errors import AlreadyExists, ObjectChanged, VolumeError
from ucfuse.fs.filesystem import VolumeFilesystem
from ucfuse.metrics import Metrics
from ucfuse.store.memory import MemoryStore
from ucfuse.store.memory_bucket import MemoryBucket
from ucfuse.volume import Key, MiB
from ucfuse.writing.records import Stage, read_log

pytestmark = pytest.mark.timeout(60)

LONG = [pytest.mark.long, pytest.mark.timeout(600)]
races = pytest.mark.parametrize("count", [100, pytest.param(1000, marks=LONG)])


@dataclass
class Host:
    """One mount, and a program on it."""

    fs: VolumeFilesystem
    program: Kernel
    state_dir: Path

    def kept(self) -> list[bytes]:
        """What `ucfuse recover` has: the bytes of files that were promised to be kept."""
        found = []
        for session in self.state_dir.glob("staging/session-*"):
            for name, record in read_log(session).records.items():
                if record.stage is Stage.KEPT:
                    found.append((session / name).read_bytes())
        return found


Options = dict[str, bool]


@pytest.fixture
def bucket() -> MemoryBucket:
    return MemoryBucket()


@pytest.fixture
def memory(bucket: MemoryBucket) -> MemoryStore:
    return MemoryStore(bucket)


@pytest.fixture
def options() -> tuple[Options, Options]:
    """Of the first and of the second mount. Tests that want some ask for them by parameter."""
    return {}, {}


@asynccontextmanager
async def mounted(
    config: MountConfig, bucket: MemoryBucket, name: str, options: Options
) -> AsyncIterator[Host]:
    own = replace(config, state_dir=config.state_dir / name, **options)  # type: ignore[arg-type]
    budget, metrics = MemoryBudget(64 * MiB), Metrics()
    async with VolumeFilesystem(own, MemoryStore(bucket), budget, metrics, FakeProbe()) as fs:
        yield Host(fs, Kernel(fs), own.state_dir)
    assert budget.reserved_bytes == 0


@pytest.fixture
async def pair(
    config: MountConfig, bucket: MemoryBucket, options: tuple[Options, Options]
) -> AsyncIterator[tuple[Host, Host]]:
    async with (
        mounted(config, bucket, "a", options[0]) as a,
        mounted(config, bucket, "b", options[1]) as b,
    ):
        yield a, b


CLOSE = {"exclusive_at_close": True}


@pytest.mark.promise("P18")
@races
async def test_of_two_updates_one_wins_and_the_bytes_of_the_other_are_kept(
    pair: tuple[Host, Host], memory: MemoryStore, count: int
) -> None:
    a, b = pair
    await memory.put(Key("x"), b"0" * 20)
    losers: set[bytes] = set()
    for race in range(count):
        lost: list[bytes] = []
        opened: list[int] = []

        async def update(host: Host, text: bytes, lost: list[bytes], opened: list[int]) -> None:
            handle = await host.program.open("x", "r+")
            opened.append(handle)
            while len(opened) < 2:
                await trio.lowlevel.checkpoint()
            await host.fs.write(handle, 0, text)
            try:
                await host.program.close(handle)
            except ObjectChanged:
                lost.append(text)

        texts = {b"a%06d" % race, b"b%06d" % race}
        async with trio.open_nursery() as nursery:
            for host, text in zip((a, b), sorted(texts), strict=True):
                nursery.start_soon(update, host, text, lost, opened)

        stored = await bytes_in(memory, "x")
        assert stored is not None
        assert len(lost) == 1
        assert {stored[:7]} == texts - set(lost)
        losers.add(lost[0])
    assert {kept[:7] for kept in a.kept() + b.kept()} == losers


@pytest.mark.promise("P20")
@races
async def test_of_two_exclusive_creations_one_wins_and_the_other_is_told_at_open(
    pair: tuple[Host, Host], memory: MemoryStore, count: int
) -> None:
    a, b = pair
    for race in range(count):
        winners: list[bytes] = []
        losers: list[VolumeError] = []

        async def create(
            host: Host, race: int, winners: list[bytes], losers: list[VolumeError]
        ) -> None:
            text = host.state_dir.name.encode()
            try:
                handle = await host.program.open(f"lock{race}", "w", exclusive=True)
            except (AlreadyExists, FileExistsError) as cause:
                losers.append(cause)  # type: ignore[arg-type]
                return
            await host.fs.write(handle, 0, text)
            await host.program.close(handle)
            winners.append(text)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(create, a, race, winners, losers)
            nursery.start_soon(create, b, race, winners, losers)

        assert (len(winners), len(losers)) == (1, 1)
        assert await bytes_in(memory, f"lock{race}") == winners[0]
    assert (await memory.head(Key("lock0"))).metadata == {}


async def test_the_last_writer_of_a_whole_file_wins(
    pair: tuple[Host, Host], memory: MemoryStore
) -> None:
    a, b = pair
    one = await a.program.begin_file("x", b"first")
    two = await b.program.begin_file("x", b"second")
    await a.program.close(one)
    await b.program.close(two)

    assert await bytes_in(memory, "x") == b"second"


@pytest.mark.promise("P19")
@pytest.mark.parametrize("options", [({}, {"conditional_always": True})])
async def test_with_always_a_whole_file_does_not_go_over_a_version_from_elsewhere(
    pair: tuple[Host, Host], memory: MemoryStore
) -> None:
    a, b = pair
    one = await a.program.begin_file("x", b"first")
    two = await b.program.begin_file("x", b"second")
    await a.program.close(one)
    with pytest.raises(ObjectChanged):
        await b.program.close(two)

    assert await bytes_in(memory, "x") == b"first"
    assert b.kept() == [b"second"]
    assert await b.program.read_file("x") == b"first"


@pytest.mark.parametrize("options", [(CLOSE, CLOSE)])
async def test_exclusive_at_close_makes_no_placeholder(
    pair: tuple[Host, Host], memory: MemoryStore
) -> None:
    host, _ = pair
    handle = await host.program.open("x", "w", exclusive=True)
    await host.fs.write(handle, 0, b"data")
    assert await keys_in(memory) == []

    await host.program.close(handle)

    assert await bytes_in(memory, "x") == b"data"


@pytest.mark.promise("P20")
@pytest.mark.parametrize("options", [(CLOSE, CLOSE)])
async def test_exclusive_at_close_loses_at_close(
    pair: tuple[Host, Host], memory: MemoryStore
) -> None:
    a, b = pair
    one = await a.program.open("x", "w", exclusive=True)
    two = await b.program.open("x", "w", exclusive=True)
    await a.fs.write(one, 0, b"first")
    await b.fs.write(two, 0, b"second")
    await a.program.close(one)
    with pytest.raises(AlreadyExists):
        await b.fs.fsync(two)
    with pytest.raises(AlreadyExists):
        await b.program.close(two)

    assert await bytes_in(memory, "x") == b"first"
    assert b.kept() == [b"second"]


@pytest.mark.promise("P21")
@pytest.mark.parametrize("change", ["put", "delete"])
async def test_a_change_elsewhere_during_an_upload_never_passes_for_success(
    pair: tuple[Host, Host], memory: MemoryStore, change: str
) -> None:
    """On AWS the completion of an upload that another change overtook says success."""
    host, _ = pair
    block = bytes(MiB)
    await memory.put(Key("x"), block * 20)
    update = await host.program.open("x", "r+")
    for start in range(20):
        await host.fs.write(update, start * MiB, b"u" * MiB)
    whole = await host.program.open("y", "w")
    for start in range(20):
        await host.fs.write(whole, start * MiB, b"w" * MiB)
    for key in map(Key, "xy"):
        await (memory.put(key, b"theirs") if change == "put" else memory.delete(key))

    with pytest.raises(ObjectChanged):
        await host.program.close(update)
    await host.program.close(whole)

    assert await bytes_in(memory, "x") == (b"theirs" if change == "put" else None)
    assert await bytes_in(memory, "y") == b"w" * 20 * MiB
    assert host.kept() == [b"u" * 20 * MiB]
