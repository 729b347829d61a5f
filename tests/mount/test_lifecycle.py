"""Mounting and unmounting: the command line, crashes, and everything that can go wrong at start."""

import errno
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from .harness import Mount, MountVolume, is_mounted, mounted_type, ucfuse
from .programs import eventually, fails_with, run_python, start_python
from .witness import Bucket


def processes_naming(path: Path) -> list[int]:
    """Return the daemons whose command line names the path."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if b"ucfuse" in words and os.fsencode(path) in words:
                found.append(int(entry.name))
    return found


@pytest.fixture
def empty(scratch: Path, bucket: Bucket) -> Iterator[Path]:
    """An empty directory to mount on by the command line; nothing stays mounted there."""
    path = scratch / bucket.prefix.strip("/") / "mnt"
    path.mkdir(parents=True)
    yield path
    for pid in processes_naming(path):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    while is_mounted(path):
        subprocess.run(["umount", "-l", path], check=True, timeout=10)


def test_mount_returns_when_usable_and_umount_ends_the_daemon(
    empty: Path, bucket: Bucket, environment: dict[str, str]
) -> None:
    done = ucfuse("mount", bucket.source, empty, environment=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert mounted_type(empty) == "fuse.ucfuse"
    assert len(processes_naming(empty)) == 1
    (empty / "f").write_bytes(b"x")
    assert bucket.get("f") == b"x"

    done = ucfuse("umount", empty, environment=environment)

    assert done.returncode == 0, done.stderr
    assert not is_mounted(empty)
    eventually("the end of the daemon", lambda: not processes_naming(empty))
    assert os.listdir(empty) == []


def test_memory_volume_is_gone_after_umount(mount_volume: MountVolume) -> None:
    mount = mount_volume(memory=True)
    os.makedirs(mount.path / "a/b")
    (mount.path / "a/b/f").write_bytes(b"x" * (20 << 20))
    assert (mount.path / "a/b/f").read_bytes() == b"x" * (20 << 20)
    assert mount.status()["source"] == "memory:"
    mount.remount()
    assert os.listdir(mount.path) == []


def test_status_tells_about_the_mount(mount: Mount) -> None:
    with mount.counting() as counts:  # the mount itself has asked what the store can do
        (mount.path / "f").write_bytes(b"x")
    assert counts.store["PUT"] == 1
    status = mount.status()
    assert status["source"] == mount.bucket.source
    assert status["uptime_s"] >= 0
    assert status["version"]
    assert set(status["store_requests"]) == {
        "GET", "HEAD", "LIST", "PUT", "COPY", "DELETE",
        "CREATE", "PART", "PARTCOPY", "COMPLETE", "ABORT",
    }  # fmt: skip
    assert status["fuse_requests"]["WRITE"] == 1
    assert status["skipped_keys"] == 0
    assert status["uncommitted"] == []
    assert {"limit_bytes", "reserved_bytes"} <= set(status["memory"])
    words = ucfuse("status", environment=mount.environment)
    assert words.returncode == 0
    assert str(mount.path) in words.stdout


def write_and_hold(path: str) -> None:
    import sys

    with open(path, "wb", buffering=0) as file:
        file.write(b"uncommitted")
        sys.stdout.write("written\n")
        sys.stdout.flush()
        sys.stdin.readline()


def test_status_lists_what_is_not_committed(mount: Mount) -> None:
    with start_python(write_and_hold, mount.path / "f") as program:
        assert program.hear() == "written"
        (entry,) = mount.status()["uncommitted"]
        assert entry["path"].lstrip("/") == "f"
        assert entry["bytes"] == len(b"uncommitted")
        assert entry["age_s"] >= 0
        assert entry["error"] is None
        program.say()
        program.end()
    assert mount.status()["uncommitted"] == []


def test_umount_of_a_busy_mount_names_the_programs_and_the_mount_goes_on(mount: Mount) -> None:
    with start_python(write_and_hold, mount.path / "f") as program:
        assert program.hear() == "written"
        done = mount.umount()
        assert done.returncode == 1
        assert str(program.process.pid) in done.stderr
        assert is_mounted(mount.path)
        (mount.path / "g").write_bytes(b"goes on")
        program.say()
        program.end()
    assert mount.bucket.get("f") == b"uncommitted"
    assert mount.bucket.get("g") == b"goes on"
    assert mount.umount().returncode == 0


def work_in(path: str) -> None:
    import os
    import sys

    os.chdir(path)
    sys.stdout.write("there\n")
    sys.stdout.flush()
    sys.stdin.readline()


def test_umount_names_a_program_whose_working_directory_is_in_the_mount(mount: Mount) -> None:
    with start_python(work_in, mount.path) as program:
        assert program.hear() == "there"
        done = mount.umount()
        assert done.returncode == 1
        assert str(program.process.pid) in done.stderr
        assert os.listdir(mount.path) == []


@pytest.mark.parametrize("options", [(), ("--lazy",)])
def test_umount_inside_the_mount_does_not_wait_for_itself(
    mount: Mount, options: tuple[str, ...]
) -> None:
    done = ucfuse(*("umount", *options, "."), environment=mount.environment, directory=mount.path)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "")
    assert not is_mounted(mount.path)


@pytest.mark.promise("P49")
def test_mount_point_of_a_killed_daemon_answers_enotconn_and_is_repaired(mount: Mount) -> None:
    (mount.path / "f").write_bytes(b"x")
    mount.kill()
    with fails_with(errno.ENOTCONN):
        os.listdir(mount.path)
    mount.start()
    assert mounted_type(mount.path) == "fuse.ucfuse"
    assert (mount.path / "f").read_bytes() == b"x"


def read_slowly(path: str) -> None:
    import os
    import sys
    from contextlib import suppress

    fd = os.open(path, os.O_RDONLY)
    os.read(fd, 10)
    sys.stdout.write("open\n")
    sys.stdout.flush()
    sys.stdin.readline()
    with suppress(OSError):
        os.close(fd)


def test_crashed_mount_with_open_files_is_repaired_too(mount: Mount) -> None:
    mount.bucket.put("f", b"x" * 100)
    with start_python(read_slowly, mount.path / "f") as program:
        assert program.hear() == "open"
        mount.kill()
        mount.start()
        assert (mount.path / "f").read_bytes() == b"x" * 100
        program.say()
        program.end()


@pytest.mark.promise("P49")
def test_umount_clears_a_dead_mount_point(mount: Mount) -> None:
    mount.kill()
    mount.umount()
    assert not is_mounted(mount.path)


@pytest.mark.promise("P48")
def test_terminated_daemon_commits_and_unmounts(mount: Mount) -> None:
    with start_python(write_and_hold, mount.path / "f") as program:
        assert program.hear() == "written"
        program.say()
        program.end()
    os.kill(mount.pid, signal.SIGTERM)
    eventually("the end of the mount", lambda: not is_mounted(mount.path))
    eventually("the end of the daemon", lambda: not mount.is_alive())
    assert mount.bucket.get("f") == b"uncommitted"


def test_killed_daemon_never_commits_an_unfinished_file(mount: Mount) -> None:
    mount.bucket.put("f", b"old")
    with start_python(write_and_hold, mount.path / "f") as program:
        assert program.hear() == "written"
        mount.kill()
        mount.start()
    assert mount.bucket.get("f") == b"old"
    assert (mount.path / "f").read_bytes() == b"old"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


CANNOT_MOUNT = {
    "missing bucket": ("s3://no-such-bucket-here", {}, "no-such-bucket-here"),
    "unreachable store": ("s3://mounts", {"AWS_ENDPOINT_URL": "refused"}, ""),
    "wrong secret": ("s3://mounts", {"AWS_SECRET_ACCESS_KEY": "wrong"}, ""),
    "no credentials": ("s3://mounts", {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}, ""),
}


@pytest.mark.parametrize(
    ("case", "foreground"), [*((case, False) for case in CANNOT_MOUNT), ("missing bucket", True)]
)
def test_mount_that_cannot_work_says_why_in_one_line(
    empty: Path, environment: dict[str, str], case: str, foreground: bool
) -> None:
    source, over, word = CANNOT_MOUNT[case]
    refused = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{free_port()}"}
    shut_off = {"AWS_EC2_METADATA_DISABLED": "true", "HOME": str(empty.parent)}
    done = ucfuse(
        *("mount", "--metadata-timeout=3s", *(["--foreground"] if foreground else [])),
        *(source, empty),
        environment={
            **environment,
            **shut_off,
            **(refused if "refused" in over.values() else over),
        },
    )
    assert_refused(done, empty)
    assert word in done.stderr


def assert_refused(done: "subprocess.CompletedProcess[str]", path: Path) -> None:
    assert done.returncode == 1, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert not is_mounted(path)


def test_mount_point_that_is_not_empty_is_refused(
    empty: Path, bucket: Bucket, environment: dict[str, str]
) -> None:
    (empty / "precious").write_bytes(b"x")
    done = ucfuse("mount", bucket.source, empty, environment=environment)
    assert_refused(done, empty)
    assert str(empty) in done.stderr
    assert (empty / "precious").read_bytes() == b"x"


def test_second_mount_at_the_same_place_is_refused(mount: Mount) -> None:
    done = ucfuse("mount", mount.bucket.source, mount.path, environment=mount.environment)
    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    (mount.path / "f").write_bytes(b"the first one goes on")
    assert mount.bucket.get("f") == b"the first one goes on"


def make_a_volume_below_volumes(path: str) -> None:
    import os

    assert os.path.isdir(path)
    assert os.path.ismount(path)


def test_missing_mount_point_below_volumes_is_created(
    bucket: Bucket, environment: dict[str, str]
) -> None:
    if os.geteuid() != 0:
        pytest.skip("/Volumes is root's to make")
    existed = Path("/Volumes").exists()
    path = Path("/Volumes") / f"test-{bucket.prefix.strip('/')}" / "default/demo"
    try:
        done = ucfuse("mount", bucket.source, path, environment=environment)
        assert (done.returncode, done.stderr) == (0, "")
        run_python(make_a_volume_below_volumes, path)
        (path / "f").write_bytes(b"x")
        assert bucket.get("f") == b"x"
        assert ucfuse("umount", path, environment=environment).returncode == 0
    finally:
        for pid in processes_naming(path):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if is_mounted(path):
            subprocess.run(["umount", "-l", path], check=True, timeout=10)
        for directory in (path, *list(path.parents)[: 2 if existed else 3]):
            with suppress(OSError):
                directory.rmdir()
