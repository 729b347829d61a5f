"""What reading costs in bytes and in memory: no more than was asked for, within the limit."""

import os
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from .harness import Mount, MountVolume, Volume

KiB, MiB = 1 << 10, 1 << 20
SLICE_BYTES = 16 * MiB
# Interpreter, libraries, connections, the kernel's requests: what no buffer is.
BASE_BYTES = 256 * MiB


def test_a_sequential_pass_receives_hardly_more_than_it_reads(known_volume: Volume) -> None:
    data = random.Random(8).randbytes(MiB) * 80
    known_volume.bucket.put_large("big", data)
    before = known_volume.status()["store_bytes_received"]
    assert (known_volume.path / "big").read_bytes() == data
    received = known_volume.status()["store_bytes_received"] - before
    assert len(data) <= received <= 1.02 * len(data)


def test_random_reads_receive_hardly_more_than_they_ask_for(known_volume: Volume) -> None:
    """At page boundaries, 4 KiB to 1 MiB each. The first MiB comes with the open."""
    size, chance = 256 * MiB, random.Random(9)
    block = chance.randbytes(MiB)
    known_volume.bucket.put_large("big", block * (size // MiB))
    # One piece of each two MiB, so that no piece is cached already when its turn comes.
    places = list(range(2 * MiB, size, 2 * MiB))
    chance.shuffle(places)
    asked = 0
    descriptor = os.open(known_volume.path / "big", os.O_RDONLY)
    try:
        before = known_volume.status()["store_bytes_received"]
        for place in places:
            offset = place + chance.randrange(0, MiB // 4096) * 4096
            length = chance.randint(4 * KiB, 2 * MiB - (offset - place))
            length = min(length, MiB)
            wanted = (block * 3)[offset % MiB : offset % MiB + length]
            assert os.pread(descriptor, length, offset) == wanted
            asked += length
        received = known_volume.status()["store_bytes_received"] - before
    finally:
        os.close(descriptor)
    assert asked <= received <= 1.05 * asked


def peak_bytes(mount: Mount) -> int:
    """Return the most memory that the daemon ever had."""
    for line in Path(f"/proc/{mount.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * KiB
    raise AssertionError("no VmHWM")


def read_slices(path: Path, size: int, reader_count: int) -> None:
    """Let as many readers as that read 16 MiB each, at once."""

    def read(number: int) -> int:
        with open(path, "rb", buffering=0) as file:
            file.seek(number * SLICE_BYTES % size)
            return sum(len(file.read(MiB)) for _ in range(SLICE_BYTES // MiB))

    with ThreadPoolExecutor(reader_count) as pool:
        assert set(pool.map(read, range(reader_count))) == {SLICE_BYTES}


def check_memory(mount: Mount, limit: int, size: int, reader_count: int) -> None:
    mount.bucket.put_large("big", random.Random(10).randbytes(MiB) * (size // MiB))
    read_slices(mount.path / "big", size, reader_count)
    assert peak_bytes(mount) <= limit + BASE_BYTES
    status = mount.status()["memory"]
    assert status["reserved_bytes"] <= status["limit_bytes"] == limit


@pytest.mark.parametrize("reader_count", [1, 51])
def test_memory_stays_within_the_limit_whatever_the_number_of_readers(
    mount_volume: MountVolume, reader_count: int
) -> None:
    mount = mount_volume("--memory-limit=128MiB", "--metadata-ttl=5m")
    check_memory(mount, 128 * MiB, 112 * MiB, reader_count)


@pytest.mark.long
@pytest.mark.parametrize("limit_mib", [128, 512])
@pytest.mark.parametrize("reader_count", [1, 64, 512])
def test_memory_stays_within_the_limit_with_512_readers_of_1_gib(
    mount_volume: MountVolume, reader_count: int, limit_mib: int
) -> None:
    mount = mount_volume(f"--memory-limit={limit_mib}MiB", "--metadata-ttl=5m")
    check_memory(mount, limit_mib * MiB, 1024 * MiB, reader_count)
