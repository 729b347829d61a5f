"""The cache: one copy for all processes, limits, and what happens when there is no room."""

import multiprocessing
import os
import shutil
import threading
from contextlib import suppress
from dataclasses import replace
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import pytest

from ucfuse.data import UCVolumeDataset
from ucfuse.data.cache import Cache, How
from ucfuse.data.eviction import files_below
from ucfuse.data.layout import parse_record
from ucfuse.data.listing import Version

from .files import Files, complete_copies, write_files

NEVER = threading.Event()


def version_of(path: Path) -> Version:
    return Version.of(path.stat())


def obtain_at_once(source: Path, cache_dir: Path, start: Barrier, answers: Any) -> None:
    cache = Cache(str(source), str(cache_dir), None)
    start.wait()
    found = cache.obtain("cold.bin", version_of(source / "cold.bin"), 0, NEVER, urgent=True)
    assert found is not None
    answers.put((found.how.name, found.path, os.stat(found.path).st_ino))


def test_sixty_four_processes_that_want_one_cold_file_make_one_copy(
    volume_dir: Path, cache_dir: Path
) -> None:
    content = os.urandom(8 << 20)
    (volume_dir / "cold.bin").write_bytes(content)
    fork = multiprocessing.get_context("fork")
    start, answers = fork.Barrier(64), fork.SimpleQueue()
    processes = [
        fork.Process(target=obtain_at_once, args=(volume_dir, cache_dir, start, answers))
        for _ in range(64)
    ]
    for process in processes:
        process.start()
    received = [answers.get() for _ in processes]
    for process in processes:
        process.join()

    hows = [how for how, _, _ in received]
    assert (hows.count("COPIED"), hows.count("HIT")) == (1, 63)
    assert len({(path, inode) for _, path, inode in received}) == 1
    assert Path(received[0][1]).read_bytes() == content


def bytes_used(cache_dir: Path) -> int:
    """Return the size of all copies; one that is evicted meanwhile counts for nothing."""
    total = 0
    for path in complete_copies(cache_dir):
        with suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


def test_a_limit_holds_and_keeps_what_is_needed_first(volume_dir: Path, cache_dir: Path) -> None:
    """In a fixed order, an LRU would miss every file; what is known to come soon stays here."""
    files = write_files(volume_dir, 200, 1000)
    limit = sum(map(len, files.values())) // 2
    dataset = UCVolumeDataset(volume_dir, cache_dir=cache_dir, cache_bytes=limit)
    for _ in range(3):
        before = dataset.stats()
        contents = []
        for path in dataset:
            contents.append(Path(path).read_bytes())
            assert bytes_used(cache_dir) <= limit
        assert contents == [files[name] for name in sorted(files)]
    hits = dataset.stats()["hits"] - before["hits"]
    assert hits > len(files) // 5


def test_a_limit_below_one_file_passes_through(
    volume_dir: Path, cache_dir: Path, files: Files
) -> None:
    dataset = UCVolumeDataset(volume_dir, cache_dir=cache_dir, cache_bytes=100)
    for _ in range(2):
        assert list(dataset) == [str(volume_dir / name) for name in sorted(files)]
    assert dataset.stats()["passed"] == 2 * len(files)
    assert bytes_used(cache_dir) == 0


def test_a_limit_of_a_few_files_shared_by_processes_never_blocks(
    volume_dir: Path, cache_dir: Path, files: Files
) -> None:
    fork = multiprocessing.get_context("fork")
    answers = fork.SimpleQueue()

    def read_all() -> None:
        dataset = UCVolumeDataset(volume_dir, cache_dir=cache_dir, cache_bytes=7000)
        read = [Path(path).read_bytes() for _ in range(2) for path in dataset]
        answers.put(read == [files[name] for name in sorted(files)] * 2)

    processes = [fork.Process(target=read_all) for _ in range(4)]
    for process in processes:
        process.start()
    assert [answers.get() for _ in processes] == [True] * 4
    for process in processes:
        process.join()
    assert bytes_used(cache_dir) <= 7000


