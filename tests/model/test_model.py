"""Any operations, with another client and remounts in between: the volume equals the reference.

The file system runs without FUSE, through a stand-in for the kernel, on the memory store. That the
test sees mistakes is a test too: three are put in on purpose, and each must be found.
"""

import os
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
import trio
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from tests.fs.kernel import FakeProbe, Kernel
from ucfuse.budget import MemoryBudget
from ucfuse.config import MountConfig, Source
from ucfuse.errors import (
    AlreadyExists,
    DirectoryNotEmpty,
    NotFound,
    ObjectChanged,
    ObjectMissing,
    VolumeError,
)
from ucfuse.fs.filesystem import VolumeFilesystem
from ucfuse.metrics import Metrics
from ucfuse.store.api import Fetched
from ucfuse.store.memory import MemoryStore
from ucfuse.store.memory_bucket import MemoryBucket
from ucfuse.volume import HandleId, Key, MiB

from .operations import SHARED, Op, operations
from .reference import CHANGED, EXISTS, FILLED, MISSING, OKAY, Reference

pytestmark = pytest.mark.timeout(3600)

FAILURES = {
    NotFound: MISSING, AlreadyExists: EXISTS, DirectoryNotEmpty: FILLED, ObjectChanged: CHANGED,
}  # fmt: skip


CHANGES = {"write", "append", "patch", "truncate", "remove", "rename", "rename folder"}
"""What the program that holds the file open leaves alone."""


class DifferenceFound(AssertionError):
    """The volume is not what the reference says."""


async def told(work: Awaitable[object]) -> str:
    """Do it and return what a program is told."""
    try:
        await work
    except tuple(FAILURES) as cause:
        return FAILURES[type(cause)]
    return OKAY


