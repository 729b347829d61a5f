#!/usr/bin/env python3
"""Save and load a distributed checkpoint through a mount, beside torch's classes and bare files.

    checkpoints.py [--latency 20] [--mib 1024] [--rounds 3] [--threads N ...]

Per round, on a mount that was just made and with a cold page cache:

- load: `read big` is AWS's C client without a file system (the limit), `cat` reads the same bytes
  through the mount in order; then our reader and torch's load the same checkpoint.
- save: `write big` writes one file of as many bytes and closes it; then our writer and torch's.

Rounds are interleaved and medians printed; only a ratio within one run means something. Starts a
store of its own, with `--latency` behind s3lag.py (as many ms, and 90 MB/s per connection).
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
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import peers
import torch
import torch.distributed.checkpoint as dcp

from ucfuse.data import UCVolumeReader, UCVolumeWriter

MiB = 1 << 20
TENSORS = 64


def state(mib: int, seed: int) -> dict[str, torch.Tensor]:
    """Return equal tensors of so many MiB in all."""
    generator = torch.Generator().manual_seed(seed)
    shape = (mib * MiB // TENSORS // 4 // 1024, 1024)
    return {f"layer{n}": torch.rand(shape, generator=generator) for n in range(TENSORS)}


@contextlib.contextmanager
def mounted(work: Path) -> Iterator[Path]:
    """A fresh mount of the bucket; the page cache is empty."""
    root = work / "mnt"
    root.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "ucfuse", "mount", "--foreground"]
    with (work / "mount.log").open("a") as log:
        process = subprocess.Popen(
            [*command, f"--state-dir={work}/state", f"s3://{peers.BUCKET}", str(root)],
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    end = time.monotonic() + 30
    while not os.path.ismount(root):
        if process.poll() is not None or time.monotonic() > end:
            raise SystemExit((work / "mount.log").read_text()[-2000:])
        time.sleep(0.05)
    peers.drop_page_cache()
    try:
        yield root
    finally:
        process.terminate()
        process.wait(60)


def load(reader: object, like: dict[str, torch.Tensor]) -> Callable[[], None]:
    """Return what loads a checkpoint into fresh tensors, whose memory is there already."""
    target = {name: torch.ones_like(tensor) for name, tensor in like.items()}
    return lambda: dcp.load(target, storage_reader=reader, no_dist=True)  # type: ignore[arg-type]


def save(writer: object, saved: dict[str, torch.Tensor]) -> Callable[[], object]:
    return lambda: dcp.save(saved, storage_writer=writer, no_dist=True)  # type: ignore[arg-type]


def write_big(path: Path, mib: int, sync: bool) -> None:
    """Write one file of fresh bytes in pieces of 1 MiB."""
    block = os.urandom(MiB)
    with path.open("wb", buffering=0) as file:
        for _ in range(mib):
            file.write(block)
        if sync:
            os.fsync(file.fileno())


class Table:
    """Seconds of each row, in the order of the rows."""

    def __init__(self, mib: int) -> None:
        self._mib = mib
        self._rows: dict[str, list[float]] = {}

    def time(self, row: str, work: Callable[[], object]) -> None:
        began = time.perf_counter()
        work()
        self._rows.setdefault(row, []).append(time.perf_counter() - began)

    def show(self, limit: str, rows: str) -> None:
        rates = {row: self._mib / statistics.median(times) for row, times in self._rows.items()}
        for row, rate in rates.items():
            if row.startswith(rows):
                print(f"| {row} | {rate:.0f} MiB/s | {rate / rates[limit]:.2f} |", flush=True)


def loads(options: argparse.Namespace, work: Path, endpoint: str, table: Table) -> None:
    like = state(options.mib, 1)
    names = [path for path in options.stored if path.endswith(".distcp")]
    direct = peers.Direct(endpoint)
    table.time("load: read big, direct", lambda: [direct.read(f"c/{name}") for name in names])
    with mounted(work) as root:
        table.time("load: cat", lambda: [peers.read_file(root / "c" / name) for name in names])
    with mounted(work) as root:
        table.time("load: ours", load(UCVolumeReader(root / "c"), like))
    with mounted(work) as root:
        table.time("load: torch", load(dcp.FileSystemReader(root / "c"), like))


def saves(options: argparse.Namespace, work: Path, seed: int, table: Table) -> None:
    saved = state(options.mib, seed)
    with mounted(work) as root:
        table.time("save: write big", lambda: write_big(root / "big", options.mib, sync=False))
    for threads in options.threads:
        with mounted(work) as root:
            writer = UCVolumeWriter(root / f"ours{threads}-{seed}", thread_count=threads)
            table.time(f"save: ours, {threads} threads", save(writer, saved))
            shutil.rmtree(root / f"ours{threads}-{seed}")
    with mounted(work) as root:
        writer = dcp.FileSystemWriter(root / f"torch-{seed}")
        table.time("save: torch", save(writer, saved))
        shutil.rmtree(root / f"torch-{seed}")


def measure(options: argparse.Namespace, work: Path, started: list) -> None:  # type: ignore[type-arg]
    server, endpoint = peers.start_seaweedfs(work)
    started.append(server)
    peers.fill(peers.client(endpoint), 0, 0)
    if options.latency:
        lag, endpoint = peers.start_lag(endpoint, options.latency)
        started.append(lag)
    os.environ["AWS_ENDPOINT_URL"] = endpoint
    with mounted(work) as root:
        writer = UCVolumeWriter(root / "c")
        dcp.save(state(options.mib, 1), storage_writer=writer, no_dist=True)
        options.stored = os.listdir(root / "c")
    table = Table(options.mib)
    for number in range(options.rounds):
        if "load" in options.what:
            loads(options, work, endpoint, table)
        if "save" in options.what:
            saves(options, work, number, table)
    print("| what | rate | of the first |\n|---|---|---|")
    if "load" in options.what:
        table.show("load: read big, direct", "load")
    if "save" in options.what:
        table.show("save: write big", "save")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--latency", type=float, default=0)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, nargs="*", default=[1])
    parser.add_argument("--what", nargs="*", default=["load", "save"])
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    os.environ.update(
        AWS_ACCESS_KEY_ID=peers.KEY,
        AWS_SECRET_ACCESS_KEY=peers.SECRET,
        AWS_REGION="us-east-1",
        AWS_DEFAULT_REGION="us-east-1",
    )
    work = Path(tempfile.mkdtemp(prefix="bench-"))
    started: list = []  # type: ignore[type-arg]
    try:
        measure(options, work, started)
    finally:
        for process in reversed(started):
            peers.stop(process, 1)
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    main()
