#!/usr/bin/env python3
"""Load small files through `ucfuse.data` and its alternatives, and print rates as a table.

    data_loader.py [--latency 20] [--files 2000] [--rounds 3] [--others]

It starts SeaweedFS, with --latency behind s3lag.py, and a mount of its own, which is made anew
before everything that must be cold. --others adds torch's DataLoader over the mount and, if they
are installed, what reads the bucket itself: litdata's raw dataset (which needs s3fs and zstd) and
s3torchconnector. If they want other libraries than the mount, --python names the mount's Python.

Every file is opened and read whole. Rounds are interleaved and medians printed; only a ratio within
one run means something. "Listed": the directory was listed before. In the last rows the training
loop sleeps 1.5 times as long as a batch took without it; printed is which share of its time it
waited from its second batch on.
"""

import argparse
import contextlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import peers  # type: ignore[import-untyped]
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset

from ucfuse.data import DataLoader, UCVolumeDataset

ROOT = Path(__file__).resolve().parents[2]
READERS = 32
WORKERS = 2
BATCH = 32
SERIAL_SHARE = 4
"""A part of the files is enough to know the rate of a serial loop."""
COMPUTE = 1.5
MOUNT_DEADLINE_S = 30

Rates = dict[str, list[float]]


def read(path: str) -> int:
    """Return how many bytes the file has, having read them."""
    return int(peers.read_file(path))


def read_batch(paths: Iterable[str]) -> int:
    """Read a batch where it is put together, as a decoder would."""
    return sum(map(read, paths))


class FilesOfMount(Dataset[int]):
    """What one writes without any of this: a map-style dataset that opens files of the mount."""

    def __init__(self, paths: list[str]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, number: int) -> int:
        return read(self.paths[number])


