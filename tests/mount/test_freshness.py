"""Consistency: an open sees the newest committed version, and a read never mixes two versions."""

import errno
import itertools
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from .harness import Mount, MountVolume, Volume
from .programs import eventually, fails_with, run, run_python, start_python
from .witness import Bucket

VERSION_BYTES = 64 * 1024
STORM_S = 4.0
READERS = 16


def version(number: int, size: int = VERSION_BYTES) -> bytes:
    """Return bytes in which any mix of two versions shows: one number over and over."""
    return number.to_bytes(8, "little") * (size // 8)


def overwrite_here_and_read_there(here: str, there: str, count: str) -> None:
    """Commit versions of one size one after another; each must be what the other mount opens."""
    import sys

    stale, mixed = [], []
    for number in range(1, int(count) + 1):
        data = number.to_bytes(8, "little") * 512
        with open(here, "wb", buffering=0) as file:
            file.write(data)
        with open(there, "rb", buffering=0) as file:
            seen = file.read(1 << 20)
        if seen != data:
            (stale if seen == seen[:8] * 512 else mixed).append(number)
    sys.stdout.write(f"{len(stale)} stale {stale[:5]}, {len(mixed)} mixed {mixed[:5]}\n")


@pytest.mark.promise("P1", "P3")
@pytest.mark.parametrize(
    "count", [1_000, pytest.param(10_000, marks=[pytest.mark.long, pytest.mark.timeout(900)])]
)
def test_open_on_one_mount_sees_what_a_close_on_another_committed(
    mount_volume: MountVolume, count: int
) -> None:
    """Versions of the same size, many in each second: neither size nor time tells them apart."""
    writer, reader = mount_volume(), mount_volume()
    for mount in (writer, reader):
        mount.watch_again(seconds=900)
    told = run_python(
        overwrite_here_and_read_there,
        writer.path / "f",
        reader.path / "f",
        str(count),
        deadline_s=count / 10 + 30,
    )
    assert told == "0 stale [], 0 mixed []\n"


@pytest.mark.promise("P23")
def test_listing_of_one_mount_shows_what_another_made_within_the_ttl(
    mount_volume: MountVolume,
) -> None:
    one, two = mount_volume("--metadata-ttl=250ms"), mount_volume("--metadata-ttl=250ms")
    assert os.listdir(two.path) == []
    (one.path / "f").write_bytes(b"x")
    eventually("the new name shows", lambda: os.listdir(two.path) == ["f"], 5)
    assert (two.path / "f").read_bytes() == b"x"


@pytest.mark.promise("P20")
def test_one_of_two_mounts_wins_an_exclusive_create(mount_volume: MountVolume) -> None:
    paths = [mount_volume().path, mount_volume().path]
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    for number in range(20):
        barrier, won = threading.Barrier(2), []

        def attempt(
            directory: Path,
            name: str = f"lock{number}",
            barrier: threading.Barrier = barrier,
            won: list[Path] = won,
        ) -> None:
            barrier.wait()
            try:
                os.close(os.open(directory / name, flags, 0o644))
            except FileExistsError:
                return
            won.append(directory)

        threads = [threading.Thread(target=attempt, args=(path,)) for path in paths]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1, f"round {number}: {len(won)} winners"


@pytest.mark.promise("P18")
def test_lost_update_is_estale_at_close_and_the_winner_stays(mount_volume: MountVolume) -> None:
    mount = mount_volume()
    mount.bucket.put("f", b"base base")
    fd = os.open(mount.path / "f", os.O_RDWR)
    os.pwrite(fd, b"mine", 0)
    mount.bucket.put("f", b"theirs")
    with fails_with(errno.ESTALE):
        os.close(fd)
    assert mount.bucket.get("f") == b"theirs"
    assert (mount.path / "f").read_bytes() == b"theirs"


@pytest.mark.promise("P18")
def test_lost_append_is_estale_at_fsync(mount_volume: MountVolume) -> None:
    mount = mount_volume()
    mount.bucket.put("log", b"base\n")
    fd = os.open(mount.path / "log", os.O_WRONLY | os.O_APPEND)
    os.write(fd, b"mine\n")
    mount.bucket.put("log", b"theirs\n")
    with fails_with(errno.ESTALE):
        os.fsync(fd)
    with fails_with(errno.ESTALE):
        os.close(fd)
    assert mount.bucket.get("log") == b"theirs\n"


@pytest.mark.promise("P19")
def test_last_writer_of_a_replacement_wins(volume: Volume) -> None:
    volume.bucket.put("f", b"base")
    with open(volume.path / "f", "wb") as file:
        file.write(b"mine")
        file.flush()
        volume.bucket.put("f", b"theirs")
    assert volume.bucket.get("f") == b"mine"
    with open(volume.path / "new", "wb") as file:
        file.write(b"mine")
        file.flush()
        volume.bucket.put("new", b"theirs")
    assert volume.bucket.get("new") == b"mine"


def read_in_a_storm(path: str, floor_path: str, seconds: str, readers: str) -> None:
    """Open and read again and again, for so long and until there were enough opens and versions;
    report what no reader may ever see."""
    import json
    import mmap
    import sys
    import threading
    import time

    with open(floor_path, "r+b") as file:
        floor = mmap.mmap(file.fileno(), 8)
    report = {"opens": 0, "mixed": 0, "old": 0, "errors": []}
    lock = threading.Lock()
    end_at = time.monotonic() + float(seconds)

    def goes_on() -> bool:
        enough = report["opens"] > 100 and int.from_bytes(floor[:8], "little") > 50
        return not enough or time.monotonic() < end_at

    def read() -> None:
        while goes_on():
            committed = int.from_bytes(floor[:8], "little")
            seen, error = b"", ""
            try:
                with open(path, "rb", buffering=0) as file:
                    while piece := file.read(1 << 20):
                        seen += piece
            except OSError as failure:
                error = str(failure)
            with lock:
                report["opens"] += 1
                report["errors"] += [error] if error else []
                if not error:
                    report["mixed"] += seen != seen[:8] * (65536 // 8)
                    report["old"] += int.from_bytes(seen[:8], "little") < committed

    threads = [threading.Thread(target=read) for _ in range(int(readers))]
    for thread in threads:
        thread.start()
    sys.stdout.write("reading\n")
    sys.stdout.flush()
    for thread in threads:
        thread.join()
    report["failed"] = len(report["errors"])
    report["errors"] = report["errors"][:5]
    sys.stdout.write(json.dumps(report) + "\n")


@contextmanager
def overwriting(place: Bucket, name: str, floor_path: Path) -> Iterator[None]:
    """Put a new version again and again; the floor file tells the last one that was answered."""
    place.put(name, version(0))
    floor_path.write_bytes(bytes(8))
    stop = threading.Event()

    def put() -> None:
        with open(floor_path, "r+b", buffering=0) as floor:
            for number in itertools.count(1):
                if stop.is_set():
                    return
                place.put(name, version(number))
                os.pwrite(floor.fileno(), number.to_bytes(8, "little"), 0)

    thread = threading.Thread(target=put)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def assert_clean_storm(place: Bucket, path: Path, floor_path: Path) -> None:
    with overwriting(place, path.name, floor_path):
        program = start_python(read_in_a_storm, path, floor_path, f"{STORM_S}", f"{READERS}")
        with program:
            assert program.hear() == "reading"
            report = json.loads(program.hear(STORM_S + 60))
    assert report["errors"] == [], report
    assert (report["mixed"], report["old"]) == (0, 0), report


@pytest.mark.promise("P2")
def test_readers_in_a_storm_of_versions_get_whole_and_new_ones(
    mount: Mount, tmp_path: Path
) -> None:
    mount.bucket.put("a/b/f", b"")
    assert_clean_storm(mount.bucket.below("a/b"), mount.path / "a/b/f", tmp_path / "floor")


@pytest.mark.promise("P2")
def test_readers_in_a_storm_go_on_where_a_daemon_that_stood_still_goes_on(
    mount: Mount, tmp_path: Path
) -> None:
    """A machine that was suspended, or is short of time: opens are repeated long after they were
    begun, and the versions of before have gone."""
    mount.bucket.put("a/b/f", b"")
    path, floor_path = mount.path / "a/b/f", tmp_path / "floor"
    with (
        overwriting(mount.bucket.below("a/b"), "f", floor_path),
        start_python(read_in_a_storm, path, floor_path, f"{STORM_S}", f"{READERS}") as program,
    ):
        assert program.hear() == "reading"
        end_at = time.monotonic() + STORM_S
        while time.monotonic() < end_at:
            os.kill(mount.pid, signal.SIGSTOP)
            time.sleep(1.2)  # longer than the kernel is given to repeat an open
            os.kill(mount.pid, signal.SIGCONT)
            time.sleep(0.3)
        report = json.loads(program.hear(STORM_S + 60))
    assert report["errors"] == [], report
    assert (report["mixed"], report["old"]) == (0, 0), report


@pytest.mark.promise("P3")
def test_readers_in_a_storm_from_another_mount_get_whole_and_new_ones(
    mount_volume: MountVolume, tmp_path: Path
) -> None:
    writer, reader = mount_volume(), mount_volume()
    floor_path = tmp_path / "floor"
    floor_path.write_bytes(bytes(8))
    (writer.path / "f").write_bytes(version(0))
    with start_python(read_in_a_storm, reader.path / "f", floor_path, "2.0", "4") as program:
        assert program.hear() == "reading"
        number, end_at = 0, time.monotonic() + 2
        while number <= 50 or time.monotonic() < end_at:  # the readers want as many
            number += 1
            (writer.path / "f").write_bytes(version(number))
            floor_path.open("r+b").write(number.to_bytes(8, "little"))
        report = json.loads(program.hear())
    assert report["errors"] == [], report
    assert (report["mixed"], report["old"]) == (0, 0), report


def rename_over(path: str, seconds: str) -> None:
    """Commit a new file and rename it over `path`, again and again."""
    import os
    import sys
    import time

    end_at, count = time.monotonic() + float(seconds), 0
    while time.monotonic() < end_at:
        count += 1
        with open(f"{path}-{os.getpid()}", "wb") as file:
            file.write((os.getpid() << 32 | count).to_bytes(8, "little") * 8192)
        os.rename(f"{path}-{os.getpid()}", path)
    sys.stdout.write(f"{count}\n")


def open_what_is_renamed_over(path: str, seconds: str) -> None:
    """Open and read `path` again and again. Only a read may find its version gone."""
    import errno
    import os
    import sys
    import time

    end_at, count = time.monotonic() + float(seconds), 0
    while time.monotonic() < end_at:
        count += 1
        fd = os.open(path, os.O_RDONLY)
        try:
            data = os.read(fd, 1 << 20)
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
        else:
            assert data == data[:8] * 8192, "mixed"
        os.close(fd)
    sys.stdout.write(f"{count}\n")


@pytest.mark.promise("P2")
@pytest.mark.parametrize("renamers", [1, 3])
def test_no_open_and_no_rename_fails_while_two_mounts_rename_over_one_name(
    mount_volume: MountVolume, renamers: int
) -> None:
    mounts = [mount_volume(), mount_volume()]
    (mounts[0].path / "k").write_bytes(version(1))
    with ExitStack() as stack:
        programs = [
            stack.enter_context(start_python(function, mount.path / "k", f"{STORM_S}"))
            for mount in mounts
            for function in [rename_over] * renamers + [open_what_is_renamed_over] * 6
        ]
        counts = [int(program.hear(STORM_S + 60)) for program in programs]
    assert all(count > 5 for count in counts), counts


@pytest.mark.promise("P2")
def test_creating_open_of_a_path_whose_only_object_was_deleted_elsewhere_works(
    volume: Volume,
) -> None:
    volume.bucket.put("a/b/c", b"old")
    path = volume.path / "a/b/c"
    assert path.read_bytes() == b"old"
    volume.bucket.delete("a/b/c")
    fd = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
    assert os.read(fd, 10) == b""
    os.write(fd, b"new")
    os.close(fd)
    assert volume.bucket.get("a/b/c") == b"new"


@pytest.mark.promise("P2")
@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_RDWR, os.O_WRONLY | os.O_APPEND])
def test_open_of_a_file_that_was_deleted_elsewhere_is_enoent(volume: Volume, flags: int) -> None:
    volume.bucket.put("a/b/c", b"old")
    assert (volume.path / "a/b/c").read_bytes() == b"old"
    volume.bucket.delete("a/b/c")
    with fails_with(errno.ENOENT):
        os.open(volume.path / "a/b/c", flags)


