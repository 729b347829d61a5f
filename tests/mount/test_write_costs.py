"""What writing costs on a mount: bytes and requests that leave, counted by the daemon itself."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from .harness import Volume

MIB = 1 << 20
SIZE = 64 * MIB
BLOCK = bytes(range(256)) * 4096
LINE = b"l" * 99 + b"\n"


def write_blocks(path: Path, flags: int = os.O_CREAT | os.O_TRUNC) -> None:
    fd = os.open(path, os.O_WRONLY | flags, 0o644)
    for _ in range(SIZE // MIB):
        os.write(fd, BLOCK)
    os.close(fd)


def in_order(root: Path) -> None:
    write_blocks(root / "f")


def extended_first(root: Path) -> None:
    """As safetensors does it."""
    fd = os.open(root / "f", os.O_RDWR | os.O_CREAT, 0o644)
    os.ftruncate(fd, SIZE)
    os.close(os.dup(fd))
    for start in range(0, SIZE, MIB):
        os.pwrite(fd, BLOCK, start)
    os.close(fd)


def written_then_renamed(root: Path) -> None:
    """As programs do that want all or nothing: a name of its own first, over the old file then."""
    write_blocks(root / "f.tmp", os.O_CREAT | os.O_EXCL)
    os.rename(root / "f.tmp", root / "f")


@pytest.mark.parametrize("write", [in_order, extended_first, written_then_renamed])
@pytest.mark.promise("P15")
def test_a_large_file_is_sent_once(known_volume: Volume, write: Callable[[Path], None]) -> None:
    known_volume.bucket.put("f", b"old")
    os.listdir(known_volume.path)
    before = known_volume.status()
    write(known_volume.path)
    after = known_volume.status()

    assert SIZE <= after["store_bytes_sent"] - before["store_bytes_sent"] <= 1.05 * SIZE
    assert after["store_bytes_received"] - before["store_bytes_received"] < MIB
    assert known_volume.bucket.get("f") == BLOCK * 64
    assert known_volume.bucket.files() == {"f"}


def sent_by_each_append(volume: Volume, count: int) -> list[int]:
    """Append lines, each through an open of its own; return the bytes that each sent."""
    sent = []
    volume.mount.watch_again(600)
    before = volume.status()["store_bytes_sent"]
    for _ in range(count):
        with open(volume.path / "log", "ab", buffering=0) as file:
            file.write(LINE)
        now = volume.status()["store_bytes_sent"]
        sent.append(now - before)
        before = now
    return sent


LONG = [pytest.mark.long, pytest.mark.timeout(600)]


@pytest.mark.parametrize("count", [10, pytest.param(100, marks=LONG)])
def test_appends_to_a_log_that_starts_empty_send_little(known_volume: Volume, count: int) -> None:
    (known_volume.path / "log").touch()
    with known_volume.counting() as counts:
        sent = sent_by_each_append(known_volume, count)

    assert max(sent) < 6 * MIB
    assert counts.store["GET"] == 0
    assert known_volume.bucket.get("log") == LINE * count


@pytest.mark.parametrize("count", [5, pytest.param(50, marks=LONG)])
@pytest.mark.promise("P15")
def test_appends_to_a_large_object_send_little_of_it(known_volume: Volume, count: int) -> None:
    known_volume.bucket.put_large("log", BLOCK * 128)
    os.listdir(known_volume.path)
    with known_volume.counting() as counts:
        sent = sent_by_each_append(known_volume, count)

    assert max(sent) < 6 * MIB
    assert counts.store["GET"] == 0
    assert known_volume.bucket.get("log") == BLOCK * 128 + LINE * count


@pytest.mark.parametrize(("flags", "puts"), [(os.O_TRUNC, 1), (os.O_EXCL, 2)])
def test_a_new_small_file_costs_as_few_requests_as_can_be(
    known_volume: Volume, flags: int, puts: int
) -> None:
    with known_volume.counting() as counts:
        fd = os.open(known_volume.path / "f", os.O_WRONLY | os.O_CREAT | flags, 0o644)
        os.write(fd, LINE)
        os.close(fd)

    assert counts.store["PUT"] == puts
    assert counts.store["HEAD"] <= 2
    assert counts.store["LIST"] <= 1
    assert sum(counts.store.values()) <= puts + 3