class Bench:
    """The contenders. Owner of the mount and of the cache directory that it makes anew."""

    def __init__(self, client: Any, work: Path, files: int, python: str) -> None:
        self.client = client
        self.work = work
        self.files = files
        self.python = python
        self.directory = work / "mnt"
        self.directory.mkdir()
        self.cache = work
        self.rates: Rates = {}
        self.waits: Rates = {}

    @contextlib.contextmanager
    def cold_mount(self) -> Iterator[None]:
        """Mount the bucket with nothing known of it, and begin a new cache.

        The old one stays till the end: ext4 is slow for minutes where many files were removed.
        """
        self.cache = self.work / f"cache-{len(self.rates)}-{time.monotonic_ns()}"
        peers.drop_page_cache()
        options = ("--foreground", "--state-dir", str(self.work / "state"))
        place = (f"s3://{peers.BUCKET}", str(self.directory))
        with open(self.work / "mount.log", "a") as log:
            daemon = subprocess.Popen(
                [self.python, "-m", "ucfuse", "mount", *options, *place],
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            self._wait_for(daemon)
            yield
        finally:
            subprocess.run(["umount", "-l", self.directory], check=False)
            peers.stop(daemon, 20)

    def _wait_for(self, daemon: "subprocess.Popen[bytes]") -> None:
        until = time.monotonic() + MOUNT_DEADLINE_S
        while not os.path.ismount(self.directory):
            if daemon.poll() is not None or time.monotonic() > until:
                raise SystemExit((self.work / "mount.log").read_text()[-2000:])
            time.sleep(0.1)

    def rate(self, name: str, files: int, work: Callable[[], object]) -> None:
        """Note how fast `work` goes through so many files."""
        began = time.perf_counter()
        work()
        self.rates.setdefault(name, []).append(files / (time.perf_counter() - began))

    def listed(self) -> list[str]:
        """Return the paths of the files, with what `stat` says known to the mount."""
        entries = list(os.scandir(self.directory / "small"))
        assert sum(entry.stat().st_size for entry in entries) == self.files * peers.SMALL_BYTES
        return sorted(entry.path for entry in entries)

    def dataset(self) -> UCVolumeDataset:
        return UCVolumeDataset(self.directory / "small", cache_dir=self.cache)

    def loader(self, workers: int) -> DataLoader[Any]:
        return DataLoader(self.dataset(), BATCH, num_workers=workers, collate_fn=read_batch)

    def plain(self) -> None:
        """Measure programs without any loader, and the dataset without one."""
        with self.cold_mount():
            some = self.listed()[: self.files // SERIAL_SHARE]
            self.rate("serial loop over the mount, listed", len(some), lambda: read_batch(some))
        with self.cold_mount(), ThreadPoolExecutor(READERS) as pool:
            paths = self.listed()
            name = f"{READERS} threads over the mount, listed"
            self.rate(name, self.files, lambda: list(pool.map(read, paths)))
        with self.cold_mount():
            dataset = self.dataset()
            for epoch in (1, 2):
                self.rate(
                    f"UCVolumeDataset, epoch {epoch}",
                    self.files,
                    lambda: read_batch(dataset),
                )
            copies = [path for path in self.cache.glob("files/*/*") if path.is_file()]
            cached = sorted(str(path) for path in copies)
            self.rate("loop over the cached paths", len(cached), lambda: read_batch(cached))

    def hiding(self, workers: int) -> None:
        """Measure a loader alone, then how much of it a training loop sees that takes longer."""
        with self.cold_mount():
            loader: Any = self.loader(workers)
            began = time.perf_counter()
            drain(loader)
            batch_s = (time.perf_counter() - began) / -(-self.files // BATCH)
            name = f"DataLoader, {workers} workers"
            self.rates.setdefault(f"{name}, epoch 1", []).append(BATCH / batch_s)
            self.rate(f"{name}, epoch 2", self.files, lambda: drain(loader))
            loader = None  # its workers end before the next begin
        with self.cold_mount():
            share = wait_share(self.loader(workers), COMPUTE * batch_s)
            self.waits.setdefault(f"waited for data, {workers} workers", []).append(share)

    def two_epochs(self, name: str, work: Callable[[], object]) -> None:
        """Measure a contender; where it is not installed, say so."""
        with self.cold_mount():
            for epoch in (1, 2):
                try:
                    self.rate(f"{name}, epoch {epoch}", self.files, work)
                except ImportError as error:
                    print(f"left out: {name}: {error}", flush=True)
                    return

    def over_mount(self) -> None:
        """Read through torch's loader, which knows the paths from a listing."""
        files = FilesOfMount(self.listed())
        drain(TorchDataLoader(files, BATCH, num_workers=WORKERS, collate_fn=sum))

    def others(self) -> None:
        """Measure what one would use instead."""
        self.two_epochs("torch DataLoader over the mount", self.over_mount)
        self.two_epochs("litdata StreamingRawDataset", litdata_raw)
        # It leaves an index among the files, which the next round would count and read.
        self.client.delete_object(Bucket=peers.BUCKET, Key="small/index.json.zstd")
        self.two_epochs("s3torchconnector S3MapDataset", s3_connector)


def drain(loader: Iterable[object]) -> None:
    """Take every batch."""
    for _ in loader:
        pass


def wait_share(loader: DataLoader[Any], compute_s: float) -> float:
    """Return the share of time that the loop waited for its second and later batches."""
    waited, began = 0.0, 0.0
    for number, _ in enumerate(loader):
        if number == 0:
            waited, began = loader.stats()["wait_s"], time.perf_counter()
        time.sleep(compute_s)
    return (loader.stats()["wait_s"] - waited) / (time.perf_counter() - began)


def litdata_raw() -> None:
    from litdata import StreamingRawDataset  # type: ignore[import-not-found]
    from litdata.streaming import downloader  # type: ignore[import-not-found]

    # There is no option for a store without TLS.
    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = "true"
    files = StreamingRawDataset(
        f"s3://{peers.BUCKET}/small/",
        storage_options={"endpoint_url": os.environ["AWS_ENDPOINT_URL"]},
    )
    drain(TorchDataLoader(files, BATCH, num_workers=WORKERS, collate_fn=len))


def s3_connector() -> None:
    from s3torchconnector import S3MapDataset  # type: ignore[import-not-found]

    files = S3MapDataset.from_prefix(
        f"s3://{peers.BUCKET}/small/",
        region=os.environ["AWS_REGION"],
        endpoint=os.environ["AWS_ENDPOINT_URL"],
        transform=lambda reader: reader.read(),
    )
    drain(TorchDataLoader(files, BATCH, num_workers=WORKERS, collate_fn=len))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--latency", type=float, default=0, help="ms per request, and 90 MB/s")
    parser.add_argument("--files", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--others", action="store_true")
    parser.add_argument("--python", default=sys.executable, help="what runs the mount")
    return parser.parse_args()


def measure(options: argparse.Namespace, work: Path, started: list[Any]) -> Bench:
    """Run all rounds. Processes begun are added to `started`."""
    server, endpoint = peers.start_seaweedfs(work)
    started.append(server)
    client = peers.client(endpoint)
    peers.fill(client, 0, options.files)
    if options.latency:
        lag, endpoint = peers.start_lag(endpoint, options.latency)
        started.append(lag)
    os.environ["AWS_ENDPOINT_URL"] = endpoint
    bench = Bench(client, work, options.files, options.python)
    for _ in range(options.rounds):
        bench.plain()
        for workers in (0, WORKERS):
            bench.hiding(workers)
        if options.others:
            bench.others()
    return bench


def show(bench: Bench) -> None:
    """Print the table."""
    print("| what | files/s |\n|---|---|")
    for name, rates in bench.rates.items():
        print(f"| {name} | {statistics.median(rates):,.0f} |")
    for name, shares in bench.waits.items():
        print(f"| {name} | {statistics.median(shares):.1%} |")


def main() -> None:
    options = parse()
    os.environ.update(
        AWS_ACCESS_KEY_ID=peers.KEY,
        AWS_SECRET_ACCESS_KEY=peers.SECRET,
        AWS_REGION="us-east-1",
        AWS_DEFAULT_REGION="us-east-1",
    )
    work = Path(tempfile.mkdtemp(prefix="loader-"))
    started: list[Any] = []
    try:
        show(measure(options, work, started))
    finally:
        for process in reversed(started):
            # SeaweedFS takes half a minute to stop politely, and its data is thrown away.
            peers.stop(process, 1)
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
