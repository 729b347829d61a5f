"""Bytes of small files that the kernel is given unasked: there at once, never too late."""

import mmap
import os
import random
import threading

import pytest

from .harness import Volume

KiB, MiB = 1 << 10, 1 << 20
ROUNDS = 60
READERS = 4


@pytest.mark.parametrize("size", [1, 4095, 4096, 4097, 150 * KiB, MiB - 1, MiB])
def test_a_small_file_is_read_without_a_read_request(known_volume: Volume, size: int) -> None:
    data = random.Random(size).randbytes(size)
    known_volume.bucket.put("f", data)
    os.listdir(known_volume.path)
    with known_volume.counting() as counts:
        assert (known_volume.path / "f").read_bytes() == data
    assert counts.fuse["READ"] == 0
    assert counts.store == {"GET": 1}


def test_a_mapping_of_a_small_file_has_its_bytes_and_zeros_behind(known_volume: Volume) -> None:
    data = random.Random(3).randbytes(5000)
    known_volume.bucket.put("f", data)
    with (
        open(known_volume.path / "f", "rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view,
    ):
        assert view[:] == data


@pytest.mark.parametrize("mode", ["r+b", "wb"])
def test_what_is_written_is_never_covered_by_what_others_opened_before(
    known_volume: Volume, mode: str
) -> None:
    """Readers open and close all the time, so bytes of the version before are always under way."""
    path, size = known_volume.path / "f", 100 * KiB
    known_volume.bucket.put("f", bytes(size))
    stop, failures = threading.Event(), []

    def read() -> None:
        while not stop.is_set():
            try:
                data = path.read_bytes()
            except OSError as error:
                failures.append(str(error))
                return
            if mode == "r+b" and (len(data) != size or len(set(data[:: 4 * KiB])) > 2):
                failures.append(f"{len(data)} bytes of {sorted(set(data))}")

    readers = [threading.Thread(target=read) for _ in range(READERS)]
    for reader in readers:
        reader.start()
    try:
        for number in range(1, ROUNDS + 1):
            written = bytes([number]) * size
            with open(path, mode, buffering=0) as file:
                file.write(written)
                assert path.read_bytes() == written
            assert path.read_bytes() == written
    finally:
        stop.set()
        for reader in readers:
            reader.join()
    assert failures == []
    assert known_volume.bucket.get("f") == written
