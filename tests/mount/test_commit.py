"""When a file is committed: at fsync and at the last close of a handle, once, and whole."""

import os
import signal

import pytest

from .harness import Mount, Volume
from .programs import eventually, run_python, shell, start_python

HALF = b"h" * 100_000
WHOLE = HALF + b"r" * 50_000


def write_with_a_subprocess_in_between(path: str) -> None:
    import subprocess
    import sys

    with open(path, "wb", buffering=0) as file:
        file.write(b"h" * 100_000)
        subprocess.run(["true"], check=True)
        sys.stdout.write("half\n")
        sys.stdout.flush()
        sys.stdin.readline()
        file.write(b"r" * 50_000)


def write_with_a_fork_in_between(path: str) -> None:
    import os
    import sys

    with open(path, "wb", buffering=0) as file:
        file.write(b"h" * 100_000)
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        sys.stdout.write("half\n")
        sys.stdout.flush()
        sys.stdin.readline()
        file.write(b"r" * 50_000)


def write_with_duplicates_in_between(path: str) -> None:
    import os
    import sys

    first = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.write(first, b"h" * 100_000)
    second = os.dup(first)
    os.close(first)
    third = os.open("/dev/null", os.O_WRONLY)
    os.dup2(second, third)
    os.close(second)
    sys.stdout.write("half\n")
    sys.stdout.flush()
    sys.stdin.readline()
    os.write(third, b"r" * 50_000)
    os.dup2(os.open("/dev/null", os.O_WRONLY), third)


def write_while_a_thread_opens_and_ends(path: str) -> None:
    import os
    import subprocess
    import sys
    import threading

    opened = []

    def open_it() -> None:
        opened.append(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644))

    thread = threading.Thread(target=open_it)
    thread.start()
    thread.join()
    os.write(opened[0], b"h" * 100_000)
    subprocess.run(["true"], check=True)
    sys.stdout.write("half\n")
    sys.stdout.flush()
    sys.stdin.readline()
    os.write(opened[0], b"r" * 50_000)
    os.close(opened[0])


WRITERS = [
    write_with_a_subprocess_in_between,
    write_with_a_fork_in_between,
    write_with_duplicates_in_between,
    write_while_a_thread_opens_and_ends,
]


@pytest.mark.promise("P10")
@pytest.mark.parametrize("writer", WRITERS)
def test_flush_in_mid_write_publishes_nothing_and_the_close_commits_once(
    volume: Volume, writer: object
) -> None:
    assert callable(writer)
    with volume.counting() as counts, start_python(writer, volume.path / "f") as program:
        assert program.hear() == "half"
        assert not volume.bucket.has("f")
        program.say()
        program.end()
    assert volume.bucket.get("f") == WHOLE
    assert counts.store["PUT"] == 1
    assert counts.store["CREATE"] == 0


@pytest.mark.promise("P10")
def test_old_version_stays_until_the_close_of_a_writer_that_forked(volume: Volume) -> None:
    volume.bucket.put("f", b"old")
    with start_python(write_with_a_fork_in_between, volume.path / "f") as program:
        assert program.hear() == "half"
        assert volume.bucket.get("f") == b"old"
        program.say()
        program.end()
    assert volume.bucket.get("f") == WHOLE


def test_shell_group_commits_once(volume: Volume) -> None:
    with volume.counting() as counts:
        shell("{ echo a; /bin/echo b; /bin/echo c; echo d; } > f", cwd=volume.path)
    assert volume.bucket.get("f") == b"a\nb\nc\nd\n"
    assert counts.store["PUT"] == 1


def close_with_dev_null_around(path: str, tell: str, wait: str) -> None:
    import os

    for standard in range(3):
        os.dup2(os.open("/dev/null", os.O_RDWR), standard)
    reader = os.open(path, os.O_RDONLY)
    writer = os.open(path, os.O_RDWR)
    os.pwrite(writer, b"NEW", 0)
    os.close(writer)
    os.write(int(tell), b"closed")
    os.read(int(wait), 1)
    os.close(reader)


