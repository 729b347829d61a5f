"""`ucfuse cp` and `ucfuse sync`, beside mounts and on them."""

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers.identities import READER, STRANGER, credentials_of
from tests.servers.server import Server

from .harness import ROOT, Mount, MountVolume, ucfuse
from .programs import eventually
from .witness import Bucket

MiB = 1 << 20


def copy(
    mount: Mount, *arguments: str | Path, command: str = "cp"
) -> subprocess.CompletedProcess[str]:
    return ucfuse(command, *arguments, environment=mount.environment, deadline_s=60)


def failed_with_one_line(done: subprocess.CompletedProcess[str], words: str) -> bool:
    assert words in done.stderr, done.stderr
    return (done.returncode, done.stdout, len(done.stderr.splitlines())) == (1, "", 1)


def started(environment: dict[str, str], *arguments: str | Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "ucfuse", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_tree_goes_to_a_mount_and_comes_back(mount: Mount, tmp_path: Path) -> None:
    """README, cp: either side on a mount; what is written is seen there."""
    source = tmp_path / "source"
    (source / "d").mkdir(parents=True)
    (source / "d/small").write_bytes(b"1")
    (source / "large").write_bytes(os.urandom(20 * MiB))
    assert os.listdir(mount.path) == []  # a listing that the mount may keep for a while

    with mount.counting() as counts:
        done = copy(mount, "-r", source, mount.path / "copy")
    assert done.returncode == 0, done.stderr
    assert "2 files copied" in done.stdout
    assert counts.store == {}  # the mount had nothing to do with it

    for name in ("d/small", "large"):
        assert mount.bucket.get(f"copy/{name}") == (source / name).read_bytes()
        assert (mount.path / "copy" / name).read_bytes() == (source / name).read_bytes()
    eventually("a new listing", lambda: os.listdir(mount.path) == ["copy"])

    back = tmp_path / "back"
    assert copy(mount, "-r", mount.path / "copy", back).returncode == 0
    assert (back / "large").read_bytes() == (source / "large").read_bytes()
    again = copy(mount, "-r", mount.path / "copy", back)
    assert "0 files copied (0B), 2 were there already" in again.stdout


def test_an_open_on_the_mount_sees_what_replaced_its_file(mount: Mount, tmp_path: Path) -> None:
    (mount.path / "f").write_bytes(b"before")
    assert (mount.path / "f").read_bytes() == b"before"
    (tmp_path / "f").write_bytes(b"longer than before")
    assert copy(mount, tmp_path / "f", mount.path / "f").returncode == 0
    assert (mount.path / "f").read_bytes() == b"longer than before"


def test_single_files_go_to_a_name_or_into_a_directory(mount: Mount, tmp_path: Path) -> None:
    mount.bucket.put("d/f", b"1")
    source = f"{mount.bucket.source}d/f"
    assert copy(mount, source, tmp_path / "other").returncode == 0
    assert copy(mount, source, tmp_path).returncode == 0
    assert copy(mount, source, f"{mount.path}/new/").returncode == 0
    assert copy(mount, mount.path / "d/f", mount.path / "d/g").returncode == 0
    assert (tmp_path / "other").read_bytes() == (tmp_path / "f").read_bytes() == b"1"
    assert mount.bucket.get("new/f") == mount.bucket.get("d/g") == b"1"


def test_bytes_that_are_not_committed_are_named_and_not_left_out_in_silence(
    mount: Mount, tmp_path: Path
) -> None:
    (mount.path / "done").write_bytes(b"1")
    (mount.path / "old").write_bytes(b"old")
    with (
        (mount.path / "new").open("wb", buffering=0) as new,
        (mount.path / "old").open("ab", buffering=0) as old,
    ):
        new.write(b"x")
        old.write(b"x")
        done = copy(mount, "-r", mount.path, tmp_path)
        assert done.returncode == 1
        assert os.listdir(tmp_path) == ["done"]
        for name in ("new", "old"):
            assert (
                f"{mount.bucket.source}{name}: it has bytes that are not committed" in done.stderr
            )
        onto = copy(mount, tmp_path / "done", mount.path / "new")
        assert failed_with_one_line(onto, "it is being written through the mount")
    assert copy(mount, "-r", mount.path, tmp_path).returncode == 0
    assert (tmp_path / "old").read_bytes() == b"oldx"


def test_volumes_of_one_mount_are_found_by_their_paths(
    mount_volume: MountVolume, bucket: Bucket, tmp_path: Path
) -> None:
    text = "".join(
        f'[volumes."main.default.{name}"]\nsource = "{bucket.source}{name}"\n' for name in "ab"
    )
    mount = mount_volume(volumes=text)
    bucket.put("a/f", b"1")
    root = mount.path / "main/default"
    assert copy(mount, "-r", root / "a", root / "b/copy").returncode == 0
    assert bucket.get("b/copy/f") == b"1"
    assert failed_with_one_line(copy(mount, "-r", root, tmp_path), "not inside a volume")


def test_a_copy_that_was_killed_goes_on_where_it_was(
    mount: Mount, whole_bucket: Bucket, tmp_path: Path
) -> None:
    """README, cp: can be repeated."""
    bodies = {f"tree/{number:03}": os.urandom(100_000) for number in range(300)}
    for name, body in bodies.items():
        mount.bucket.put(name, body)
    target = tmp_path / "copy"
    arguments = ("cp", "-r", "--requests=2", f"{mount.bucket.source}tree", target)
    process = started(mount.environment, *arguments)
    eventually("half of it", lambda: target.is_dir() and len(os.listdir(target)) > 100)
    process.kill()
    process.communicate(timeout=20)

    there = os.listdir(target)
    assert len(there) < 300
    for name in there:  # whole, or not there at all
        assert (target / name).read_bytes() == bodies[f"tree/{name}"]
    done = ucfuse(*arguments, environment=mount.environment)
    assert f"{300 - len(there)} files copied" in done.stdout, done.stdout + done.stderr
    assert {name: (target / name).read_bytes() for name in os.listdir(target)} == {
        name.removeprefix("tree/"): body for name, body in bodies.items()
    }


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_it_with_one_line_and_nothing_half_done(
    mount: Mount, tmp_path: Path, number: int
) -> None:
    for index in range(300):
        mount.bucket.put(f"tree/{index:03}", b"x" * 100_000)
    target = tmp_path / "copy"
    process = started(
        mount.environment, *("cp", "-r", "--requests=2", mount.bucket.source + "tree", target)
    )
    eventually("some of it", lambda: target.is_dir() and len(os.listdir(target)) > 10)
    process.send_signal(number)
    _, complaints = process.communicate(timeout=20)
    assert process.returncode == 128 + number
    assert len(complaints.splitlines()) == 1
    assert "repeat it to copy the rest" in complaints
    assert {path.stat().st_size for path in target.iterdir()} == {100_000}


def test_a_terminal_gets_a_bar_and_quiet_nothing(mount: Mount, tmp_path: Path) -> None:
    """README, cp: `--quiet`."""
    mount.bucket.put("f", b"x" * MiB)
    quiet = copy(mount, "--quiet", f"{mount.bucket.source}f", tmp_path / "a")
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, "", "")

    primary, secondary = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-m", "ucfuse", "cp", f"{mount.bucket.source}f", tmp_path / "b"],
        env={**os.environ, "PYTHONPATH": str(ROOT), **mount.environment},
        stdout=subprocess.PIPE,
        stderr=secondary,
        timeout=60,
        check=True,
    )
    assert b"B/s" in os.read(primary, 65536)
    os.close(secondary)
    os.close(primary)
    assert done.stdout.startswith(b"1 files copied (1.0MiB)")