@pytest.mark.promise("P1")
@pytest.mark.parametrize("flags", [os.O_RDWR, os.O_RDWR | os.O_APPEND, os.O_RDWR | os.O_CREAT])
def test_open_for_writing_begins_from_the_newest_version(volume: Volume, flags: int) -> None:
    volume.bucket.put("f", b"old")
    assert (volume.path / "f").read_bytes() == b"old"
    volume.bucket.put("f", b"newer")
    fd = os.open(volume.path / "f", flags, 0o644)
    assert os.fstat(fd).st_size == 5
    assert os.pread(fd, 10, 0) == b"newer"
    os.pwrite(fd, b"!", 5)
    os.close(fd)
    assert volume.bucket.get("f") == b"newer!"


@pytest.mark.promise("P1")
def test_open_relative_to_a_directory_sees_the_new_version(volume: Volume) -> None:
    volume.bucket.put("d/f", b"old")
    directory = os.open(volume.path / "d", os.O_RDONLY | os.O_DIRECTORY)
    for text in (b"one", b"other", b"third"):
        volume.bucket.put("d/f", text)
        fd = os.open("f", os.O_RDONLY, dir_fd=directory)
        assert os.read(fd, 10) == text
        os.close(fd)
    os.close(directory)


@pytest.mark.promise("P4")
def test_old_handle_keeps_the_bytes_that_it_had_and_never_gets_new_ones(volume: Volume) -> None:
    volume.bucket.put("f", version(1))
    with open(volume.path / "f", "rb", buffering=0) as old:
        assert old.read() == version(1)
        volume.bucket.put("f", version(2, 2 * VERSION_BYTES))
        assert (volume.path / "f").read_bytes() == version(2, 2 * VERSION_BYTES)
        old.seek(0)
        assert old.read() == version(1)
        # The kernel keeps what it was told of the file for the TTL of 1 s.
        eventually("no name left", lambda: os.fstat(old.fileno()).st_nlink == 0, 5)
        assert os.fstat(old.fileno()).st_size == VERSION_BYTES


