"""What a mount tells of single files: `--xattr` and `status --file`."""

import errno
import json
import os
from pathlib import Path

import pytest

from .harness import Mount, MountVolume, ucfuse
from .programs import fails_with


def status_of(mount: Mount, path: Path) -> dict[str, object]:
    done = ucfuse("status", "--json", "--file", path, environment=mount.environment)
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_xattrs_name_the_object_and_its_version(mount_volume: MountVolume) -> None:
    """README, --xattr: `user.ucfuse.source` and `user.ucfuse.etag`."""
    mount = mount_volume("--xattr", "--metadata-ttl=0s")
    (mount.path / "d").mkdir()
    path = mount.path / "d/f"
    path.write_bytes(b"one")
    head = mount.bucket.head("d/f")
    assert head is not None

    assert sorted(os.listxattr(path)) == ["user.ucfuse.etag", "user.ucfuse.source"]
    assert os.getxattr(path, "user.ucfuse.source").decode() == f"{mount.bucket.source}d/f"
    assert os.getxattr(path, "user.ucfuse.etag").decode() == head["ETag"]
    assert os.listxattr(mount.path / "d") == ["user.ucfuse.source"]
    with fails_with(errno.ENODATA):
        os.getxattr(path, "user.other")
    with fails_with(errno.EOPNOTSUPP):
        os.setxattr(path, "user.other", b"x")

    mount.bucket.put("d/f", b"two, from elsewhere")
    assert os.getxattr(path, "user.ucfuse.etag").decode() == mount.bucket.head("d/f")["ETag"]

    with open(path, "ab", buffering=0) as file:
        file.write(b"uncommitted")
        with fails_with(errno.ENODATA):
            os.getxattr(path, "user.ucfuse.etag")
    assert os.getxattr(path, "user.ucfuse.etag").decode() == mount.bucket.head("d/f")["ETag"]


def test_without_the_option_there_are_no_xattrs(mount: Mount) -> None:
    (mount.path / "f").write_bytes(b"x")
    with fails_with(errno.EOPNOTSUPP):
        os.getxattr(mount.path / "f", "user.ucfuse.etag")


def test_status_of_a_file_tells_its_object_and_what_is_not_committed(mount: Mount) -> None:
    """README, status --file."""
    path = mount.path / "f"
    path.write_bytes(b"x" * 10)
    head = mount.bucket.head("f")
    assert head is not None
    clean = status_of(mount, path)
    assert clean["source"] == f"{mount.bucket.source}f"
    assert (clean["etag"], clean["size"], clean["uncommitted"]) == (head["ETag"], 10, None)

    with open(path, "ab", buffering=0) as file:
        file.write(b"y")
        dirty = status_of(mount, path)
        assert (dirty["etag"], dirty["size"], dirty["handle_count"]) == (None, 11, 1)
        assert isinstance(dirty["uncommitted"], dict)
        assert dirty["uncommitted"]["bytes"] == 11
        words = ucfuse("status", "--file", path, environment=mount.environment).stdout
        assert f"{mount.bucket.source}f" in words
        assert "to commit" in words


def test_status_of_a_file_of_many_volumes_names_its_volume(
    mount_volume: MountVolume,
) -> None:
    mount = mount_volume(volumes='[volumes."a.b.c"]\nsource = "memory:"\n')
    (mount.path / "a/b/c/f").write_bytes(b"x")
    assert status_of(mount, mount.path / "a/b/c/f")["path"] == "a/b/c/f"
    assert status_of(mount, mount.path / "a/b")["source"] is None


@pytest.mark.parametrize("name", ["missing", ".."])
def test_status_of_what_is_not_in_a_mount_says_so_in_one_line(mount: Mount, name: str) -> None:
    done = ucfuse("status", "--file", mount.path / name, environment=mount.environment)
    assert (done.returncode, done.stdout) == (1, "")
    assert len(done.stderr.strip().splitlines()) == 1