def test_sync_deletes_only_when_it_is_asked_to(mount: Mount, tmp_path: Path) -> None:
    """README, sync: `--delete`."""
    (mount.path / "kept").write_bytes(b"1")
    (tmp_path / "more").write_bytes(b"2")
    assert copy(mount, mount.path, tmp_path, command="sync").returncode == 0
    assert sorted(os.listdir(tmp_path)) == ["kept", "more"]
    done = copy(mount, "--delete", mount.path, tmp_path, command="sync")
    assert os.listdir(tmp_path) == ["kept"]
    assert "1 removed" in done.stdout


# Mistakes: one line, nothing done.


def test_what_cannot_be_copied_is_one_line(mount: Mount, tmp_path: Path) -> None:
    source = mount.bucket.source
    mount.bucket.put("d/f", b"1")
    (tmp_path / "file").write_bytes(b"1")
    for arguments, words in (
        ((f"{source}missing", tmp_path), "no such file or directory"),
        ((f"{source}d", tmp_path / "x"), "copy it with -r"),
        (("-r", f"{source}missing", tmp_path), "no such file or directory"),
        ((tmp_path / "missing", f"{source}x"), "no such file or directory"),
        ((f"{source}d/f", tmp_path / "no/such"), "mkdir -p"),
        (("-r", f"{source}d", tmp_path / "file"), "not a directory"),
        (("-r", f"{source}d", f"{source}d/below"), "inside of it"),
        ((f"{source}d/f", mount.path / "d/f"), "the same file"),
        (("s3://no-such-bucket-here/f", tmp_path), "s3://no-such-bucket-here/"),
        (("s3://B*/f", tmp_path), "cannot be a bucket"),
        (("--profile=missing", f"{source}d/f", tmp_path), "missing"),
    ):
        done = copy(mount, *arguments)
        assert failed_with_one_line(done, words), (arguments, done)
    assert os.listdir(tmp_path) == ["file"]
    assert copy(mount, tmp_path, tmp_path / "x").returncode == 2  # neither is in a bucket
    assert copy(mount, tmp_path).returncode == 2