@pytest.mark.promise("P4")
def test_bytes_never_fetched_of_an_overwritten_version_are_estale(volume: Volume) -> None:
    size = 96 << 20
    volume.bucket.put("f", version(1, size))
    with open(volume.path / "f", "rb", buffering=0) as old:
        assert old.read(8) == version(1, 8)
        volume.bucket.put("f", version(2, size))
        assert (volume.path / "f").read_bytes()[-8:] == version(2, 8)
        with fails_with(errno.ESTALE):
            os.pread(old.fileno(), 8, size - 8)


@pytest.mark.promise("P6")
def test_reopen_by_descriptor_gives_the_old_version(volume: Volume) -> None:
    volume.bucket.put("f", b"old bytes")
    fd = os.open(volume.path / "f", os.O_RDONLY)
    assert os.read(fd, 100) == b"old bytes"
    volume.bucket.put("f", b"new")
    for _ in range(3):
        again = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
        assert os.read(again, 100) == b"old bytes"
        os.close(again)
    os.close(fd)
    assert (volume.path / "f").read_bytes() == b"new"


@pytest.mark.promise("P6")
def test_reopen_of_a_path_descriptor_works(volume: Volume) -> None:
    volume.bucket.put("f", b"old bytes")
    assert (volume.path / "f").read_bytes() == b"old bytes"
    handle = os.open(volume.path / "f", os.O_PATH)
    volume.bucket.put("f", b"new")
    fd = os.open(f"/proc/self/fd/{handle}", os.O_RDONLY)
    assert os.read(fd, 100) == b"old bytes"
    os.close(fd)
    os.close(handle)


