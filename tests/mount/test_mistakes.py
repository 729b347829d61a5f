"""Mistakes of the machine and of people: one line says what is wrong and what mends it."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from .harness import ROOT, Mount, is_mounted, ucfuse
from .witness import Bucket

# In a mount namespace of its own: a /dev with no fuse in it, or with one that nobody may open.
DEV_WITHOUT_FUSE = """
set -e
mount -t tmpfs none "$1"
for name in null zero random urandom; do
    touch "$1/$name"
    mount --bind "/dev/$name" "$1/$name"
done
mount --rbind "$1" /dev
shift
exec "$@"
"""


@pytest.fixture
def places(scratch: Path) -> tuple[Path, Path]:
    """A mount point, and a directory that becomes /dev."""
    if os.geteuid() != 0:
        pytest.skip("only root makes a /dev without fuse")
    work = scratch / f"machine-{os.urandom(3).hex()}"
    for name in ("mnt", "dev"):
        (work / name).mkdir(parents=True)
    return work / "mnt", work / "dev"


def ucfuse_without_fuse(
    *arguments: str | Path, dev: Path, environment: dict[str, str]
) -> "subprocess.CompletedProcess[str]":
    """Run a command where `/dev` is the directory `dev`."""
    command = [sys.executable, "-m", "ucfuse", *arguments]
    return subprocess.run(
        ["unshare", "--mount", "sh", "-c", DEV_WITHOUT_FUSE, "sh", dev, *command],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_missing_fuse_device_is_one_line_with_the_mend(
    places: tuple[Path, Path], environment: dict[str, str]
) -> None:
    """README, When something goes wrong: `/dev/fuse: missing`."""
    mountpoint, dev = places

    done = ucfuse_without_fuse("mount", "memory:", mountpoint, dev=dev, environment=environment)

    assert one_line(done).startswith("ucfuse: /dev/fuse: missing; run `modprobe fuse`")
    assert not is_mounted(mountpoint)


def test_doctor_says_so_too(places: tuple[Path, Path], environment: dict[str, str]) -> None:
    done = ucfuse_without_fuse("doctor", dev=places[1], environment=environment)

    assert done.returncode == 1
    assert "fail  /dev/fuse: missing; run `modprobe fuse`" in done.stdout


# The same mistakes with every command: one line that names the thing, an exit code, nothing done.

NEVER_MOUNTED = "/no/such/place"


def one_line(done: "subprocess.CompletedProcess[str]") -> str:
    assert (done.returncode, done.stdout) == (1, ""), done
    (line,) = done.stderr.splitlines()
    assert line.startswith("ucfuse: ")
    return line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("mount", "memory:", NEVER_MOUNTED), "mkdir -p /no/such/place"),
        (("umount", NEVER_MOUNTED), "`ucfuse status` lists them"),
        (("umount", "--lazy", "/"), "`ucfuse status` lists them"),
        (("abort", NEVER_MOUNTED), "`ucfuse status` lists them"),
        (("status", "--file", NEVER_MOUNTED), "No such file or directory"),
        (("status", "--file", "/"), "`ucfuse status` lists them"),
        (("recover", "discard", "nothing"), "see `ucfuse recover list`"),
        (("recover", "--state-dir", NEVER_MOUNTED, "list"), "no such directory"),
        (("cp", NEVER_MOUNTED, "s3://mounts/x"), "no such file or directory"),
        (("sync", "/etc/hostname", "s3://mounts/x"), "copy a file with `cp`"),
    ],
)
def test_a_wrong_place_is_one_line(
    environment: dict[str, str], whole_bucket: Bucket, arguments: tuple[str, ...], words: str
) -> None:
    assert words in one_line(ucfuse(*arguments, environment=environment))
    assert not whole_bucket.has("x")


def test_a_dead_daemon_is_one_line_with_both_mends(mount: Mount, tmp_path: Path) -> None:
    mount.kill()
    (tmp_path / "f").write_bytes(b"x")
    inside = mount.path / "f"
    for arguments in (
        ("abort", mount.path),
        ("cp", tmp_path / "f", inside),
        ("cp", "-r", mount.path, tmp_path / "copy"),
        ("sync", mount.path, tmp_path / "copy"),
    ):
        line = one_line(ucfuse(*arguments, environment=mount.environment))
        assert f"mount it again, or run `ucfuse umount {mount.path}`" in line
    line = one_line(ucfuse("status", "--file", inside, environment=mount.environment))
    assert "`ucfuse status` names it" in line
    status = ucfuse("status", environment=mount.environment)
    assert status.returncode == 1
    assert f"run `ucfuse umount {mount.path}`" in status.stdout
    assert sorted(os.listdir(tmp_path)) == ["f"]

    assert ucfuse("umount", mount.path, environment=mount.environment).returncode == 0
    assert not is_mounted(mount.path)


def test_a_daemon_that_hangs_is_named_in_one_line(mount: Mount, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x")
    os.kill(mount.pid, signal.SIGSTOP)
    try:
        for arguments in (("abort", mount.path), ("cp", tmp_path / "f", mount.path / "f")):
            line = one_line(ucfuse(*arguments, environment=mount.environment))
            assert f"`kill -9 {mount.pid}`" in line
    finally:
        os.kill(mount.pid, signal.SIGCONT)


@pytest.mark.parametrize(
    "arguments",
    [
        ("doctor", "s3://mounts"),
        ("cp", "s3://mounts/f", "{tmp}"),
        ("mount", "s3://mounts", "{tmp}"),
    ],
)
def test_ctrl_c_is_one_line_and_leaves_nothing(
    environment: dict[str, str], tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    """A store that never answers holds the command up until it is interrupted."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(60)
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "ucfuse"),
                *(argument.format(tmp=tmp_path) for argument in arguments),
            ],
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                **environment,
                "AWS_ENDPOINT_URL": url,
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        connection, _ = silent.accept()
        process.send_signal(signal.SIGINT)
        _, complaints = process.communicate(timeout=30)
        connection.close()
    assert process.returncode == 130, complaints
    assert "interrupted" in complaints
    assert len(complaints.splitlines()) == 1, complaints
    assert not is_mounted(tmp_path)
    assert os.listdir(tmp_path) == []
