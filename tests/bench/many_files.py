#!/usr/bin/env python3
"""Copy many small files out of several mounts with the command that Databricks' page shows.

    many_files.py [--files 15375] [--latency 0] [--peer s3fs] [--peer rclone] [--rounds 1]

    find . -type f -print0 | xargs -0 -P 256 -I {} cp --parents "{}" TARGET/

15,375 files of 150 KiB, each copied by a process of its own, 256 at once: on a machine with few
cores the processes take a large part of the time, whatever mount they read. `local` does the same
from a local directory, which is that part. Everything is mounted anew for each round; the target is
on the local disk.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import peers
from stand import store

OURS = "exec ucfuse mount --foreground s3://{bucket} {dir}"
COMMAND = "find . -type f -print0 | xargs -0 -P 256 -I {} cp --parents '{}' "


def copy(source: Path, target: Path, count: int) -> float:
    """Return how many seconds the command takes."""
    target.mkdir()
    peers.drop_page_cache()
    began = time.monotonic()
    subprocess.run(COMMAND + f"'{target}/'", shell=True, check=True, cwd=source)
    seconds = time.monotonic() - began
    copied = [path for path in target.iterdir() if path.stat().st_size == peers.SMALL_BYTES]
    if len(copied) != count:
        raise SystemExit(f"{len(copied)} whole files of {count}")
    shutil.rmtree(target)
    return seconds


def measure(options: argparse.Namespace, work: Path) -> dict[str, list[float]]:
    commands = {"ours": OURS} | {name: peers.PEERS[name] for name in options.peer}
    seconds: dict[str, list[float]] = {name: [] for name in [*commands, "local"]}
    with store(work, options.endpoint, options.latency) as (client, endpoint):
        peers.fill(client, 1, options.files)
        client.delete_object(Bucket=peers.BUCKET, Key="big.bin")
        peers.configure_peers(work, endpoint)
        fields = {"bucket": peers.BUCKET, "endpoint": endpoint, "work": work}
        for _ in range(options.rounds):
            for name, command in commands.items():
                with peers.mounted(name, command, fields, work) as (root, _):
                    seconds[name].append(copy(root / "small", work / "copy", options.files))
                    print(f"  {name}: {seconds[name][-1]:.1f} s", flush=True)
    local = work / "local"
    local.mkdir()
    block = os.urandom(peers.SMALL_BYTES)
    for number in range(options.files):
        (local / f"{number:05d}.jpg").write_bytes(block)
    seconds["local"].append(copy(local, work / "copy", options.files))
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, default=15_375)
    parser.add_argument("--latency", type=float, default=0)
    parser.add_argument("--endpoint")
    parser.add_argument("--peer", action="append", default=[], choices=peers.PEERS)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ucfuse-bench-") as work:
        seconds = measure(options, Path(work))
    figures = {name: statistics.median(times) for name, times in seconds.items()}
    print("| mount | seconds | files/s |\n|---|---|---|")
    for name, median in figures.items():
        print(f"| {name} | {median:.1f} | {options.files / median:.0f} |")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
