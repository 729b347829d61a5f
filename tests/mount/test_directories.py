"""Directories and names: markers, listings, rename in all its forms, removal."""

import ctypes
import errno
import os
import tempfile
from pathlib import Path

import pytest

from .harness import MountVolume, Volume
from .programs import fails_with

AT_FDCWD = -100
RENAME_NOREPLACE = 1
RENAME_EXCHANGE = 2


def renameat2(old: Path, new: Path, flags: int) -> None:
    """Call renameat2(2), which Python does not offer."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(AT_FDCWD, os.fsencode(old), AT_FDCWD, os.fsencode(new), flags):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


@pytest.mark.promise("P25")
def test_mkdir_makes_a_marker_object(volume: Volume) -> None:
    os.makedirs(volume.path / "a/b/c")
    assert volume.bucket.names() == {"a/", "a/b/", "a/b/c/"}
    head = volume.bucket.head("a/b/c/")
    assert head is not None
    assert head["ContentLength"] == 0
    with fails_with(errno.EEXIST):
        os.mkdir(volume.path / "a")
    with fails_with(errno.ENOENT):
        os.mkdir(volume.path / "none/b")


@pytest.mark.promise("P25")
def test_directory_exists_where_a_deeper_key_exists(volume: Volume) -> None:
    volume.bucket.put("x/y/z", b"deep")
    assert os.listdir(volume.path) == ["x"]
    assert (volume.path / "x").is_dir()
    assert os.listdir(volume.path / "x/y") == ["z"]
    assert (volume.path / "x/y/z").read_bytes() == b"deep"


def test_marker_made_elsewhere_is_an_empty_directory(volume: Volume) -> None:
    volume.bucket.put("made/", b"")
    assert os.listdir(volume.path) == ["made"]
    assert os.listdir(volume.path / "made") == []
    os.rmdir(volume.path / "made")
    assert volume.bucket.names() == set()


def test_nested_files_are_plain_keys(volume: Volume) -> None:
    os.makedirs(volume.path / "a/b")
    (volume.path / "a/b/f").write_bytes(b"x")
    assert volume.bucket.get("a/b/f") == b"x"


def test_listing_tells_kinds_and_sizes(volume: Volume) -> None:
    volume.bucket.put("file", b"12345")
    volume.bucket.put("dir/f", b"")
    with os.scandir(volume.path) as entries:
        seen = {e.name: (e.is_dir(follow_symlinks=False), e.stat().st_size) for e in entries}
    assert seen["file"] == (False, 5)
    assert seen["dir"][0] is True
    assert set(seen) == {"file", "dir"}


def test_listing_goes_on_while_its_files_are_removed(volume: Volume) -> None:
    expected = {f"{number:04d}" for number in range(300)}
    volume.bucket.put_all(expected, b"x")
    removed = set()
    with os.scandir(volume.path) as entries:
        for entry in entries:
            os.unlink(entry.path)
            removed.add(entry.name)
    assert removed == expected
    assert volume.bucket.names() == set()


def test_rmdir_wants_an_empty_directory(volume: Volume) -> None:
    os.mkdir(volume.path / "d")
    (volume.path / "d/f").write_bytes(b"x")
    with fails_with(errno.ENOTEMPTY):
        os.rmdir(volume.path / "d")
    os.unlink(volume.path / "d/f")
    os.rmdir(volume.path / "d")
    assert volume.bucket.names() == set()
    assert not (volume.path / "d").exists()


def test_rmdir_of_a_directory_that_another_client_filled_fails(volume: Volume) -> None:
    os.mkdir(volume.path / "d")
    volume.bucket.put("d/theirs", b"x")
    with fails_with(errno.ENOTEMPTY):
        os.rmdir(volume.path / "d")
    assert volume.bucket.get("d/theirs") == b"x"


@pytest.mark.promise("P25")
def test_emptied_directory_stays_until_rmdir(volume: Volume) -> None:
    volume.bucket.put("d/only", b"x")
    os.unlink(volume.path / "d/only")
    assert os.listdir(volume.path) == ["d"]
    assert os.listdir(volume.path / "d") == []
    os.rmdir(volume.path / "d")
    assert os.listdir(volume.path) == []


def test_temporary_directory_comes_and_goes(volume: Volume) -> None:
    with tempfile.TemporaryDirectory(dir=volume.path) as directory:
        with tempfile.NamedTemporaryFile(dir=directory) as file:
            file.write(b"scratch")
        (Path(directory) / "sub").mkdir()
        (Path(directory) / "sub/f").write_bytes(b"x")
    assert os.listdir(volume.path) == []
    assert volume.bucket.names() == set()


def test_renamed_file_has_its_new_key_only(volume: Volume) -> None:
    (volume.path / "old").write_bytes(b"bytes")
    os.rename(volume.path / "old", volume.path / "new")
    assert volume.bucket.names() == {"new"}
    assert volume.bucket.get("new") == b"bytes"
    assert (volume.path / "new").read_bytes() == b"bytes"
    assert os.listdir(volume.path) == ["new"]


@pytest.mark.promise("P26")
@pytest.mark.parametrize("size", [5, 9 << 20])
def test_rename_replaces_an_existing_file(volume: Volume, size: int) -> None:
    volume.bucket.put("target", b"old")
    (volume.path / "source").write_bytes(b"n" * size)
    os.replace(volume.path / "source", volume.path / "target")
    assert volume.bucket.names() == {"target"}
    assert volume.bucket.get("target") == b"n" * size
    assert (volume.path / "target").read_bytes() == b"n" * size


def test_reader_keeps_the_file_that_was_renamed_over(volume: Volume) -> None:
    volume.bucket.put("target", b"old bytes")
    (volume.path / "source").write_bytes(b"new bytes")
    with open(volume.path / "target", "rb") as reader:
        assert reader.read() == b"old bytes"
        os.rename(volume.path / "source", volume.path / "target")
        reader.seek(0)
        assert reader.read() == b"old bytes"
    assert (volume.path / "target").read_bytes() == b"new bytes"


@pytest.mark.promise("P26")
def test_rename_of_a_file_that_is_being_written_takes_its_bytes_along(volume: Volume) -> None:
    with open(volume.path / "part", "wb", buffering=0) as file:
        file.write(b"first ")
        os.rename(volume.path / "part", volume.path / "whole")
        file.write(b"second")
    assert volume.bucket.names() == {"whole"}
    assert volume.bucket.get("whole") == b"first second"


def test_rename_noreplace_keeps_the_existing_file(volume: Volume) -> None:
    volume.bucket.put("a", b"a")
    volume.bucket.put("b", b"b")
    with fails_with(errno.EEXIST):
        renameat2(volume.path / "a", volume.path / "b", RENAME_NOREPLACE)
    renameat2(volume.path / "a", volume.path / "c", RENAME_NOREPLACE)
    assert volume.bucket.names() == {"b", "c"}
    assert volume.bucket.get("b") == b"b"


@pytest.mark.promise("P26")
def test_rename_noreplace_sees_an_object_that_another_client_made(volume: Volume) -> None:
    volume.bucket.put("a", b"a")
    os.listdir(volume.path)
    volume.bucket.put("b", b"theirs")
    with fails_with(errno.EEXIST):
        renameat2(volume.path / "a", volume.path / "b", RENAME_NOREPLACE)
    assert volume.bucket.get("b") == b"theirs"
    assert volume.bucket.get("a") == b"a"


@pytest.mark.promise("P26")
def test_rename_exchange_is_invalid(volume: Volume) -> None:
    volume.bucket.put("a", b"a")
    volume.bucket.put("b", b"b")
    with fails_with(errno.EINVAL):
        renameat2(volume.path / "a", volume.path / "b", RENAME_EXCHANGE)
    assert (volume.bucket.get("a"), volume.bucket.get("b")) == (b"a", b"b")


def test_rename_into_a_missing_directory_is_enoent(volume: Volume) -> None:
    (volume.path / "a").write_bytes(b"a")
    with fails_with(errno.ENOENT):
        os.rename(volume.path / "a", volume.path / "none/a")
    with fails_with(errno.ENOENT):
        os.rename(volume.path / "none", volume.path / "b")
    assert volume.bucket.get("a") == b"a"


def test_rename_between_kinds_is_refused(volume: Volume) -> None:
    (volume.path / "file").write_bytes(b"x")
    os.mkdir(volume.path / "dir")
    with fails_with(errno.EISDIR):
        os.rename(volume.path / "file", volume.path / "dir")
    with fails_with(errno.ENOTDIR):
        os.rename(volume.path / "dir", volume.path / "file")
    assert volume.bucket.names() == {"file", "dir/"}


@pytest.mark.promise("P27")
def test_renamed_directory_takes_everything_along(volume: Volume) -> None:
    os.makedirs(volume.path / "old/sub")
    (volume.path / "old/f").write_bytes(b"f")
    (volume.path / "old/sub/g").write_bytes(b"g")
    volume.bucket.put("old/elsewhere", b"e")
    os.rename(volume.path / "old", volume.path / "new")
    assert volume.bucket.files() == {"new/f", "new/sub/g", "new/elsewhere"}
    assert not any(name.startswith("old") for name in volume.bucket.names())
    assert (volume.path / "new/sub/g").read_bytes() == b"g"
    assert sorted(os.listdir(volume.path / "new")) == ["elsewhere", "f", "sub"]


@pytest.mark.promise("P27")
def test_renamed_directory_takes_its_open_and_dirty_files_along(volume: Volume) -> None:
    os.mkdir(volume.path / "old")
    with open(volume.path / "old/log", "wb", buffering=0) as file:
        file.write(b"before ")
        os.rename(volume.path / "old", volume.path / "new")
        file.write(b"after")
    assert volume.bucket.files() == {"new/log"}
    assert volume.bucket.get("new/log") == b"before after"


def test_directory_replaces_an_empty_directory_only(volume: Volume) -> None:
    os.mkdir(volume.path / "a")
    (volume.path / "a/f").write_bytes(b"x")
    os.mkdir(volume.path / "empty")
    os.mkdir(volume.path / "full")
    (volume.path / "full/g").write_bytes(b"y")
    with fails_with(errno.ENOTEMPTY):
        os.rename(volume.path / "a", volume.path / "full")
    os.rename(volume.path / "a", volume.path / "empty")
    assert volume.bucket.files() == {"empty/f", "full/g"}


def test_directory_time_moves_when_a_name_is_made(volume: Volume) -> None:
    before = os.stat(volume.path).st_mtime_ns
    (volume.path / "new.py").write_bytes(b"")
    made = os.stat(volume.path).st_mtime_ns
    assert made > before
    os.unlink(volume.path / "new.py")
    assert os.stat(volume.path).st_mtime_ns >= made


@pytest.mark.promise("P31")
def test_time_of_a_file_is_the_stores_after_commit_and_after_remount(
    mount_volume: MountVolume,
) -> None:
    mount = mount_volume()
    for name, size in (("small", 10), ("large", 9 << 20)):
        (mount.path / name).write_bytes(b"x" * size)
        assert (mount.path / name).stat().st_mtime_ns == mount.bucket.modified_s(name) * 10**9
    mount.remount()
    for name in ("small", "large"):
        assert (mount.path / name).stat().st_mtime_ns == mount.bucket.modified_s(name) * 10**9
    os.listdir(mount.path)
    for name in ("small", "large"):
        assert (mount.path / name).stat().st_mtime_ns == mount.bucket.modified_s(name) * 10**9
