"""A daemon that dies, a program that was told no, and `ucfuse recover` on what they leave."""

import errno
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.servers.server import Server

from .faultproxy import FaultProxy, Link
from .harness import Mount, MountVolume, ucfuse
from .programs import Conversation, eventually, fails_with, run, start_python
from .witness import Bucket

BIG = 20 << 20


@pytest.fixture
def proxy(server: Server) -> Iterator[FaultProxy]:
    """A link to the store that the test can break; the witness goes around it."""
    with FaultProxy(server.address) as link:
        yield link


def recover(mount: Mount, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return ucfuse(
        "recover", "--state-dir", mount.state_dir, *arguments, environment=mount.environment
    )


def kept(mount: Mount) -> list[dict[str, Any]]:
    done = recover(mount, "list", "--json")
    assert done.returncode == 0, done.stderr
    entries: list[dict[str, Any]] = json.loads(done.stdout)
    return entries


def the_only(mount: Mount) -> dict[str, Any]:
    [entry] = kept(mount)
    return entry


def remount(mount: Mount) -> None:
    mount.kill()
    mount.start()


def uploads(bucket: Bucket) -> list[str]:
    answer = bucket.client.list_multipart_uploads(Bucket=bucket.name, Prefix=bucket.prefix)
    return [upload["UploadId"] for upload in answer.get("Uploads", [])]


def _hold_open(path: str, size: str, mode: str) -> None:
    """Write to a file and say so; keep it open."""
    import sys

    with open(path, mode, buffering=0) as file:
        left = int(size)
        while left:
            left -= file.write(b"w" * min(left, 1 << 20))
        print("written", flush=True)  # noqa: T201
        sys.stdin.readline()


def holding(path: Path, size: int, mode: str = "wb") -> Conversation:
    program = start_python(_hold_open, path, str(size), mode)
    assert program.hear() == "written"
    return program


def test_a_file_that_was_open_is_kept_and_can_be_committed(mount: Mount) -> None:
    with holding(mount.path / "f", 1000):
        remount(mount)
    assert not mount.bucket.has("f")
    assert mount.status()["kept"] == 1
    entry = the_only(mount)
    assert entry["key"] == f"{mount.bucket.prefix}f"
    assert (entry["bytes"], entry["size"], entry["state"]) == (1000, 1000, "writing")
    assert entry["name"] in recover(mount, "list").stdout

    done = recover(mount, "commit", entry["name"])

    assert done.returncode == 0, done.stderr
    assert mount.bucket.get("f") == b"w" * 1000
    assert kept(mount) == []
    assert (mount.path / "f").read_bytes() == b"w" * 1000


def test_it_works_without_a_mount(mount: Mount, tmp_path: Path) -> None:
    with holding(mount.path / "f", 1000):
        mount.kill()
    name = the_only(mount)["name"]
    assert recover(mount, "export", name, tmp_path / "out").returncode == 0
    assert (tmp_path / "out").read_bytes() == b"w" * 1000
    again = recover(mount, "export", name, tmp_path / "out")
    assert again.returncode == 1
    assert "File exists" in again.stderr
    assert recover(mount, "commit", name).returncode == 0
    assert mount.bucket.get("f") == b"w" * 1000
    assert recover(mount, "list").stdout == "nothing is kept\n"


def test_discard_needs_a_name_and_knows_what_it_does(mount: Mount) -> None:
    with holding(mount.path / "a", 10), holding(mount.path / "b", 10):
        mount.kill()
    assert recover(mount, "discard").returncode == 2
    assert recover(mount, "discard", "nothing.1").returncode == 1
    assert len(kept(mount)) == 2
    assert recover(mount, "discard", f"{mount.bucket.prefix}a").returncode == 0
    assert the_only(mount)["key"] == f"{mount.bucket.prefix}b"
    assert recover(mount, "discard", the_only(mount)["name"]).returncode == 0
    mount.start()
    assert not mount.bucket.has("a")
    assert not mount.bucket.has("b")
    assert mount.status()["kept"] == 0


def test_another_version_is_replaced_only_by_force(mount: Mount) -> None:
    with holding(mount.path / "f", 1000):
        mount.kill()
    mount.bucket.put("f", b"theirs")
    name = the_only(mount)["name"]
    refused = recover(mount, "commit", name)
    assert refused.returncode == 1
    assert "--force" in refused.stderr
    assert mount.bucket.get("f") == b"theirs"
    assert recover(mount, "commit", "--force", name).returncode == 0
    assert mount.bucket.get("f") == b"w" * 1000


def test_an_update_is_exported_with_its_base_while_that_exists(
    mount: Mount, tmp_path: Path
) -> None:
    mount.bucket.put("f", b"0123456789")
    with holding(mount.path / "f", 5, "ab"):
        mount.kill()
    name = the_only(mount)["name"]
    assert recover(mount, "export", name, tmp_path / "merged").returncode == 0
    assert (tmp_path / "merged").read_bytes() == b"0123456789wwwww"
    mount.bucket.put("f", b"theirs")
    done = recover(mount, "export", name, tmp_path / "alone")
    assert done.returncode == 1
    assert "10B" in done.stderr
    assert (tmp_path / "alone").read_bytes() == bytes(10) + b"wwwww"


def test_uploads_of_a_crash_are_aborted_and_no_others(mount: Mount) -> None:
    place = {"Bucket": mount.bucket.name, "Key": f"{mount.bucket.prefix}f"}
    theirs = mount.bucket.client.create_multipart_upload(**place)["UploadId"]
    with holding(mount.path / "f", BIG):
        eventually("a part of the file is sent", lambda: len(uploads(mount.bucket)) == 2)
        remount(mount)
    assert uploads(mount.bucket) == [theirs]
    assert the_only(mount)["bytes"] == BIG
    mount.bucket.client.abort_multipart_upload(**place, UploadId=theirs)


def test_the_placeholder_of_a_crash_is_removed(mount: Mount) -> None:
    with holding(mount.path / "f", 10, "xb"):
        assert mount.bucket.get("f") == b""
        remount(mount)
    assert not mount.bucket.has("f")
    assert recover(mount, "commit", the_only(mount)["name"]).returncode == 0
    assert mount.bucket.get("f") == b"w" * 10


def _write_and_close(path: str, size: str) -> None:
    import sys

    with open(path, "wb") as file:
        file.write(b"w" * int(size))
        print("written", flush=True)  # noqa: T201
        sys.stdin.readline()


def _stuck_in_close(mount: Mount, proxy: FaultProxy, size: int) -> Conversation:
    """Begin a close whose commit is under way to a store that does not answer."""
    program = start_python(_write_and_close, mount.path / "f", str(size))
    assert program.hear() == "written"
    proxy.become(Link.STALLS)
    program.say()
    eventually("the file is being committed", lambda: "committing" in _journal(mount))
    return program


def _journal(mount: Mount) -> str:
    return "".join(path.read_text() for path in mount.state_dir.rglob("journal"))


def test_a_commit_that_was_cut_off_is_finished_by_the_next_mount(
    mount_volume: MountVolume, proxy: FaultProxy
) -> None:
    mount = mount_volume(over={"AWS_ENDPOINT_URL": proxy.url})
    with _stuck_in_close(mount, proxy, 1000):
        mount.kill()
    proxy.become(Link.REFUSES)
    assert the_only(mount)["state"] == "committing"
    proxy.become(Link.PASSES)
    mount.start()
    assert mount.bucket.get("f") == b"w" * 1000
    assert kept(mount) == []


def test_nothing_of_a_copied_state_directory_is_committed(
    mount_volume: MountVolume, proxy: FaultProxy, tmp_path: Path
) -> None:
    mount = mount_volume(over={"AWS_ENDPOINT_URL": proxy.url})
    with _stuck_in_close(mount, proxy, 1000):
        mount.kill()
    proxy.become(Link.REFUSES)
    copied = mount.state_dir.rename(tmp_path / "original")
    shutil.copytree(copied, mount.state_dir)
    proxy.become(Link.PASSES)

    mount.start()

    assert not mount.bucket.has("f")
    entry = the_only(mount)
    assert entry["standing"] == "foreign"
    for action in ("commit", "discard"):
        refused = recover(mount, action, entry["name"])
        assert refused.returncode == 1
        assert "--foreign" in refused.stderr
    assert recover(mount, "export", entry["name"], tmp_path / "out").returncode == 0
    assert (tmp_path / "out").read_bytes() == b"w" * 1000


def test_a_lost_update_is_in_recover_while_the_mount_goes_on(mount: Mount, tmp_path: Path) -> None:
    mount.bucket.put("f", b"base")
    fd = os.open(mount.path / "f", os.O_WRONLY | os.O_APPEND)
    os.write(fd, b" and mine")
    mount.bucket.put("f", b"theirs")
    with fails_with(errno.ESTALE):
        os.close(fd)
    entry = eventually("the file is given up", lambda: kept(mount))[0]
    assert entry["bytes"] == 9
    assert mount.status()["kept"] == 1
    assert recover(mount, "export", entry["name"], tmp_path / "mine").returncode == 1
    assert (tmp_path / "mine").read_bytes() == bytes(4) + b" and mine"
    assert mount.bucket.get("f") == b"theirs"
    assert recover(mount, "discard", entry["name"]).returncode == 0
    assert mount.status()["kept"] == 0
    mount.remount()
    assert kept(mount) == []


def test_bytes_of_an_outage_outlive_the_mount(mount_volume: MountVolume, proxy: FaultProxy) -> None:
    mount = mount_volume("--commit-timeout=2s", over={"AWS_ENDPOINT_URL": proxy.url})
    fd = os.open(mount.path / "f", os.O_WRONLY | os.O_CREAT, 0o644)
    os.write(fd, b"precious")
    proxy.become(Link.REFUSES)
    with fails_with(errno.EIO):
        os.close(fd)
    assert [file["path"] for file in mount.status()["uncommitted"]] == ["f"]
    mount.kill()
    entry = the_only(mount)
    assert entry["state"] == "kept"
    proxy.become(Link.PASSES)
    mount.start()
    assert not mount.bucket.has("f"), "the program was told that it failed"
    assert recover(mount, "commit", entry["name"]).returncode == 0
    assert mount.bucket.get("f") == b"precious"


def lose_a_close(mount: Mount, proxy: FaultProxy, name: str, data: bytes) -> None:
    """Write a file whose close fails since the store is away; then let the store come back."""
    fd = os.open(mount.path / name, os.O_WRONLY | os.O_CREAT, 0o644)
    os.write(fd, data)
    proxy.become(Link.REFUSES)
    with fails_with(errno.EIO):
        os.close(fd)
    proxy.become(Link.PASSES)


def test_sigterm_commits_what_was_flushed_and_keeps_what_was_not(
    mount_volume: MountVolume, proxy: FaultProxy
) -> None:
    over = {"AWS_ENDPOINT_URL": proxy.url}
    mount = mount_volume("--commit-timeout=2s", over=over)
    lose_a_close(mount, proxy, "flushed", b"precious")
    with holding(mount.path / "open", 1000), holding(mount.path / "large", BIG):
        os.kill(mount.pid, signal.SIGTERM)
        eventually("the end of the daemon", lambda: not mount.is_alive())

    assert mount.bucket.files() == {"flushed"}
    assert mount.bucket.get("flushed") == b"precious"
    entries = {entry["key"].removeprefix(mount.bucket.prefix): entry for entry in kept(mount)}
    assert {name: entry["bytes"] for name, entry in entries.items()} == {"open": 1000, "large": BIG}
    for name, size in (("open", 1000), ("large", BIG)):
        assert recover(mount, "commit", entries[name]["name"]).returncode == 0
        assert mount.bucket.get(name) == b"w" * size
    assert uploads(mount.bucket) == []


@pytest.mark.parametrize("tool", ["ucfuse", "fusermount3"])
def test_umount_commits_what_was_flushed(
    mount_volume: MountVolume, proxy: FaultProxy, tool: str
) -> None:
    over = {"AWS_ENDPOINT_URL": proxy.url}
    mount = mount_volume("--commit-timeout=2s", over=over)
    lose_a_close(mount, proxy, "flushed", b"precious")
    if tool == "ucfuse":
        assert mount.umount().returncode == 0
    else:
        run("fusermount3", "-u", mount.path)
    eventually("the end of the daemon", lambda: not mount.is_alive())

    assert mount.bucket.get("flushed") == b"precious"
    assert kept(mount) == []


def test_two_mounts_of_one_state_directory_leave_each_other_alone(
    mount: Mount, mount_volume: MountVolume
) -> None:
    with holding(mount.path / "f", 1000):
        other = mount_volume("--state-dir", str(mount.state_dir), place=mount.bucket)
        assert not mount.bucket.has("f")
        assert kept(mount) == []
        assert other.umount().returncode == 0
    eventually("the first mount commits its file", lambda: mount.bucket.has("f"))
    assert mount.bucket.get("f") == b"w" * 1000
