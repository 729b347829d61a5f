"""Callers that cannot be told apart, and names that are descriptors in disguise."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .harness import Mount, MountVolume
from .programs import eventually, shell

NEW_PID_NAMESPACE = ("unshare", "--pid", "--fork", "--mount-proc")


@pytest.fixture
def as_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root makes mounts and namespaces")


@pytest.fixture
def bound(mount: Mount, scratch: Path, as_root: None) -> Iterator[Path]:
    """A bind mount of the file `f`, which has a newer version since."""
    path = scratch / "bound"
    path.write_bytes(b"")
    mount.bucket.put("f", b"old")
    subprocess.run(["mount", "--bind", mount.path / "f", path], check=True, timeout=10)
    try:
        assert path.read_bytes() == b"old"
        mount.bucket.put("f", b"newer")
        yield path
    finally:
        subprocess.run(["umount", "-l", path], check=False, timeout=10, capture_output=True)


def test_a_bind_mounted_file_goes_on_showing_the_version_that_was_bound(
    mount: Mount, bound: Path
) -> None:
    """README, What you can rely on: opens by name; a bind-mounted file is not opened by name."""
    assert (mount.path / "f").read_bytes() == b"newer"
    assert bound.read_bytes() == b"old"
    assert bound.read_bytes() == b"old"
    assert (mount.path / "f").read_bytes() == b"newer"


def test_a_bind_mounted_file_can_be_opened_before_anybody_opened_its_new_version(
    mount: Mount, bound: Path
) -> None:
    """The open itself finds out that the name means another version; no ESTALE reaches it."""
    assert bound.read_bytes() == b"old"
    assert (mount.path / "f").read_bytes() == b"newer"


WRITE_AND_READ = """
import os, sys
folder = sys.argv[1]
assert os.getpid() < 10, os.getpid()
with open(folder + "/f", "wb") as file:
    file.write(b"from inside")
assert open(folder + "/f", "rb").read() == b"from inside"
with open(folder + "/f", "ab") as file:
    file.write(b", twice")
os.rename(folder + "/f", folder + "/g")
print(open(folder + "/g", "rb").read().decode())
"""


def run_inside(script: str, *arguments: str | Path) -> str:
    command = [*NEW_PID_NAMESPACE, sys.executable, "-c", script, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_program_in_another_pid_namespace_reads_and_writes(mount: Mount, as_root: None) -> None:
    """README, Programs run unchanged: in containers too."""
    assert run_inside(WRITE_AND_READ, mount.path) == "from inside, twice\n"
    assert mount.bucket.get("g") == b"from inside, twice"


READ_WHEN_TOLD = """
import sys
while line := sys.stdin.readline():
    print(open(sys.argv[1], "rb").read().decode(), flush=True)
"""


def test_programs_in_another_pid_namespace_find_each_new_version(
    mount: Mount, as_root: None
) -> None:
    """README, Newest version: also where callers cannot be told apart, several at once."""
    mount.bucket.put("f", b"0")
    command = [*NEW_PID_NAMESPACE, sys.executable, "-uc", READ_WHEN_TOLD, str(mount.path / "f")]
    programs = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    try:
        for version in range(1, 20):
            mount.bucket.put("f", str(version).encode())
            for program in programs:
                assert program.stdin is not None
                program.stdin.write("read\n")
                program.stdin.flush()
            for program in programs:
                assert program.stdout is not None
                assert program.stdout.readline() == f"{version}\n"
    finally:
        for program in programs:
            program.communicate(timeout=30)
    assert [program.returncode for program in programs] == [0, 0, 0]


def test_a_descriptor_of_another_pid_namespace_opens_its_old_version_again(
    mount_volume: MountVolume, as_root: None
) -> None:
    """Only descriptors lead to a file that lost its name some time ago."""
    mount = mount_volume("--metadata-ttl=50ms")
    mount.bucket.put("f", b"old")
    script = """
import os, sys
descriptor = os.open(sys.argv[1], os.O_RDONLY)
assert os.read(descriptor, 10) == b"old"
print("open", flush=True)
sys.stdin.readline()
print(open(f"/proc/self/fd/{descriptor}", "rb").read().decode(), flush=True)
"""
    command = [*NEW_PID_NAMESPACE, sys.executable, "-uc", script, str(mount.path / "f")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        assert program.stdout.readline() == "open\n"
        mount.bucket.put("f", b"newer")
        assert shell(f"cat {mount.path}/f") == "newer"
        lost_at = mount.status()["uptime_s"]
        eventually("the end of the name's age", lambda: mount.status()["uptime_s"] > lost_at + 0.1)
        program.stdin.write("go\n")
        program.stdin.flush()
        assert program.stdout.readline() == "old\n"
