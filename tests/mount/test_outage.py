"""A store that refuses, stalls or answers 503: survived for a while, then an errno in time."""

import errno
import os
import threading
import time
from collections.abc import Iterator

import pytest

from tests.servers.server import Server

from .faultproxy import FaultProxy, Link
from .harness import MountVolume
from .programs import eventually, fails_with

OUTAGE_S = 3.0
BROKEN = [Link.REFUSES, Link.SLOWS_DOWN]


@pytest.fixture
def proxy(server: Server) -> Iterator[FaultProxy]:
    """A link to the store that the test can break; the witness goes around it."""
    with FaultProxy(server.address) as link:
        yield link


def through(proxy: FaultProxy) -> dict[str, str]:
    return {"AWS_ENDPOINT_URL": proxy.url}


def mend_after(proxy: FaultProxy, seconds: float) -> threading.Timer:
    timer = threading.Timer(seconds, proxy.become, [Link.PASSES])
    timer.start()
    return timer


@pytest.mark.parametrize(
    ("state", "size"), [(Link.REFUSES, 100), (Link.SLOWS_DOWN, 100), (Link.SLOWS_DOWN, 9 << 20)]
)
def test_close_survives_a_short_outage(
    mount_volume: MountVolume, proxy: FaultProxy, state: Link, size: int
) -> None:
    mount = mount_volume("--commit-timeout=30s", over=through(proxy))
    fd = os.open(mount.path / "f", os.O_WRONLY | os.O_CREAT, 0o644)
    os.write(fd, b"x" * size)
    proxy.become(state)
    mend = mend_after(proxy, OUTAGE_S)
    begun_at = time.monotonic()
    os.close(fd)
    assert time.monotonic() - begun_at > OUTAGE_S / 2
    mend.join()
    head = mount.bucket.head("f")
    assert head is not None
    assert head["ContentLength"] == size


@pytest.mark.promise("P16")
@pytest.mark.parametrize("state", [*BROKEN, Link.STALLS])
def test_close_fails_in_time_and_a_later_fsync_commits(
    mount_volume: MountVolume, proxy: FaultProxy, state: Link
) -> None:
    mount = mount_volume("--commit-timeout=3s", over=through(proxy))
    keeper = os.open(mount.path / "f", os.O_RDWR | os.O_CREAT, 0o644)
    writer = os.open(mount.path / "f", os.O_RDWR)
    os.write(writer, b"precious")
    proxy.become(state)
    begun_at = time.monotonic()
    with fails_with(errno.EIO):
        os.close(writer)
    assert time.monotonic() - begun_at < 10
    (entry,) = mount.status()["uncommitted"]
    assert entry["path"].lstrip("/") == "f"
    assert entry["error"]
    assert not mount.bucket.has("f")
    assert os.pread(keeper, 100, 0) == b"precious"

    proxy.become(Link.PASSES)
    os.fsync(keeper)

    assert mount.bucket.get("f") == b"precious"
    assert mount.status()["uncommitted"] == []
    os.close(keeper)


@pytest.mark.promise("P16")
def test_the_next_close_commits_what_an_outage_held_back(
    mount_volume: MountVolume, proxy: FaultProxy
) -> None:
    mount = mount_volume("--commit-timeout=2s", over=through(proxy))
    first = os.open(mount.path / "f", os.O_RDWR | os.O_CREAT, 0o644)
    second = os.open(mount.path / "f", os.O_RDWR)
    os.write(first, b"precious")
    proxy.become(Link.REFUSES)
    with fails_with(errno.EIO):
        os.close(first)
    proxy.become(Link.PASSES)
    os.close(second)
    assert mount.bucket.get("f") == b"precious"


def test_bytes_of_a_failed_close_are_kept_and_named_in_the_log(
    mount_volume: MountVolume, proxy: FaultProxy
) -> None:
    mount = mount_volume("--commit-timeout=2s", over=through(proxy))
    fd = os.open(mount.path / "lost-and-found", os.O_WRONLY | os.O_CREAT, 0o644)
    os.write(fd, b"bytes that no store has")
    proxy.become(Link.REFUSES)
    with fails_with(errno.EIO):
        os.close(fd)
    eventually("the file's name in the log", lambda: "lost-and-found" in mount.log())
    kept = [path for path in mount.state_dir.rglob("*") if path.is_file()]
    assert any(b"bytes that no store has" in path.read_bytes() for path in kept), kept
    proxy.become(Link.PASSES)


def test_read_survives_a_short_outage(mount_volume: MountVolume, proxy: FaultProxy) -> None:
    mount = mount_volume(over=through(proxy))
    data = os.urandom(40 << 20)
    mount.bucket.put("f", data)
    with open(mount.path / "f", "rb", buffering=0) as file:
        assert file.read(100) == data[:100]
        proxy.become(Link.SLOWS_DOWN)
        mend = mend_after(proxy, OUTAGE_S)
        file.seek(0)
        got = b""
        while piece := file.read(1 << 20):
            got += piece
    mend.join()
    assert got == data


@pytest.mark.promise("P36")
@pytest.mark.parametrize("state", [*BROKEN, Link.STALLS])
def test_reads_and_stats_of_a_dead_store_end_in_time(
    mount_volume: MountVolume, proxy: FaultProxy, state: Link
) -> None:
    options = ("--read-timeout=2s", "--metadata-timeout=2s", "--metadata-ttl=0s")
    mount = mount_volume(*options, over=through(proxy))
    mount.bucket.put("f", b"x" * (64 << 20))
    with open(mount.path / "f", "rb", buffering=0) as file:
        file.read(10)
        proxy.become(state)
        begun_at = time.monotonic()
        with fails_with(errno.EIO):
            os.pread(file.fileno(), 10, 60 << 20)
        with fails_with(errno.EAGAIN):
            os.stat(mount.path / "other")
        with fails_with(errno.EAGAIN):
            os.open(mount.path / "f", os.O_RDONLY)
        with fails_with(errno.EAGAIN):
            os.listdir(mount.path)
        assert time.monotonic() - begun_at < 20
        proxy.become(Link.PASSES)
        assert os.pread(file.fileno(), 10, 60 << 20) == b"x" * 10
    assert not (mount.path / "other").exists()
    assert os.listdir(mount.path) == ["f"]


@pytest.mark.promise("P48")
def test_umount_of_a_mount_whose_store_is_away_keeps_the_bytes_and_says_so(
    mount_volume: MountVolume, proxy: FaultProxy
) -> None:
    mount = mount_volume("--commit-timeout=2s", over=through(proxy))
    keeper = os.open(mount.path / "f", os.O_WRONLY | os.O_CREAT, 0o644)
    os.write(keeper, b"precious")
    proxy.become(Link.REFUSES)
    with fails_with(errno.EIO):
        os.close(keeper)
    done = mount.umount()
    assert done.returncode == 1
    assert "not everything could be committed: f: StoreUnavailable" in done.stderr
    assert b"precious" in [
        path.read_bytes() for path in mount.state_dir.rglob("*") if path.is_file()
    ]
    proxy.become(Link.PASSES)
    assert mount.umount().returncode == 0
    assert mount.bucket.get("f") == b"precious"
