"""`ucfuse mount --dev`: one store for all its mounts, for as long as one of them lives."""

import fcntl
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from .harness import is_mounted, ucfuse
from .programs import eventually

START_S = 100.0


@pytest.fixture
def home(scratch: Path, bucket: object) -> Iterator[Path]:
    """A home of the test's own; nothing stays mounted, and no store running."""
    home = scratch / f"dev-{os.urandom(3).hex()}"
    for name in ("one", "two"):
        (home / name).mkdir(parents=True)
    yield home
    for name in ("one", "two"):
        if is_mounted(home / name):
            subprocess.run(["umount", "-l", home / name], check=True, timeout=10)
    eventually("the end of the store", lambda: not is_kept(home), 60)


def environment_of(home: Path) -> dict[str, str]:
    return {"XDG_STATE_HOME": str(home / "state"), "XDG_DATA_HOME": str(home / "data")}


def is_kept(home: Path) -> bool:
    with (home / "data/ucfuse/dev/keeper").open("a") as lock, suppress(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    return True


def mount(home: Path, name: str) -> dict[str, object]:
    environment = environment_of(home)
    done = ucfuse("mount", "--dev", home / name, environment=environment, deadline_s=START_S)
    assert (done.returncode, done.stderr) == (0, "")
    entries = json.loads(ucfuse("status", "--json", environment=environment).stdout)
    (found,) = [entry for entry in entries if entry["mountpoint"] == str(home / name)]
    return dict(found)


def umount(home: Path, name: str) -> None:
    done = ucfuse("umount", home / name, environment=environment_of(home), deadline_s=START_S)
    assert (done.returncode, done.stderr) == (0, "")


def test_dev_mounts_share_a_store_that_outlives_the_first_of_them(home: Path) -> None:
    """README, --dev: several mounts at once, and the data stays."""
    first, second = mount(home, "one"), mount(home, "two")
    assert first["endpoint_url"] == second["endpoint_url"]
    (home / "one/f").write_bytes(b"shared")
    assert (home / "two/f").read_bytes() == b"shared"

    os.kill(int(str(first["pid"])), signal.SIGKILL)
    (home / "two/g").write_bytes(b"goes on")
    umount(home, "one")
    assert is_kept(home)
    assert (home / "two/f").read_bytes() == b"shared"
    umount(home, "two")

    assert not is_kept(home)
    mount(home, "one")
    assert (home / "one/g").read_bytes() == b"goes on"
    umount(home, "one")