def test_a_read_only_or_dead_or_memory_mount_is_one_line(
    mount_volume: MountVolume, tmp_path: Path
) -> None:
    (tmp_path / "f").write_bytes(b"1")
    mount = mount_volume("--read-only")
    assert failed_with_one_line(copy(mount, tmp_path / "f", mount.path / "f"), "read-only")
    memory = mount_volume(memory=True)
    done = copy(memory, tmp_path / "f", memory.path / "f")
    assert failed_with_one_line(done, "in the daemon's memory alone")
    mount.kill()
    assert failed_with_one_line(copy(mount, tmp_path / "f", mount.path / "f"), "has died")
    other = {**mount.environment, "XDG_STATE_HOME": str(tmp_path / "elsewhere")}
    done = ucfuse("cp", tmp_path / "f", memory.path / "f", environment=other)
    assert failed_with_one_line(done, "another user")


def test_another_store_than_that_of_the_mount_is_refused(mount: Mount, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"1")
    other = {**mount.environment, "AWS_ENDPOINT_URL": "http://127.0.0.1:1"}
    done = ucfuse("cp", tmp_path / "f", mount.path / "f", environment=other)
    assert failed_with_one_line(done, "its mount uses")


# No permission.


def test_what_the_store_forbids_is_in_the_list(
    server: Server, mount: Mount, tmp_path: Path
) -> None:
    if server.name != "seaweedfs":
        pytest.skip(f"{server.name}: a server of somebody else does not know our identities")
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"1")
    mount.bucket.put("there", b"1")
    reader = {**mount.environment, **credentials_of(READER)}
    done = ucfuse("cp", "-r", tmp_path, mount.bucket.source, environment=reader)
    assert done.returncode == 1
    assert len([line for line in done.stderr.splitlines() if "AccessDenied" in line]) == 2
    assert "2 failed" in done.stderr
    assert mount.bucket.names() == {"there"}
    stranger = {**mount.environment, **credentials_of(STRANGER)}
    done = ucfuse("cp", "-r", mount.bucket.source, tmp_path / "x", environment=stranger)
    assert failed_with_one_line(done, "see the credentials in use")
    assert not (tmp_path / "x").exists()
