#!/usr/bin/env python3
"""Write and read one large file through a mount, and compare rate and memory with a smaller one.

    large_file.py [--gib 10] [--small-gib 1] [--latency 0] [--json FILE]

It starts SeaweedFS, whose data and the mount's staging need three times the file on disk, and
mounts anew for each step. Rates count from the first byte to the end of `close`; memory is the most
that the daemon ever had (VmHWM). The bytes that are read are compared with those that were written.
`direct` is AWS's C client without a file system: it sends a local file, and reads the same object.
Compare it with itself: what it loses by size, the store or this machine's memory costs.
"""

import argparse
import hashlib
import json
import os
import random
import tempfile
import time
from pathlib import Path

import peers
from stand import daemon_peak_bytes, mounted, store

MiB = 1 << 20
GiB = 1 << 30
# Blocks that repeat with a period that no part size divides: a part in the wrong place shows.
BLOCK_COUNT = 61


def blocks(count: int) -> list[bytes]:
    chance = random.Random(count)
    return [chance.randbytes(MiB) for _ in range(BLOCK_COUNT)]


def write(path: Path, size_gib: int, data: list[bytes]) -> float:
    began = time.monotonic()
    with path.open("wb", buffering=0) as file:
        for index in range(size_gib * GiB // MiB):
            file.write(data[index % BLOCK_COUNT])
    return size_gib * 1024 / (time.monotonic() - began)


def read(path: Path, size_gib: int, data: list[bytes]) -> float:
    """Return MiB/s, without the time that comparing takes."""
    expected = [hashlib.blake2b(block).digest() for block in data]
    buffer, seconds = bytearray(MiB), 0.0
    with path.open("rb", buffering=0) as file:
        for index in range(size_gib * GiB // MiB):
            began, filled = time.monotonic(), 0
            while filled < MiB:
                filled += file.readinto(memoryview(buffer)[filled:]) or _ended(index)
            seconds += time.monotonic() - began
            if hashlib.blake2b(buffer).digest() != expected[index % BLOCK_COUNT]:
                raise SystemExit(f"MiB {index} is wrong")
    return size_gib * 1024 / seconds


def read_directly(endpoint: str, key: str, size_gib: int) -> float:
    direct, began = peers.Direct(endpoint), time.monotonic()
    if direct.read(key) != size_gib * GiB:
        raise SystemExit(f"{key} came in part")
    return size_gib * 1024 / (time.monotonic() - began)


def write_directly(endpoint: str, key: str, size_gib: int, data: list[bytes], work: Path) -> float:
    path = work / "local.bin"
    write(path, size_gib, data)
    cool_down()
    try:
        began = time.monotonic()
        peers.Direct(endpoint).write(key, path)
        return size_gib * 1024 / (time.monotonic() - began)
    finally:
        path.unlink()


def cool_down() -> None:
    """Bring to the disk what the step before left to write, and forget it."""
    os.sync()
    peers.drop_page_cache()


def _ended(index: int) -> int:
    raise SystemExit(f"the file ends in MiB {index}")


def measure(options: argparse.Namespace, work: Path) -> dict[str, dict[str, float]]:
    figures: dict[str, dict[str, float]] = {}
    with store(work, options.endpoint, options.latency) as (client, endpoint):
        for size_gib in (options.small_gib, options.gib):
            data, key = blocks(size_gib), f"{size_gib}.bin"
            for step in (write, read):
                cool_down()
                with mounted(work, endpoint) as (root, pid):
                    rate = step(root / key, size_gib, data)
                    peak = daemon_peak_bytes(pid)
                name = f"{step.__name__} {size_gib} GiB"
                figures[name] = {"mib_per_s": rate, "peak_mib": peak / MiB}
                print(f"| {name} | {rate:.0f} MiB/s | {peak / MiB:.0f} MiB |", flush=True)
            rates = {}
            cool_down()
            rates["direct read"] = read_directly(endpoint, key, size_gib)
            client.delete_object(Bucket=peers.BUCKET, Key=key)
            rates["direct write"] = write_directly(endpoint, key, size_gib, data, work)
            for name, rate in rates.items():
                figures[f"{name} {size_gib} GiB"] = {"mib_per_s": rate}
                print(f"| {name} {size_gib} GiB | {rate:.0f} MiB/s | |", flush=True)
            client.delete_object(Bucket=peers.BUCKET, Key=key)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gib", type=int, default=10)
    parser.add_argument("--small-gib", type=int, default=1)
    parser.add_argument("--latency", type=float, default=0)
    parser.add_argument("--endpoint")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ucfuse-bench-") as work:
        figures = measure(options, Path(work))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
