"""Single files: what is written is in the store when close returns, and errnos are right."""

import errno
import fcntl
import hashlib
import os
import random
import stat

import pytest

from .harness import Volume
from .programs import fails_with, run_python, start_python

MiB = 1 << 20


def noise(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


@pytest.mark.promise("P9")
def test_written_file_is_in_the_store_when_close_returns(volume: Volume) -> None:
    with open(volume.path / "a.bin", "wb", buffering=0) as file:
        file.write(b"hello")
        assert not volume.bucket.has("a.bin")

    assert volume.bucket.get("a.bin") == b"hello"
    assert (volume.path / "a.bin").read_bytes() == b"hello"


@pytest.mark.promise("P9")
def test_fsync_puts_the_bytes_into_the_store_before_close(volume: Volume) -> None:
    with open(volume.path / "log", "wb", buffering=0) as file:
        file.write(b"one")
        os.fsync(file.fileno())
        assert volume.bucket.get("log") == b"one"
        file.write(b"two")
    assert volume.bucket.get("log") == b"onetwo"


def test_object_put_elsewhere_is_read_through_the_mount(volume: Volume) -> None:
    volume.bucket.put("there/deep/x", b"from elsewhere")
    assert (volume.path / "there/deep/x").read_bytes() == b"from elsewhere"


@pytest.mark.parametrize("size", [0, 1, 4096, MiB + 1, 8 * MiB, 9 * MiB + 3, 20 * MiB])
def test_file_of_any_size_has_the_right_bytes(volume: Volume, size: int) -> None:
    data = noise(size)
    (volume.path / "f").write_bytes(data)
    assert volume.bucket.get("f") == data
    assert (volume.path / "f").read_bytes() == data
    assert (volume.path / "f").stat().st_size == size


@pytest.mark.promise("P7")
@pytest.mark.parametrize("size", [0, 1, MiB, MiB + 1, 20 * MiB + 5])
def test_object_of_any_size_is_read_whole_and_in_random_pieces(volume: Volume, size: int) -> None:
    data = noise(size)
    volume.bucket.put("f", data)
    dice = random.Random(size)
    with open(volume.path / "f", "rb", buffering=0) as file:
        for _ in range(20):
            offset = dice.randrange(size + 1)
            assert os.pread(file.fileno(), 70_000, offset) == data[offset : offset + 70_000]
    assert (volume.path / "f").read_bytes() == data


@pytest.mark.promise("P14")
def test_append_adds_to_what_is_there(volume: Volume) -> None:
    volume.bucket.put("log", b"first\n")
    for line in (b"second\n", b"third\n"):
        with open(volume.path / "log", "ab") as file:
            file.write(line)
    assert volume.bucket.get("log") == b"first\nsecond\nthird\n"


@pytest.mark.promise("P14")
def test_two_appenders_lose_nothing(volume: Volume) -> None:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    one, two = (os.open(volume.path / "log", flags, 0o644) for _ in range(2))
    for number in range(20):
        os.write((one, two)[number % 2], b"%04d" % number)
    os.close(one)
    os.close(two)
    assert volume.bucket.get("log") == b"".join(b"%04d" % number for number in range(20))


def test_truncating_open_replaces_the_bytes(volume: Volume) -> None:
    volume.bucket.put("f", b"a long old text")
    with open(volume.path / "f", "wb") as file:
        file.write(b"new")
    assert volume.bucket.get("f") == b"new"


def test_truncating_open_without_a_write_empties_the_file(volume: Volume) -> None:
    volume.bucket.put("f", b"old")
    os.close(os.open(volume.path / "f", os.O_WRONLY | os.O_TRUNC))
    assert volume.bucket.get("f") == b""


@pytest.mark.promise("P12")
def test_opened_but_not_written_uploads_nothing(volume: Volume) -> None:
    volume.bucket.put("f", b"as it is")
    before = volume.bucket.head("f")
    os.close(os.open(volume.path / "f", os.O_RDWR))
    after = volume.bucket.head("f")
    assert before is not None
    assert after is not None
    assert after["ETag"] == before["ETag"]
    assert after["LastModified"] == before["LastModified"]


@pytest.mark.promise("P14")
@pytest.mark.parametrize("size", [1000, 9 * MiB])
def test_random_writes_keep_the_other_bytes(volume: Volume, size: int) -> None:
    expected = bytearray(noise(size))
    volume.bucket.put("f", bytes(expected))
    dice = random.Random(7)
    with open(volume.path / "f", "r+b", buffering=0) as file:
        for _ in range(30):
            offset, piece = dice.randrange(size), dice.randbytes(dice.randrange(1, 300))
            os.pwrite(file.fileno(), piece, offset)
            end = offset + len(piece)
            expected[offset:end] = piece
            assert os.pread(file.fileno(), 500, offset) == expected[offset : offset + 500]
    assert volume.bucket.get("f") == expected
    assert (volume.path / "f").read_bytes() == expected


@pytest.mark.promise("P14")
def test_write_past_the_end_leaves_zeros_between(volume: Volume) -> None:
    with open(volume.path / "f", "wb", buffering=0) as file:
        file.write(b"ab")
        os.pwrite(file.fileno(), b"yz", 5000)
    assert volume.bucket.get("f") == b"ab" + bytes(4998) + b"yz"


@pytest.mark.promise("P13")
@pytest.mark.parametrize(("size", "expected"), [(0, b""), (3, b"abc"), (8, b"abcdef\0\0")])
def test_truncate_by_path_is_in_the_store_at_once(
    volume: Volume, size: int, expected: bytes
) -> None:
    volume.bucket.put("f", b"abcdef")
    os.truncate(volume.path / "f", size)
    assert volume.bucket.get("f") == expected
    assert (volume.path / "f").read_bytes() == expected


def test_truncate_of_an_open_file_shows_at_once_and_commits_at_close(volume: Volume) -> None:
    volume.bucket.put("f", b"abcdef")
    with open(volume.path / "f", "r+b", buffering=0) as file:
        os.ftruncate(file.fileno(), 2)
        assert os.stat(volume.path / "f").st_size == 2
        os.ftruncate(file.fileno(), 4)
        assert (volume.path / "f").read_bytes() == b"ab\0\0"
        assert volume.bucket.get("f") == b"abcdef"
    assert volume.bucket.get("f") == b"ab\0\0"


@pytest.mark.promise("P12")
def test_created_but_not_written_is_an_empty_object(volume: Volume) -> None:
    (volume.path / "empty").touch()
    assert volume.bucket.get("empty") == b""


@pytest.mark.promise("P13")
def test_mknod_makes_an_empty_object_at_once(volume: Volume) -> None:
    os.mknod(volume.path / "node", stat.S_IFREG | 0o644)
    assert volume.bucket.get("node") == b""


def test_unlinked_file_is_gone_from_the_store_and_from_the_listing(volume: Volume) -> None:
    volume.bucket.put("f", b"x")
    os.unlink(volume.path / "f")
    assert not volume.bucket.has("f")
    assert os.listdir(volume.path) == []
    with fails_with(errno.ENOENT):
        os.unlink(volume.path / "f")


@pytest.mark.promise("P28")
def test_unlinked_open_file_keeps_its_bytes_and_is_never_uploaded(volume: Volume) -> None:
    fd = os.open(volume.path / "f", os.O_RDWR | os.O_CREAT, 0o644)
    os.write(fd, b"before ")
    os.unlink(volume.path / "f")
    os.write(fd, b"after")
    assert os.pread(fd, 100, 0) == b"before after"
    assert os.fstat(fd).st_nlink == 0
    os.close(fd)
    assert not volume.bucket.has("f")
    with fails_with(errno.ENOENT):
        os.stat(volume.path / "f")


@pytest.mark.promise("P28")
def test_unlinked_clean_file_keeps_the_bytes_that_were_read(volume: Volume) -> None:
    data = noise(100_000)
    volume.bucket.put("f", data)
    with open(volume.path / "f", "rb") as file:
        assert file.read() == data
        os.unlink(volume.path / "f")
        file.seek(0)
        assert file.read() == data


def test_exclusive_create_succeeds_once(volume: Volume) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    fd = os.open(volume.path / "lock", flags, 0o644)
    assert volume.bucket.get("lock") == b""
    with fails_with(errno.EEXIST):
        os.open(volume.path / "lock", flags, 0o644)
    os.write(fd, b"mine")
    os.close(fd)
    head = volume.bucket.head("lock")
    assert head is not None
    assert head["Metadata"] == {}
    assert volume.bucket.get("lock") == b"mine"


@pytest.mark.promise("P20")
def test_exclusive_create_sees_an_object_that_another_client_made(volume: Volume) -> None:
    os.listdir(volume.path)
    volume.bucket.put("lock", b"theirs")
    with fails_with(errno.EEXIST):
        os.open(volume.path / "lock", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    assert volume.bucket.get("lock") == b"theirs"


def test_exclusive_file_that_is_unlinked_leaves_nothing_in_the_store(volume: Volume) -> None:
    fd = os.open(volume.path / "tmp", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    os.write(fd, b"scratch")
    os.unlink(volume.path / "tmp")
    os.close(fd)
    assert volume.bucket.names() == set()


def hold_lock(path: str) -> None:
    import fcntl
    import sys

    with open(path, "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        sys.stdout.write("locked\n")
        sys.stdout.flush()
        sys.stdin.readline()


@pytest.mark.promise("P50")
def test_flock_excludes_other_processes(volume: Volume) -> None:
    path = volume.path / "lock"
    path.write_bytes(b"")
    with start_python(hold_lock, path) as holder, open(path, "rb") as file:
        assert holder.hear() == "locked"
        with fails_with(errno.EAGAIN):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        holder.say()
        holder.end()
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def sum_of_mapping(path: str) -> None:
    import hashlib
    import mmap
    import sys

    with (
        open(path, "rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
    ):
        sys.stdout.write(hashlib.sha256(mapped[::1]).hexdigest())


@pytest.mark.promise("P7")
def test_mapped_file_reads_right(volume: Volume) -> None:
    data = noise(9 * MiB + 17)
    volume.bucket.put("f", data)
    assert run_python(sum_of_mapping, volume.path / "f") == hashlib.sha256(data).hexdigest()


def change_mapping(path: str) -> None:
    import mmap

    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        mapped[5:8] = b"NEW"
        mapped[70_000:70_003] = b"END"
        mapped.flush()


def test_changed_mapping_is_committed_at_close(volume: Volume) -> None:
    volume.bucket.put("f", bytes(100_000))
    run_python(change_mapping, volume.path / "f")
    expected = bytearray(100_000)
    expected[5:8] = b"NEW"
    expected[70_000:70_003] = b"END"
    assert volume.bucket.get("f") == expected


@pytest.mark.promise("P7")
def test_direct_io_needs_no_alignment(volume: Volume) -> None:
    fd = os.open(volume.path / "f", os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o644)
    os.write(fd, b"0123456789")
    assert os.pread(fd, 4, 3) == b"3456"
    os.close(fd)
    assert volume.bucket.get("f") == b"0123456789"


@pytest.mark.promise("P8")
def test_writes_are_visible_to_readers_of_the_mount_before_close(volume: Volume) -> None:
    with open(volume.path / "f", "wb", buffering=0) as file:
        file.write(b"abc")
        assert (volume.path / "f").read_bytes() == b"abc"
        file.write(b"def")
        assert (volume.path / "f").read_bytes() == b"abcdef"
        assert os.listdir(volume.path) == ["f"]
        assert (volume.path / "f").stat().st_size == 6
