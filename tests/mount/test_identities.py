"""Other identities at the store: what they may not do is EACCES, and nothing else suffers."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.servers.identities import LISTER, READER, STRANGER, credentials_of
from tests.servers.server import Server

from .harness import Mount, MountVolume, is_mounted, ucfuse
from .programs import fails_with, run
from .requestproxy import RequestProxy, Trouble
from .witness import Bucket


def write(path: Path, flags: int) -> None:
    fd = os.open(path, flags, 0o644)
    try:
        os.write(fd, b"more")
    finally:
        os.close(fd)


CHANGES: dict[str, Callable[[Path], object]] = {
    "replace": lambda root: write(root / "f", os.O_WRONLY | os.O_TRUNC),
    "append": lambda root: write(root / "f", os.O_WRONLY | os.O_APPEND),
    "create": lambda root: write(root / "new", os.O_WRONLY | os.O_CREAT),
    "create exclusively": lambda root: os.open(root / "lock", os.O_CREAT | os.O_EXCL | os.O_WRONLY),
    "mkdir": lambda root: os.mkdir(root / "made"),
    "mknod": lambda root: os.mknod(root / "node"),
    "unlink": lambda root: os.unlink(root / "f"),
    "rename": lambda root: os.rename(root / "f", root / "g"),
    "rename a directory": lambda root: os.rename(root / "d", root / "e"),
    "truncate": lambda root: os.truncate(root / "f", 1),
    "rmdir": lambda root: os.rmdir(root / "empty"),
}


@pytest.fixture
def own_server(server: Server) -> Server:
    """The session's SeaweedFS, which knows these identities."""
    if server.name != "seaweedfs":
        pytest.skip(f"{server.name}: a server of somebody else does not know our identities")
    return server


@pytest.fixture
def reader_mount(own_server: Server, mount_volume: MountVolume, bucket: Bucket) -> Mount:
    """A mount of an identity that may read and list, not write."""
    bucket.put("f", b"data")
    bucket.put("d/inner", b"inner")
    bucket.put("other", b"other")
    bucket.put("empty/", b"")
    return mount_volume(over=own_server.environment() | credentials_of(READER))


@pytest.mark.promise("P34")
def test_without_write_rights_every_change_is_eacces_and_reading_goes_on(
    reader_mount: Mount,
) -> None:
    for title, change in CHANGES.items():
        with fails_with(errno.EACCES):
            change(reader_mount.path)
            raise AssertionError(f"{title} succeeded")
    assert (reader_mount.path / "d/inner").read_bytes() == b"inner"
    assert (reader_mount.path / "other").read_bytes() == b"other"
    assert reader_mount.bucket.files() == {"f", "d/inner", "other"}
    assert reader_mount.bucket.get("f") == b"data"


@pytest.mark.promise("P34")
def test_without_read_rights_reading_is_eacces_and_names_still_show(
    own_server: Server, mount_volume: MountVolume, bucket: Bucket
) -> None:
    bucket.put("d/f", b"data")
    mount = mount_volume(over=own_server.environment() | credentials_of(LISTER))
    assert os.listdir(mount.path) == ["d"]
    assert os.listdir(mount.path / "d") == ["f"]
    assert os.stat(mount.path / "d/f").st_size == 4
    for flags in (os.O_RDONLY, os.O_RDWR, os.O_WRONLY | os.O_APPEND):
        with fails_with(errno.EACCES):
            os.open(mount.path / "d/f", flags)
    assert "Permission denied" in run("cat", mount.path / "d/f", expect=1)


@pytest.mark.promise("P34")
def test_listing_is_eacces_once_the_right_to_it_is_gone(
    own_server: Server, mount_volume: MountVolume, bucket: Bucket
) -> None:
    bucket.put("d/f", b"data")
    with RequestProxy(own_server.address) as proxy:
        mount = mount_volume(over={"AWS_ENDPOINT_URL": proxy.url})
        with proxy.troubled(Trouble.DENIED):
            with fails_with(errno.EACCES):
                os.listdir(mount.path)
            assert "Permission denied" in run("ls", mount.path / "d", expect=2)
        assert os.listdir(mount.path / "d") == ["f"]


@pytest.mark.promise("P34")
def test_a_stranger_is_told_in_one_line_and_nothing_is_mounted(
    own_server: Server, bucket: Bucket, tmp_path: Path
) -> None:
    done = ucfuse(
        *("mount", "--state-dir", tmp_path / "state", bucket.source, tmp_path),
        environment=own_server.environment() | credentials_of(STRANGER),
    )
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert "s3:ListBucket" in done.stderr
    assert not is_mounted(tmp_path)
