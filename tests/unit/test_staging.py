"""Staging files: what was written is what is read, whatever the disk does."""

import errno
import os
import stat
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from ucfuse.errors import FileTooLarge, StagingFull
from ucfuse.volume import KiB, MiB
from ucfuse.writing.area import PROGRAM_THREAD_COUNT, StagingArea
from ucfuse.writing.parts import MAX_OBJECT_BYTES
from ucfuse.writing.staging import Hole, Staging

LONG = 300 * KiB  # long enough for a worker thread


@dataclass
class SmallDisk:
    """A disk that takes only `room` more bytes; writing less than asked before it says so."""

    room: int

    def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        if self.room == 0:
            raise OSError(errno.ENOSPC, "no space left")
        done = os.pwrite(fd, data[: self.room], offset)
        self.room -= done
        return done


@dataclass
class HeldDisk:
    """A disk that answers no write while `free` is cleared."""

    free: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.free.set()

    def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        self.free.wait()
        return os.pwrite(fd, data, offset)


@dataclass
class Owner:
    """Somebody with a committed file that goes when it is told to; frees room on the disk."""

    staging: Staging
    disk: SmallDisk | None = None
    evicted: bool = False

    def evict(self) -> None:
        self.evicted = True
        if self.disk is not None:
            self.disk.room += self.staging.written.byte_count
        self.staging.close()


@pytest.fixture
async def area(tmp_path: Path) -> AsyncIterator[StagingArea]:
    area = StagingArea(tmp_path / "staging")
    yield area
    area.close()


async def content(staging: Staging, base: bytes = b"") -> bytes:
    pieces = await staging.read(0, staging.size + 100)
    return b"".join(base[p.start : p.stop] if isinstance(p, Hole) else p for p in pieces)


async def test_bytes_never_written_in_a_new_file_are_zeros(area: StagingArea) -> None:
    staging = area.new("a.bin", 0)

    await staging.write(3, b"xyz")
    await staging.truncate(8)

    assert await staging.read(0, 100) == [b"\0\0\0xyz\0\0"]
    assert await staging.read(2, 2) == [b"\0x"]
    assert staging.holes() == []


async def test_bytes_of_the_base_are_holes_until_they_are_filled(area: StagingArea) -> None:
    staging = area.new("a.bin", 10)
    await staging.write(4, b"NEW")

    assert await staging.read(2, 6) == [Hole(2, 4), b"NEW", Hole(7, 8)]
    assert staging.holes() == [Hole(0, 4), Hole(7, 10)]

    await staging.fill(0, b"0123456789")
    assert staging.holes() == []
    assert await staging.read(0, 10) == [b"0123NEW789"]


async def test_what_a_truncation_cut_off_never_comes_back(area: StagingArea) -> None:
    staging = area.new("a.bin", 10)
    await staging.write(8, b"written")

    await staging.truncate(4)
    await staging.truncate(12)
    await staging.fill(0, b"0123456789")

    assert await content(staging) == b"0123" + bytes(8)


async def test_reads_end_at_the_end_of_the_file(area: StagingArea) -> None:
    staging = area.new("a.bin", 10)

    assert await staging.read(6, 100) == [Hole(6, 10)]
    assert await staging.read(10, 5) == []
    assert await staging.read(50, 5) == []


async def test_writing_nothing_changes_nothing(area: StagingArea) -> None:
    staging = area.new("a.bin", 0)

    await staging.write(100, b"")

    assert staging.size == 0


async def test_long_writes_and_reads_go_through_threads_unharmed(area: StagingArea) -> None:
    data = os.urandom(LONG)
    staging = area.new("a.bin", 0)

    async with trio.open_nursery() as nursery:
        for start in range(0, LONG * 4, LONG):
            nursery.start_soon(staging.write, start, data)

    assert await content(staging) == data * 4
    assert (await staging.read_body(LONG, 2 * LONG))[0] == data


async def test_any_buffer_can_be_written(area: StagingArea) -> None:
    staging = area.new("a.bin", 0)

    await staging.write(0, bytearray(b"ab"))
    await staging.write(2, memoryview(b"xcdx")[1:3])

    assert await content(staging) == b"abcd"


async def test_a_body_with_bytes_of_the_base_in_it_is_a_bug(area: StagingArea) -> None:
    staging = area.new("a.bin", 10)
    await staging.write(0, b"12345")

    assert (await staging.read_body(0, 5))[0] == b"12345"
    with pytest.raises(AssertionError):
        await staging.read_body(0, 6)