@pytest.mark.promise("P7")
def test_script_that_was_changed_elsewhere_runs_in_its_new_form(volume: Volume) -> None:
    for word in ("one", "two", "three"):
        volume.bucket.put("script", f"#!/bin/sh\necho {word}\n".encode())
        assert run(volume.path / "script") == f"{word}\n"


@pytest.mark.promise("P23")
def test_stat_shows_a_change_from_elsewhere_within_the_ttl(volume: Volume) -> None:
    volume.bucket.put("f", b"123")
    assert (volume.path / "f").stat().st_size == 3
    volume.bucket.put("f", b"12345")
    eventually("the new size shows", lambda: (volume.path / "f").stat().st_size == 5, 5)


@pytest.mark.promise("P23")
def test_missing_name_is_not_remembered(volume: Volume) -> None:
    for number in range(5):
        assert not (volume.path / f"f{number}").exists()
        volume.bucket.put(f"f{number}", b"x")
        assert (volume.path / f"f{number}").exists()


def test_directory_that_became_a_file_elsewhere_is_a_file(volume: Volume) -> None:
    volume.bucket.put("thing/inner", b"x")
    assert os.listdir(volume.path / "thing") == ["inner"]
    volume.bucket.delete("thing/inner")
    volume.bucket.put("thing", b"a file now")

    def content() -> bytes:
        try:
            return (volume.path / "thing").read_bytes()
        except OSError:
            return b""

    eventually("the file shows", lambda: content() == b"a file now", 5)