def test_writer_with_dev_null_and_a_reader_of_its_own_commits_at_close(mount: Mount) -> None:
    # /dev/null has a small inode number too, so the files take the first ones of the mount.
    names = [f"f{number}" for number in range(6)]
    for name in names:
        mount.bucket.put(name, b"old bytes")
    for name in names:
        told, tell = os.pipe()
        wait, go_on = os.pipe()
        program = start_python(
            close_with_dev_null_around, mount.path / name, f"{tell}", f"{wait}",
            pass_fds=(tell, wait),
        )  # fmt: skip
        with program:
            os.close(tell)
            assert os.read(told, 6) == b"closed"
            assert mount.bucket.get(name) == b"NEW bytes"
            os.write(go_on, b"x")
            program.end()
        for fd in (told, wait, go_on):
            os.close(fd)


def write_by_two_handles(path: str) -> None:
    import os
    import sys

    first = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    second = os.open(path, os.O_WRONLY)
    os.write(first, b"first")
    os.close(first)
    sys.stdout.write("closed\n")
    sys.stdout.flush()
    sys.stdin.readline()
    os.pwrite(second, b"+second", 5)
    os.close(second)


def test_close_of_one_of_two_handles_commits_what_is_there(volume: Volume) -> None:
    with start_python(write_by_two_handles, volume.path / "f") as program:
        assert program.hear() == "closed"
        assert volume.bucket.get("f") == b"first"
        program.say()
        program.end()
    assert volume.bucket.get("f") == b"first+second"


def change_a_mapping_after_the_close(path: str) -> None:
    import mmap
    import os

    fd = os.open(path, os.O_RDWR)
    mapped = mmap.mmap(fd, 0)
    os.close(fd)
    mapped[0:5] = b"LATER"
    mapped.close()


def change_a_mapping_with_no_descriptor(path: str) -> None:
    import ctypes
    import os

    # Python's mmap keeps a duplicate of the descriptor; the system call alone does not.
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    fd = os.open(path, os.O_RDWR)
    address = libc.mmap(None, 4096, 3, 1, fd, 0)
    os.close(fd)
    ctypes.memmove(address, b"LATER", 5)
    libc.munmap(address, 4096)


MAPPERS = [change_a_mapping_after_the_close, change_a_mapping_with_no_descriptor]


@pytest.mark.promise("P11")
@pytest.mark.parametrize("mapper", MAPPERS)
def test_mapping_changed_after_the_last_close_is_committed(volume: Volume, mapper: object) -> None:
    assert callable(mapper)
    volume.bucket.put("f", bytes(10_000))
    run_python(mapper, volume.path / "f")
    expected = b"LATER" + bytes(9995)
    eventually("the mapped page in the store", lambda: volume.bucket.get("f") == expected)
    assert (volume.path / "f").read_bytes() == expected
    assert volume.status()["uncommitted"] == []


def write_and_wait(path: str) -> None:
    import sys
    import time

    with open(path, "wb", buffering=0) as file:
        file.write(b"h" * 100_000)
        sys.stdout.write("written\n")
        sys.stdout.flush()
        time.sleep(3600)


@pytest.mark.promise("P11")
def test_killed_writer_commits_what_it_wrote(volume: Volume) -> None:
    with start_python(write_and_wait, volume.path / "f") as program:
        assert program.hear() == "written"
        program.process.send_signal(signal.SIGKILL)
        program.end(expect=-signal.SIGKILL)
        assert volume.bucket.get("f") == HALF


def leave_the_file_to_a_child(path: str) -> None:
    import os
    import sys
    import time

    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.write(fd, b"parent ")
    parent = os.getpid()
    if os.fork() == 0:
        while os.getppid() == parent:
            time.sleep(0.001)
        os.write(fd, b"child")
        os.close(fd)
        sys.stdout.write("closed\n")
        sys.stdout.flush()


def test_child_that_outlives_the_opener_commits_at_its_close(volume: Volume) -> None:
    with start_python(leave_the_file_to_a_child, volume.path / "f") as program:
        assert program.hear() == "closed"
        assert volume.bucket.get("f") == b"parent child"
        program.end()


def test_unmount_commits_nothing_twice_and_remount_reads_the_same(mount: Mount) -> None:
    (mount.path / "f").write_bytes(WHOLE)
    before = mount.bucket.head("f")
    mount.remount()
    after = mount.bucket.head("f")
    assert before is not None
    assert after is not None
    assert before["ETag"] == after["ETag"]
    assert before["LastModified"] == after["LastModified"]
    assert (mount.path / "f").read_bytes() == WHOLE