async def test_a_body_past_the_end_is_a_bug(area: StagingArea) -> None:
    staging = area.new("a.bin", 0)
    await staging.write(0, b"12345")

    with pytest.raises(AssertionError):
        await staging.read_body(0, 6)


async def test_sizes_that_no_object_can_have_are_refused_at_once(area: StagingArea) -> None:
    staging = area.new("a.bin", 0)

    with pytest.raises(FileTooLarge):
        await staging.truncate(MAX_OBJECT_BYTES + 1)
    with pytest.raises(FileTooLarge):
        await staging.write(MAX_OBJECT_BYTES, b"x")

    assert staging.size == 0


async def test_cancelling_a_long_write_leaves_it_whole_or_undone(area: StagingArea) -> None:
    staging = area.new("a.bin", 0)

    with trio.CancelScope() as scope:
        scope.cancel()
        await staging.write(0, b"x" * LONG)

    assert await content(staging) in (b"", b"x" * LONG)


async def test_a_cut_during_a_long_read_shows_no_zeros_in_place_of_data(
    tmp_path: Path,
) -> None:
    """The read waits for a thread with the old size in mind while the file is cut."""
    disk = HeldDisk()
    area = StagingArea(tmp_path, pwrite=disk.pwrite)
    staging = area.new("a.bin", 2 * LONG + 10)
    await staging.write(0, b"x" * LONG)
    await staging.write(LONG + 10, b"x" * LONG)
    seen: list[bytes] = []

    async def read() -> None:
        seen.append(await content(staging, base=b"x" * 2 * LONG))

    disk.free.clear()
    async with trio.open_nursery() as nursery:
        for _ in range(PROGRAM_THREAD_COUNT):
            nursery.start_soon(area.new("busy.bin", 0).write, 0, b"b" * LONG)
        await wait_all_tasks_blocked()
        nursery.start_soon(read)
        await wait_all_tasks_blocked()
        nursery.start_soon(staging.truncate, 10)
        await wait_all_tasks_blocked()
        disk.free.set()

    assert seen == [b"x" * 10]


async def test_a_large_file_is_removed_at_close_too(area: StagingArea) -> None:
    staging = area.new("a.bin", 0)
    await staging.write(0, b"x")
    await staging.write(17 * MiB, b"x")

    staging.close()

    assert not staging.path.exists()


# A full disk


@pytest.mark.parametrize("length", [1000, LONG])
async def test_of_a_write_that_did_not_fit_nothing_counts(tmp_path: Path, length: int) -> None:
    area = StagingArea(tmp_path, pwrite=SmallDisk(room=500).pwrite)
    staging = area.new("a.bin", 100)

    with pytest.raises(StagingFull):
        await staging.write(0, b"x" * length)

    assert staging.size == 100
    assert staging.holes() == [Hole(0, 100)]


async def test_what_a_failed_write_left_on_the_disk_is_not_read_as_data(tmp_path: Path) -> None:
    area = StagingArea(tmp_path, pwrite=SmallDisk(room=5).pwrite)
    staging = area.new("a.bin", 0)
    with pytest.raises(StagingFull):
        await staging.write(0, b"x" * 10)

    await staging.truncate(10)

    assert await content(staging) == bytes(10)
    assert (await staging.read_body(0, 10))[0] == bytes(10)


async def test_short_writes_are_carried_on(tmp_path: Path) -> None:
    area = StagingArea(tmp_path, pwrite=lambda fd, data, offset: os.pwrite(fd, data[:7], offset))
    staging = area.new("a.bin", 0)

    await staging.write(0, bytes(range(100)))

    assert await content(staging) == bytes(range(100))


async def test_a_full_disk_costs_the_clean_files_first(tmp_path: Path) -> None:
    disk = SmallDisk(room=1500)
    area = StagingArea(tmp_path, pwrite=disk.pwrite)
    owner = Owner(area.new("old.bin", 0), disk)
    await owner.staging.write(0, b"o" * 1000)
    owner.staging.mark_clean(owner.evict)
    staging = area.new("new.bin", 0)

    await staging.write(0, b"n" * 1000)

    assert owner.evicted
    assert await content(staging) == b"n" * 1000


