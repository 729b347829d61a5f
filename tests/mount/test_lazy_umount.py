"""`ucfuse umount --lazy`: the mount point is free at once, programs go on, nothing is lost."""

import os
import sys

import pytest

from .harness import Mount, MountVolume, is_mounted, ucfuse
from .programs import eventually, start_python


def write_in_two_steps(path: str) -> None:
    with open(path, "wb", buffering=0) as file:
        file.write(b"before ")
        sys.stdout.write("written\n")
        sys.stdout.flush()
        sys.stdin.readline()
        file.write(b"after")


def lazily(mount: Mount) -> str:
    done = ucfuse("umount", "--lazy", mount.path, environment=mount.environment)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.promise("P46")
def test_programs_go_on_and_their_files_are_committed(mount: Mount) -> None:
    """README, umount --lazy."""
    with start_python(write_in_two_steps, mount.path / "f") as program:
        assert program.hear() == "written"

        told = lazily(mount)

        assert str(program.process.pid) in told
        assert not is_mounted(mount.path)
        assert os.listdir(mount.path) == []
        assert mount.is_alive()
        program.say()
        program.end()
    eventually("the end of the daemon", lambda: not mount.is_alive())
    assert mount.bucket.get("f") == b"before after"


def test_the_mount_point_can_be_used_anew_meanwhile(
    mount: Mount, mount_volume: MountVolume
) -> None:
    """The daemon that ends later takes nothing away from the one that came after it."""
    with start_python(write_in_two_steps, mount.path / "f") as program:
        assert program.hear() == "written"
        lazily(mount)
        listed = ucfuse("status", environment=mount.environment).stdout
        assert f"{mount.path} (detached, pid {mount.pid})" in listed
        done = ucfuse(
            *("mount", "--state-dir", mount.state_dir, mount.bucket.source, mount.path),
            environment=mount.environment,
        )
        assert (done.returncode, done.stderr) == (0, "")
        (mount.path / "g").write_bytes(b"new")
        program.say()
        program.end()
        eventually("the end of the first daemon", lambda: not mount.is_alive())
    assert mount.bucket.get("f") == b"before after"
    assert (mount.path / "g").read_bytes() == b"new"
    assert ucfuse("umount", mount.path, environment=mount.environment).returncode == 0


def test_without_users_it_is_as_any_other_umount(mount: Mount) -> None:
    (mount.path / "f").write_bytes(b"x")
    assert lazily(mount) == ""
    assert not mount.is_alive() or eventually("the end", lambda: not mount.is_alive()) is not None
    assert mount.bucket.get("f") == b"x"


def test_a_dead_mount_is_taken_away(mount: Mount) -> None:
    mount.kill()
    lazily(mount)
    assert not is_mounted(mount.path)
