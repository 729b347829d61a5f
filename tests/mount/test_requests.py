"""How many requests an action costs: the promises about speed that hold on any machine."""

import os
import random

import pytest

from .harness import Mount, Volume
from .page_cache import pages_held
from .programs import run

MiB = 1 << 20


@pytest.mark.parametrize("count", [2_500, pytest.param(20_000, marks=pytest.mark.long)])
def test_a_directory_is_listed_completely_by_one_request_for_1000_names(
    mount: Mount, count: int
) -> None:
    expected = {f"{number:05d}" for number in range(count)}
    mount.bucket.put_all(expected, b"x")
    with mount.counting() as counts:
        printed = run("ls", "-l", mount.path)
    assert counts.store == {"LIST": -(-count // 1000)}
    assert len(printed.splitlines()) == count + 1
    names = os.listdir(mount.path)
    assert len(names) == count
    assert set(names) == expected
    with os.scandir(mount.path) as entries:
        assert all(entry.stat().st_size == 1 for entry in entries)


@pytest.mark.promise("P5")
def test_reread_of_an_unchanged_large_file_is_one_conditional_get(known_volume: Volume) -> None:
    data = random.Random(5).randbytes(MiB) * 96
    known_volume.bucket.put_large("big", data)
    assert (known_volume.path / "big").read_bytes() == data
    with pages_held(known_volume.path / "big"):
        received = known_volume.status()["store_bytes_received"]
        with known_volume.counting() as counts:
            assert (known_volume.path / "big").read_bytes() == data
        assert known_volume.status()["store_bytes_received"] - received < MiB
    assert counts.store == {"GET": 1}
    assert counts.fuse["READ"] == 0


def test_first_read_of_a_large_file_fetches_its_bytes_once(known_volume: Volume) -> None:
    data = random.Random(6).randbytes(MiB) * 96
    known_volume.bucket.put_large("big", data)
    received = known_volume.status()["store_bytes_received"]
    with known_volume.counting() as counts:
        assert (known_volume.path / "big").read_bytes() == data
    assert counts.store["GET"] <= 1 + 96
    assert known_volume.status()["store_bytes_received"] - received < len(data) * 1.05


def test_small_file_of_a_fresh_listing_is_one_get(known_volume: Volume) -> None:
    known_volume.bucket.put_all([f"d/{number}" for number in range(5)], b"small")
    names = os.listdir(known_volume.path / "d")
    with known_volume.counting() as counts:
        for name in names:
            assert (known_volume.path / "d" / name).read_bytes() == b"small"
    assert len(names) == 5
    assert counts.store == {"GET": 5}


def test_open_of_a_changed_file_is_one_get(known_volume: Volume) -> None:
    known_volume.bucket.put("d/f", b"old")
    assert (known_volume.path / "d/f").read_bytes() == b"old"
    known_volume.bucket.put("d/f", b"newer")
    with known_volume.counting() as counts:
        assert (known_volume.path / "d/f").read_bytes() == b"newer"
    assert counts.store == {"GET": 1}


def test_every_open_of_a_file_that_changes_each_time_is_one_get(known_volume: Volume) -> None:
    known_volume.bucket.put("a/b/f", b"0")
    assert (known_volume.path / "a/b/f").read_bytes() == b"0"
    with known_volume.counting() as counts:
        for number in range(1, 21):
            known_volume.bucket.put("a/b/f", b"%d" % number)
            assert (known_volume.path / "a/b/f").read_bytes() == b"%d" % number
    assert counts.store == {"GET": 20}


def test_small_new_file_is_one_put(known_volume: Volume) -> None:
    os.listdir(known_volume.path)
    data = b"small" * 1000
    received = known_volume.status()["store_bytes_received"]
    with known_volume.counting() as counts:
        (known_volume.path / "f").write_bytes(data)
        assert (known_volume.path / "f").read_bytes() == data
    assert counts.store["PUT"] == 1
    assert counts.store["GET"] == 1, "an open asks, and the bytes are here"
    assert known_volume.status()["store_bytes_received"] - received < len(data)


def test_append_to_a_small_file_reads_it_at_most_once(known_volume: Volume) -> None:
    known_volume.bucket.put("log", b"line\n")
    with known_volume.counting() as counts, open(known_volume.path / "log", "ab") as file:
        file.write(b"line\n")
    assert counts.store["PUT"] == 1
    assert counts.store["GET"] <= 1


@pytest.mark.parametrize("size", [9 * MiB, 40 * MiB])
def test_large_file_is_one_multipart_upload_with_one_confirmation(
    known_volume: Volume, size: int
) -> None:
    block = random.Random(1).randbytes(MiB)
    with (
        known_volume.counting() as counts,
        open(known_volume.path / "f", "wb", buffering=0) as file,
    ):
        for _ in range(size // MiB):
            file.write(block)
    assert counts.store["CREATE"] == counts.store["COMPLETE"] == 1
    assert counts.store["PART"] == -(-size // (8 * MiB))
    assert counts.store["PUT"] == 0
    head = known_volume.bucket.head("f")
    assert head is not None
    assert head["ContentLength"] == size


def test_gauges_return_to_zero_after_the_work(known_volume: Volume) -> None:
    known_volume.bucket.put("f", b"x" * (20 * MiB))
    assert len((known_volume.path / "f").read_bytes()) == 20 * MiB
    (known_volume.path / "g").write_bytes(b"y" * (20 * MiB))
    status = known_volume.status()
    assert status["uncommitted"] == []
    assert 0 <= status["memory"]["reserved_bytes"] <= status["memory"]["limit_bytes"]
    assert status["store_bytes_sent"] >= 20 * MiB
    assert status["store_bytes_received"] >= 20 * MiB