async def test_a_large_clean_file_gives_its_space_to_the_write_that_evicted_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last close takes long and happens in a thread: the write comes after it."""
    disk, is_refused = SmallDisk(room=10), threading.Event()
    really_close = os.close

    def pwrite(fd: int, data: memoryview, offset: int) -> int:
        is_refused.set()
        return disk.pwrite(fd, data, offset)

    def close_slowly(fd: int) -> None:
        if threading.current_thread() is not threading.main_thread():
            is_refused.wait(10)
            disk.room = 1000
        really_close(fd)

    area = StagingArea(tmp_path, pwrite=pwrite)
    large, staging = area.new("large.bin", 0), area.new("new.bin", 0)
    await large.write(64 * MiB, b"x" * 10)
    is_refused.clear()
    monkeypatch.setattr(os, "close", close_slowly)
    large.mark_clean(large.close)

    await staging.write(0, b"n" * 500)

    assert await content(staging) == b"n" * 500


async def test_other_failures_of_the_disk_are_not_called_full(tmp_path: Path) -> None:
    def broken(_fd: int, _data: memoryview, _offset: int) -> int:
        raise OSError(errno.EIO, "broken")

    staging = StagingArea(tmp_path, pwrite=broken).new("a.bin", 0)

    with pytest.raises(OSError, match="broken") as raised:
        await staging.write(0, b"x")

    assert raised.value.errno == errno.EIO
    assert staging.size == 0


# Clean files


async def clean_file(area: StagingArea, length: int) -> Owner:
    owner = Owner(area.new("clean.bin", 0))
    await owner.staging.write(0, b"c" * length)
    owner.staging.mark_clean(owner.evict)
    return owner


async def test_the_clean_file_read_longest_ago_goes_first(tmp_path: Path) -> None:
    area = StagingArea(tmp_path, clean_limit_bytes=250)
    first, second = await clean_file(area, 100), await clean_file(area, 100)
    await first.staging.read(0, 1)

    third = await clean_file(area, 100)

    assert (first.evicted, second.evicted, third.evicted) == (False, True, False)
    assert area.clean_bytes == 200
    assert not second.staging.path.exists()


async def test_a_file_over_the_limit_goes_alone(tmp_path: Path) -> None:
    area = StagingArea(tmp_path, clean_limit_bytes=250)
    small = await clean_file(area, 100)

    large = await clean_file(area, 300)

    assert (small.evicted, large.evicted) == (False, True)


async def test_a_file_that_changes_again_is_not_evicted(tmp_path: Path) -> None:
    area = StagingArea(tmp_path, clean_limit_bytes=250)
    owner = await clean_file(area, 200)

    await owner.staging.write(0, b"dirty")
    await clean_file(area, 200)

    assert not owner.evicted
    assert area.clean_bytes == 200


async def test_an_evicted_file_serves_the_read_under_way(tmp_path: Path) -> None:
    area = StagingArea(tmp_path)
    owner = await clean_file(area, LONG)
    seen: list[bytes] = []

    async def read() -> None:
        seen.append(await content(owner.staging))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await wait_all_tasks_blocked()
        owner.evict()

    assert seen == [b"c" * LONG]


# Files and directories


async def test_files_are_private_and_named_after_the_key(area: StagingArea) -> None:
    staging = area.new("data/../../etc/Gewichte ü/model-1.pt", 0)

    assert staging.path.parent == area.path
    assert "model-1.pt" in staging.path.name
    assert stat.S_IMODE(staging.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(area.path.stat().st_mode) == 0o700
    assert stat.S_IMODE(area.path.parent.stat().st_mode) == 0o700


@given(label=st.text(max_size=300))
def test_any_key_gives_a_name_in_the_directory(label: str) -> None:
    async def run(directory: Path) -> None:
        area = StagingArea(directory)
        first, second = area.new(label, 0), area.new(label, 0)
        assert first.path != second.path
        assert first.path.resolve().parent == area.path.resolve()
        for staging in (first, second):
            staging.close()
        area.close()

    with TemporaryDirectory() as directory:
        trio.run(run, Path(directory))


async def test_close_removes_the_file(area: StagingArea) -> None:
    staging = area.new("a.bin", 0)
    await staging.write(0, b"x")

    staging.close()
    staging.close()

    assert not staging.path.exists()


async def test_a_kept_file_has_the_bytes_and_outlives_close_and_session(
    area: StagingArea, caplog: pytest.LogCaptureFixture
) -> None:
    staging = area.new("a.bin", 0)
    await staging.write(0, b"x")
    await staging.truncate(3)

    path = staging.keep("the bucket is gone")
    staging.close()
    area.close()

    assert path.read_bytes() == b"x\0\0"
    assert str(path) in caplog.text
    assert "the bucket is gone" in caplog.text


async def test_a_kept_file_that_is_committed_after_all_is_not_left(area: StagingArea) -> None:
    staging = area.new("a.bin", 0)
    await staging.write(0, b"x")

    staging.keep("an outage")
    staging.mark_clean(staging.close)
    staging.close()

    assert not staging.path.exists()


async def test_a_closed_file_is_not_read_from_another_one(area: StagingArea) -> None:
    staging = area.new("a.bin", 0)
    await staging.write(0, b"x")
    staging.close()

    with pytest.raises(AssertionError):
        await staging.read(0, 1)


async def test_an_empty_session_leaves_no_directory(tmp_path: Path) -> None:
    with StagingArea(tmp_path) as area:
        area.new("a.bin", 0).close()
        path = area.path

    assert not path.exists()


async def test_the_files_of_a_dead_session_stay(tmp_path: Path) -> None:
    with StagingArea(tmp_path) as dead:
        left = dead.new("a.bin", 0).path

    with StagingArea(tmp_path) as area:
        assert area.path != dead.path

    assert left.exists()


async def test_only_empty_directories_of_dead_sessions_are_removed(tmp_path: Path) -> None:
    dead = tmp_path / "session-dead"
    dead.mkdir()
    (dead / "lock").touch()
    living = StagingArea(tmp_path)

    StagingArea(tmp_path).close()

    assert not dead.exists()
    assert living.path.exists()


# Against a reference


@dataclass
class Reference:
    """What the file is, by the plainest means: the base's bytes, changed in memory."""

    data: bytearray
    base: bytes = field(init=False)

    def __post_init__(self) -> None:
        self.base = bytes(self.data)

    def write(self, offset: int, piece: bytes) -> None:
        if piece:
            self.truncate(max(len(self.data), offset + len(piece)))
            self.data[offset : offset + len(piece)] = piece

    def truncate(self, size: int) -> None:
        del self.data[size:]
        self.data.extend(bytes(size - len(self.data)))