def test_a_file_that_the_disk_has_no_room_for_passes_through(
    volume_dir: Path, cache_dir: Path
) -> None:
    huge = volume_dir / "huge.bin"
    with huge.open("wb") as file:
        file.truncate(1 << 42)  # sparse, and more than the disk has
    assert list(UCVolumeDataset(volume_dir, cache_dir=cache_dir)) == [str(huge)]


def test_trouble_with_the_cache_is_named_once_and_the_source_is_read(
    volume_dir: Path, cache_dir: Path, files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    dataset = UCVolumeDataset(volume_dir, cache_dir=cache_dir)
    iterator = iter(dataset)
    next(iterator)
    iterator.close()  # type: ignore[attr-defined]
    for copy in complete_copies(cache_dir):
        copy.unlink()
    shutil.rmtree(cache_dir / "partial")
    (cache_dir / "partial").touch()
    assert list(dataset) == [str(volume_dir / name) for name in sorted(files)]
    complaints = [record for record in caplog.records if str(cache_dir) in record.getMessage()]
    assert len(complaints) == 1


def test_a_pinned_copy_is_not_evicted_by_another_user(volume_dir: Path, cache_dir: Path) -> None:
    files = write_files(volume_dir, 2, 1000)
    one, other = (Cache(str(volume_dir), str(cache_dir), 1500) for _ in range(2))
    first, second = sorted(files)
    held = one.obtain(first, version_of(volume_dir / first), 9, NEVER, urgent=True)
    assert held is not None
    other.begin_pass(lambda copy: 9)

    def ask() -> How:
        found = other.obtain(second, version_of(volume_dir / second), 1, NEVER, urgent=True)
        assert found is not None
        return found.how

    assert ask() is How.PASSED
    one.let_go(held)
    assert os.path.exists(held.path)


def test_partial_copies_of_killed_processes_vanish_and_their_room_returns(
    volume_dir: Path, cache_dir: Path
) -> None:
    files = write_files(volume_dir, 1, 1000)
    (name,) = files
    cache = Cache(str(volume_dir), str(cache_dir), 1500)
    found = cache.obtain(name, version_of(volume_dir / name), 0, NEVER, urgent=True)
    assert found is not None
    cache.let_go(found)
    key = cache.layout.key(name)
    os.rename(found.path, cache.layout.partial(key))  # as if killed before it was published

    again = Cache(str(volume_dir), str(cache_dir), 1500)

    assert list(files_below(again.layout.partials)) == []
    copied = again.obtain(name, version_of(volume_dir / name), 0, NEVER, urgent=True)
    assert copied is not None
    assert copied.how is How.COPIED


def test_after_a_new_mount_size_and_time_count_and_from_then_on_the_inode_again(
    volume_dir: Path, cache_dir: Path
) -> None:
    (name,) = write_files(volume_dir, 1, 1000)
    path = volume_dir / name
    cache = Cache(str(volume_dir), str(cache_dir), None)
    assert cache.obtain(name, version_of(path), 0, NEVER, urgent=True) is not None
    record = Path(cache.layout.record(cache.layout.key(name)))
    made = parse_record(record.read_bytes())
    assert made is not None
    record.write_bytes(replace(made, life="the one before").as_bytes())

    def put_another_in_its_place() -> Version:
        """The same size, the same time: what unchanged files look like after a new mount."""
        status = path.stat()
        other = volume_dir / "other"
        other.write_bytes(path.read_bytes())
        os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
        other.rename(path)
        return version_of(path)

    now = put_another_in_its_place()
    fresh = Cache(str(volume_dir), str(cache_dir), None)
    assert fresh.look_up(name, now) is not None
    now = put_another_in_its_place()
    for each in (fresh, Cache(str(volume_dir), str(cache_dir), None)):
        assert each.look_up(name, now) is None


def test_a_file_that_was_cut_since_it_was_listed_is_copied_as_it_is(
    volume_dir: Path, cache_dir: Path
) -> None:
    (name,) = write_files(volume_dir, 1, 5000)
    listed = version_of(volume_dir / name)
    (volume_dir / name).write_bytes(b"short")
    cache = Cache(str(volume_dir), str(cache_dir), None)
    found = cache.obtain(name, listed, 0, NEVER, urgent=True)
    assert found is not None
    assert Path(found.path).read_bytes() == b"short"