@dataclass
class Play:
    """One volume and its reference, side by side."""

    config: MountConfig
    clock: MockClock
    make: type[VolumeFilesystem]
    bucket: MemoryBucket = field(default_factory=MemoryBucket)
    reference: Reference = field(default_factory=Reference)
    reader: HandleId | None = None
    writer: HandleId | None = None
    count: int = 0
    is_young: bool = False
    """Whether another client changed something that a listing need not show yet."""

    async def run(self, ops: list[Op]) -> None:
        self.elsewhere = MemoryStore(self.bucket)
        while True:
            budget = MemoryBudget(64 * MiB)
            volume = self.make(
                self.config, MemoryStore(self.bucket), budget, Metrics(), FakeProbe()
            )
            async with volume:
                self.fs, self.program = volume, Kernel(volume)
                failure, ops = await self._session(ops)
            if failure is not None:  # raised here: a nursery would wrap it up
                raise failure
            assert budget.reserved_bytes == 0
            if not ops:
                return

    async def _session(self, ops: list[Op]) -> tuple[DifferenceFound | None, list[Op]]:
        """Play up to a remount; return what was found, and the operations that are left."""
        try:
            await self._begin()
            ops = await self._play(ops)
            await self._end()
        except DifferenceFound as failure:
            return failure, []
        except VolumeError as cause:
            return DifferenceFound(f"nobody expects {cause!r}"), []
        return None, ops

    async def _begin(self) -> None:
        for path in ("d", "e"):
            if self.reference.make_directory(path) == OKAY:
                await self.program.mkdir(path)

    async def _play(self, ops: list[Op]) -> list[Op]:
        """Do operations up to a remount; return those that are left."""
        for at, op in enumerate(ops):
            if op.kind == "remount":
                return ops[at + 1 :]
            if op.kind in CHANGES and any(map(self.reference.is_held, (op.path, op.other))):
                continue
            expected, got = await ACTS[op.kind](self, op)
            self._require(expected, got, op)
        return []

    def _require(self, expected: object, got: object, what: object) -> None:
        if expected != got:
            raise DifferenceFound(f"{what}: expected {_short(expected)}, got {_short(got)}")

    def _data(self, size: int) -> bytes:
        """Return bytes that no other call returns."""
        self.count += 1
        stamp = b"%08d" % self.count
        return (stamp * (size // 8 + 1))[:size]

    def _settle_names(self) -> None:
        """Let so much time pass that names show what another client did."""
        if self.is_young:
            self.clock.jump(2.0)
            self.is_young = False

    # --- operations: each returns what must be told and what was told ------------------------

    async def write(self, op: Op) -> tuple[object, object]:
        data, mode = self._data(op.size), "a" if op.kind == "append" else "w"
        expected = self.reference.write(op.path, data, appends=mode == "a")
        return expected, await told(self.program.write_file(op.path, data, mode))

    async def patch(self, op: Op) -> tuple[object, object]:
        data = self._data(op.size)
        offset = min(op.offset, len(self.reference.objects.get(op.path, b"")) + 10)

        async def work() -> None:
            async with self.program.opened(op.path, "r+") as handle:
                await self._write(handle, offset, data)

        return self.reference.patch(op.path, offset if data else 0, data), await told(work())

    async def truncate(self, op: Op) -> tuple[object, object]:
        self._settle_names()
        expected = self.reference.truncate(op.path, op.size)
        return expected, await told(self.program.truncate(op.path, op.size))

    async def read(self, op: Op) -> tuple[object, object]:
        allowed = self.reference.may_read(op.path)
        try:
            got = await self.program.read_file(op.path)
        except NotFound:
            return allowed, None
        except ObjectChanged:
            # It is open and changed here; what nobody wrote went with the version elsewhere.
            return True, self.reference.has_lost_base(op.path)
        if allowed is not None and got in allowed:
            return OKAY, OKAY
        return allowed, got

    async def read_around_a_put(self, op: Op) -> tuple[object, object]:
        for act in (self.read, self.put_elsewhere, self.read):
            expected, got = await act(op)
            self._require(expected, got, op)
        return OKAY, OKAY

    async def remove(self, op: Op) -> tuple[object, object]:
        self._settle_names()
        return self.reference.remove(op.path), await told(self.program.unlink(op.path))

    async def rename(self, op: Op) -> tuple[object, object]:
        self._settle_names()
        act = self.reference.rename if op.kind == "rename" else self.reference.rename_directory
        return act(op.path, op.other), await told(self.program.rename(op.path, op.other))

    async def mkdir(self, op: Op) -> tuple[object, object]:
        self._settle_names()
        return self.reference.make_directory(op.path), await told(self.program.mkdir(op.path))

    async def rmdir(self, op: Op) -> tuple[object, object]:
        self._settle_names()
        return self.reference.remove_directory(op.path), await told(self.program.rmdir(op.path))

    async def listing(self, op: Op) -> tuple[object, object]:
        self._settle_names()
        if op.path and op.path not in self.reference.directories:
            return MISSING, await told(self.program.listdir(op.path))
        return self.reference.names(op.path), set(await self.program.listdir(op.path))

    async def put_elsewhere(self, op: Op) -> tuple[object, object]:
        data = self._data(op.size + 8)  # never the same bytes twice: that would be no new version
        await self.elsewhere.put(Key(op.path), data)
        self.reference.objects[op.path] = data
        self.is_young = True
        return OKAY, OKAY

    async def delete_elsewhere(self, op: Op) -> tuple[object, object]:
        await self.elsewhere.delete(Key(op.path))
        self.reference.objects.pop(op.path, None)
        self.is_young = True
        return OKAY, OKAY

    async def hold_reader(self, op: Op) -> tuple[object, object]:
        if self.reader is not None or self.reference.is_held(op.path):
            return OKAY, OKAY

        async def work() -> None:
            self.reader = await self.program.open(op.path)
            self._require(
                self.reference.objects[op.path], await self.program.read_open(self.reader), op
            )

        return self.reference.hold_reader(op.path), await told(work())

    async def read_held(self, op: Op) -> tuple[object, object]:
        if self.reader is None or self.reference.reader is None:
            return OKAY, OKAY
        try:
            got = await self.program.read_open(self.reader)
        except (ObjectChanged, ObjectMissing):
            return OKAY, OKAY  # replaced elsewhere, and these bytes are no longer at hand
        return got in self.reference.reader.seen, True

    async def hold_writer(self, op: Op) -> tuple[object, object]:
        if self.writer is not None:
            return OKAY, OKAY

        async def work() -> None:
            self.writer = await self.program.open(op.path, op.other)

        return self.reference.hold_writer(op.path, op.other), await told(work())

    async def write_held(self, op: Op) -> tuple[object, object]:
        if self.writer is None or not op.size:
            return OKAY, OKAY
        data = self._data(op.size)
        await self._write(self.writer, self.reference.write_held(op.offset, data), data)
        return OKAY, OKAY

    async def close_writer(self, op: Op) -> tuple[object, object]:
        if self.writer is None:
            return OKAY, OKAY
        handle, self.writer = self.writer, None
        return self.reference.close_writer(), await told(self.program.close(handle))

    async def _write(self, handle: HandleId, offset: int, data: bytes) -> None:
        for start in range(0, len(data), MiB):
            await self.fs.write(handle, offset + start, data[start : start + MiB])

    # --- the end -----------------------------------------------------------------------------

    async def _end(self) -> None:
        """Close what is open, and compare the bucket with what all clients must find."""
        expected, got = await self.close_writer(Op("close writer"))
        self._require(expected, got, "close at the end")
        if self.reader is not None:
            await self.program.close(self.reader)
            self.reader = self.reference.reader = None
        infos = (await self.elsewhere.list_page("", delimited=False)).objects
        files = [info.key for info in infos if not info.key.endswith("/")]
        self._require(set(self.reference.objects), set(files), "the keys")
        markers = {info.key.rstrip("/") for info in infos if info.key.endswith("/")}
        self._require(self.reference.directories, markers, "the markers")
        for key in files:
            fetched = await self.elsewhere.get(key, 0, 1 << 40)
            assert isinstance(fetched, Fetched)
            self._require(self.reference.objects[key], fetched.data, key)


Act = Callable[[Play, Op], Awaitable[tuple[object, object]]]
ACTS: dict[str, Act] = {
    "write": Play.write, "append": Play.write, "patch": Play.patch, "truncate": Play.truncate,
    "read": Play.read, "remove": Play.remove, "rename": Play.rename, "mkdir": Play.mkdir,
    "rmdir": Play.rmdir, "rename folder": Play.rename, "list": Play.listing,
    "read around a put": Play.read_around_a_put, "put elsewhere": Play.put_elsewhere,
    "delete elsewhere": Play.delete_elsewhere,
    "hold reader": Play.hold_reader, "read held": Play.read_held,
    "hold writer": Play.hold_writer, "write held": Play.write_held,
    "close writer": Play.close_writer,
}  # fmt: skip


def _short(value: object) -> str:
    if isinstance(value, bytes):
        return f"{len(value)} bytes {value[:16]!r}...{value[-8:]!r}"
    if isinstance(value, list):
        return f"one of {[_short(each) for each in value]}"
    return repr(value)


def play_all(make: type[VolumeFilesystem], examples: int, *, shrinks: bool = True) -> Counter[str]:
    """Play as many random games; return how often each operation came."""
    counts: Counter[str] = Counter()

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate, Phase.shrink] if shrinks else [Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(ops=st.lists(operations, min_size=35, max_size=60))
    def game(ops: list[Op]) -> None:
        counts.update(op.kind for op in ops)
        with tempfile.TemporaryDirectory() as state_dir:
            config = MountConfig(
                source=Source("bucket"),
                mountpoint=Path(state_dir) / "mnt",
                uid=os.getuid(),
                gid=os.getgid(),
                state_dir=Path(state_dir) / "state",
                memory_limit_bytes=64 * MiB,
            )
            # It runs slowly: the order of events is told by time, and names must not expire.
            clock = MockClock(rate=0.01)
            trio.run(partial(Play(config, clock, make).run, ops), clock=clock)

    game()
    return counts


LONG = [pytest.mark.long, pytest.mark.timeout(3600)]


@pytest.mark.promise("P3", "P14")
@pytest.mark.parametrize("examples", [60, pytest.param(3_000, marks=LONG)])
def test_a_volume_equals_the_reference(examples: int) -> None:
    counts = play_all(VolumeFilesystem, examples)
    assert counts.total() >= 35 * examples
    assert set(counts) == {*ACTS, "remount"}


class AsksNothing(VolumeFilesystem):
    """An open takes what it knows for the newest version."""

    async def __aenter__(self) -> "AsksNothing":
        await super().__aenter__()

        async def trust(*_: object) -> None:
            """Ask the store nothing."""

        self._validation.confirm = trust  # type: ignore[method-assign]
        return self


class LosesAppends(VolumeFilesystem):
    """What is written at the end of a file that has bytes is lost, and success is told."""

    async def write(self, handle: HandleId, offset: int, data: bytes) -> int:  # type: ignore[override]
        content = self._handles.file(handle).content
        if offset and offset == content.size:
            return len(data)
        return await super().write(handle, offset, data)


class RenamesWrongly(VolumeFilesystem):
    """A rename over a file that exists leaves that file as it was, and removes its own."""

    async def rename(self, old_parent, old_name, new_parent, new_name, **rest) -> None:  # type: ignore[no-untyped-def, override]
        target = self._superblock.inodes.directory(new_parent)
        if self._superblock.known(target, new_name) is None or old_name == new_name:
            await super().rename(old_parent, old_name, new_parent, new_name, **rest)
        else:
            await self.unlink(old_parent, old_name, rest["caller"])


@pytest.mark.parametrize("make", [AsksNothing, LosesAppends, RenamesWrongly])
def test_the_comparison_finds_a_mistake(make: type[VolumeFilesystem]) -> None:
    """Else it would prove nothing."""
    with pytest.raises(DifferenceFound):
        play_all(make, 60, shrinks=False)


def test_the_other_client_acts_where_the_reference_is_exact() -> None:
    """Directories that only a key implies are left to other tests."""
    assert all("/s/" not in path for path in SHARED)