offsets = st.integers(0, 60)
operations = st.one_of(
    st.tuples(st.just("write"), offsets, st.binary(max_size=20)),
    st.tuples(st.just("write to full disk"), offsets, st.binary(min_size=2, max_size=20)),
    st.tuples(st.just("truncate"), offsets, st.just(b"")),
    st.tuples(st.just("fill"), offsets, st.just(b"")),
)


@given(base=st.binary(max_size=40), steps=st.lists(operations, max_size=20))
def test_staging_over_its_base_is_the_file(
    base: bytes, steps: list[tuple[str, int, bytes]]
) -> None:
    """After any sequence of changes, refused ones included, every byte is right."""
    with TemporaryDirectory() as directory:
        trio.run(partial(run_against_reference, Path(directory), base, steps))


async def run_against_reference(
    directory: Path, base: bytes, steps: list[tuple[str, int, bytes]]
) -> None:
    disk = SmallDisk(room=MiB)
    area = StagingArea(directory, pwrite=disk.pwrite)
    staging = area.new("a.bin", len(base))
    reference = Reference(bytearray(base))
    for name, offset, piece in steps:
        if name == "write":
            await staging.write(offset, piece)
            reference.write(offset, piece)
        elif name == "truncate":
            await staging.truncate(offset)
            reference.truncate(offset)
        elif name == "fill":
            await staging.fill(offset, base[offset : offset + 10])
        elif not staging.written.missing(offset, offset + len(piece)):
            continue  # bytes written before may be old or new after this
        else:
            disk.room = 1
            with pytest.raises(StagingFull):
                await staging.write(offset, piece)
            disk.room = MiB
            for start, stop in overwritten(staging, offset):
                await staging.write(start, bytes(reference.data[start:stop]))
        assert await content(staging, base) == bytes(reference.data)
        assert staging.size == len(reference.data)
    staging.close()
    area.close()


def overwritten(staging: Staging, offset: int) -> Iterator[tuple[int, int]]:
    """The written byte that the one byte which still fitted replaced, if it was one."""
    if staging.written.contains(offset, offset + 1):
        yield offset, offset + 1
