"""Names and attributes: owners, modes, times, errnos of names that cannot be, read-only mounts."""

import errno
import os
import stat
from pathlib import Path

import pytest

from .harness import Mount, MountVolume, Volume
from .programs import assert_refuses_changes, eventually, fails_with, run

MiB = 1 << 20


@pytest.mark.promise("P33")
def test_devices_and_links_are_refused(volume: Volume) -> None:
    (volume.path / "f").write_bytes(b"x")
    with fails_with(errno.EPERM):
        os.mknod(volume.path / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    with fails_with(errno.EPERM):
        os.mkfifo(volume.path / "pipe")
    with fails_with(errno.EPERM):
        os.link(volume.path / "f", volume.path / "hard")
    with fails_with(errno.EPERM):
        os.symlink("f", volume.path / "soft")
    assert os.listdir(volume.path) == ["f"]


def test_file_is_executable(volume: Volume) -> None:
    (volume.path / "hello").write_text("#!/bin/sh\necho hello\n")
    assert run(volume.path / "hello") == "hello\n"


@pytest.mark.promise("P32")
def test_times_modes_and_owners_can_be_set_without_lasting_effect(volume: Volume) -> None:
    path = volume.path / "f"
    path.write_bytes(b"x")
    os.utime(path, (1, 1))
    os.chmod(path, 0o600)
    os.chown(path, 1234, 1234)
    attributes = path.stat()
    assert stat.S_IMODE(attributes.st_mode) == 0o755
    assert (attributes.st_uid, attributes.st_gid) == (os.getuid(), os.getgid())
    assert volume.bucket.get("f") == b"x"


@pytest.mark.promise("P32")
def test_owner_and_modes_come_from_the_options(mount_volume: MountVolume) -> None:
    mount = mount_volume("--uid=77", "--gid=78", "--file-mode=0640", "--dir-mode=0750")
    mount.bucket.put("d/f", b"")
    for name, mode in (("d", stat.S_IFDIR | 0o750), ("d/f", stat.S_IFREG | 0o640)):
        attributes = (mount.path / name).stat()
        assert (attributes.st_uid, attributes.st_gid, attributes.st_mode) == (77, 78, mode)


@pytest.mark.promise("P29")
def test_name_that_is_not_utf8_is_eilseq(volume: Volume) -> None:
    with fails_with(errno.EILSEQ):
        os.open(bytes(volume.path) + b"/\xff\xfe", os.O_WRONLY | os.O_CREAT, 0o644)
    with fails_with(errno.EILSEQ):
        os.mkdir(bytes(volume.path) + b"/\xff")
    assert os.listdir(volume.path) == []


@pytest.mark.promise("P29")
def test_unicode_blanks_and_quotes_are_names_like_others(volume: Volume) -> None:
    names = ["Grüße ☃", " a b ", "it's", 'say "x"', "50%+1", "a&b=c?d#e", "-n", "*", "\N{SNAKE}"]
    for name in names:
        (volume.path / name).write_bytes(name.encode())
    assert volume.bucket.names() == set(names)
    assert set(os.listdir(volume.path)) == set(names)
    for name in names:
        assert volume.bucket.get(name) == (volume.path / name).read_bytes() == name.encode()


@pytest.mark.promise("P29")
def test_name_of_255_bytes_works_and_256_is_too_long(volume: Volume) -> None:
    (volume.path / ("n" * 255)).write_bytes(b"x")
    assert volume.bucket.has("n" * 255)
    for name in ("n" * 256, "ü" * 128):
        with fails_with(errno.ENAMETOOLONG):
            (volume.path / name).write_bytes(b"x")


@pytest.mark.promise("P29")
def test_key_over_1024_bytes_is_too_long(volume: Volume) -> None:
    directory = volume.path
    for letter in "abcd":
        directory = directory / (letter * 240)
        directory.mkdir()
    with fails_with(errno.ENAMETOOLONG):
        (directory / ("e" * 240)).write_bytes(b"x")
    with fails_with(errno.ENAMETOOLONG):
        (directory / ("e" * 240)).mkdir()
    assert os.listdir(directory) == []


@pytest.mark.promise("P34")
def test_read_only_mount_refuses_every_change(mount_volume: MountVolume) -> None:
    mount = mount_volume("--read-only")
    mount.bucket.put("d/f", b"x")
    assert (mount.path / "d/f").read_bytes() == b"x"
    assert_refuses_changes(mount.path / "d", errno.EROFS)
    with fails_with(errno.EROFS):
        os.rmdir(mount.path / "d")
    assert mount.bucket.files() == {"d/f"}


def test_statfs_shows_plenty_of_room(volume: Volume) -> None:
    room = os.statvfs(volume.path)
    assert room.f_bavail * room.f_frsize > 1 << 40
    assert room.f_favail > 1 << 20
    assert room.f_namemax == 255


def test_block_size_asks_programs_for_large_requests(volume: Volume) -> None:
    (volume.path / "f").write_bytes(b"x")
    assert (volume.path / "f").stat().st_blksize == MiB


def test_extended_attributes_are_not_supported(volume: Volume) -> None:
    (volume.path / "f").write_bytes(b"x")
    with fails_with(errno.EOPNOTSUPP):
        os.getxattr(volume.path / "f", "user.anything")
    with fails_with(errno.EOPNOTSUPP):
        os.listxattr(volume.path / "f")


def test_inode_numbers_outlive_the_kernels_memory(mount: Mount) -> None:
    """Who compares `st_ino` takes nothing for new only because memory was short."""
    for key in ("d/a", "d/b", "d/e/c"):
        mount.bucket.put(key, b"data")
    paths = [mount.path / name for name in ("d", "d/a", "d/b", "d/e", "d/e/c")]
    numbers = [path.stat().st_ino for path in paths]
    forgotten = mount.status()["fuse_requests"].get("FORGET", 0)

    def is_forgotten() -> bool:
        Path("/proc/sys/vm/drop_caches").write_text("2")  # dentries and inodes
        return mount.status()["fuse_requests"].get("FORGET", 0) > forgotten

    eventually("the kernel forgets inodes", is_forgotten)
    mount.bucket.put("d/b", b"other")
    again = [path.stat().st_ino for path in paths]
    changed = [old != new for old, new in zip(numbers, again, strict=True)]
    assert changed == [False, False, True, False, False]
