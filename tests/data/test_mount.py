"""The dataset and the loader on a mount: what they ask of it, and what a slow store costs."""

import multiprocessing
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import pytest

from tests.mount.harness import Mount, MountVolume
from tests.mount.programs import eventually
from tests.mount.witness import Bucket
from tests.servers.server import Server
from ucfuse.data import DataLoader, UCVolumeDataset

from .files import Files, names_of
from .test_processes import ROOT

COMPUTE = 1.5
ATTEMPTS = 3
LATENCY_S = 0.05
LAG = ROOT / "tests" / "bench" / "s3lag.py"


def read_all(loader: DataLoader[str]) -> dict[str, bytes]:
    """Return name and content of all files of an epoch."""
    paths = [path for batch in loader for path in batch]
    return dict(zip(names_of(paths), (Path(path).read_bytes() for path in paths), strict=True))


@pytest.mark.parametrize(("workers", "shuffle"), [(0, False), (0, True), (2, True)])
def test_the_second_epoch_opens_and_reads_nothing(
    mount_volume: MountVolume, stored: Files, cache_dir: Path, workers: int, shuffle: bool
) -> None:
    """The first opens each file once; nothing of the volume is read twice, by whichever worker."""
    mount = mount_volume()
    dataset = UCVolumeDataset(mount.path, cache_dir=cache_dir, shuffle=shuffle)
    loader = DataLoader(dataset, 8, num_workers=workers)
    with mount.counting() as first:
        assert read_all(loader) == stored
    with mount.counting() as second:
        assert read_all(loader) == stored
    assert first.fuse["OPEN"] == len(stored)
    assert (second.fuse["OPEN"], second.fuse["READ"]) == (0, 0)


def test_what_another_client_changes_between_epochs_is_read_again(
    mount_volume: MountVolume, stored: Files, cache_dir: Path, bucket: Bucket
) -> None:
    """Also if the new version has the same size and, in whole seconds, the same time."""
    mount = mount_volume("--metadata-ttl=0s")
    loader = DataLoader(UCVolumeDataset(mount.path, cache_dir=cache_dir), 8)
    assert read_all(loader) == stored
    changed = list(stored)[::20]
    with mount.counting() as counts:  # the look-ahead into the next epoch may meet them at once
        for name in changed:
            stored[name] = bytes(reversed(stored[name]))
            bucket.put(name, stored[name])
        assert read_all(loader) == stored
    assert counts.fuse["OPEN"] == len(changed)


def read_cold(directory: Path, cache_dir: Path, start: Barrier, answers: Any) -> None:
    dataset = UCVolumeDataset(directory, cache_dir=cache_dir)
    start.wait()
    (path,) = dataset
    answers.put((path, os.stat(path).st_ino, Path(path).read_bytes()))


def test_sixty_four_processes_open_one_cold_file_once(
    mount_volume: MountVolume, bucket: Bucket, cache_dir: Path
) -> None:
    content = os.urandom(5 << 20)
    bucket.put("cold.bin", content)
    mount = mount_volume()
    fork = multiprocessing.get_context("fork")
    start, answers = fork.Barrier(64), fork.SimpleQueue()
    processes = [
        fork.Process(target=read_cold, args=(mount.path, cache_dir, start, answers))
        for _ in range(64)
    ]
    with mount.counting() as counts:
        for process in processes:
            process.start()
        received = {answers.get() for _ in processes}
        for process in processes:
            process.join()
    assert [content for _, _, content in received] == [content]
    assert counts.fuse["OPEN"] == 1


@pytest.fixture
def slow_mount(mount_volume: MountVolume, seaweedfs: Server, stored: Files) -> Iterator[Mount]:
    """A mount whose store takes 50 ms for every answer."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    target = seaweedfs.endpoint_url.rpartition(":")[2]
    latency = ("--latency", str(1000 * LATENCY_S))
    lag = subprocess.Popen([sys.executable, LAG, str(port), target, *latency])
    try:
        eventually("the proxy", lambda: is_open(port))
        yield mount_volume(over={"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"})
    finally:
        lag.kill()
        lag.wait()


def test_what_a_limit_evicted_is_fetched_ahead_again(
    slow_mount: Mount, stored: Files, cache_dir: Path
) -> None:
    """One file after the other would take the store's 50 ms for each."""
    limit = sum(map(len, stored.values())) // 2
    dataset = UCVolumeDataset(slow_mount.path, cache_dir=cache_dir, cache_bytes=limit)
    for _ in range(2):
        before, began = dataset.stats(), time.perf_counter()
        assert sum(len(Path(path).read_bytes()) for path in dataset) == 2 * limit
        took = time.perf_counter() - began
    asked = sum(dataset.stats()[name] - before[name] for name in ("misses", "passed"))
    assert asked > len(stored) // 4
    assert took < 0.5 * asked * LATENCY_S


def is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def wait_share(loader: DataLoader[str], compute_s: float) -> float:
    """Return which share of its time a training loop waits for its second and later batches."""
    began = time.perf_counter()
    for number, _ in enumerate(loader):
        if number == 0:
            before, began = loader.stats()["wait_s"], time.perf_counter()
        time.sleep(compute_s)
    return (loader.stats()["wait_s"] - before) / (time.perf_counter() - began)


@pytest.mark.parametrize("workers", [0, 2])
def test_computing_hides_the_reading(slow_mount: Mount, tmp_path: Path, workers: int) -> None:
    """Where computing takes 1.5 times what reading takes, under 5 % of the time is waited."""

    def loader(attempt: str) -> DataLoader[str]:
        # Two fetchers: so that reading takes as long as the store's answers, not as the processor.
        options = {"cache_dir": tmp_path / attempt, "fetchers": 2, "shuffle": True}
        return DataLoader(UCVolumeDataset(slow_mount.path, **options), 4, num_workers=workers)  # type: ignore[arg-type]

    alone = loader("alone")
    began = time.perf_counter()
    batches = len(list(alone))
    reading_s = (time.perf_counter() - began) / batches
    slow_mount.remount()
    # Other programs may take the processor away: the best of some attempts counts.
    shares = []
    for attempt in range(ATTEMPTS):
        shares.append(wait_share(loader(f"attempt-{attempt}"), COMPUTE * reading_s))
        if shares[-1] < 0.05:
            return
        slow_mount.remount()
    pytest.fail(f"waited {shares} of the time")
