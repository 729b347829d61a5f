#!/usr/bin/env python3
"""Copy a directory of small files with a serial `cp -r`, with and without `--freshness`.

    copy_tree.py [--files 500] [--latency 20] [--freshness 1s] [--rounds 3] [--json FILE]

500 files of 150 KiB in a store that answers after 20 ms (s3lag.py). Each round mounts anew for each
setting, in turn; medians are printed. With `--freshness 0s` each open waits for its own request;
with more, the daemon sees that files are opened in order and fetches the next ones ahead.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import peers
from stand import mounted, store

FILE_BYTES = 150 * 1024


def copy_once(work: Path, endpoint: str, freshness: str, count: int) -> float:
    """Return how many seconds `cp -r` takes on a fresh mount."""
    target = work / "copy"
    with mounted(work, endpoint, "--freshness", freshness) as (root, _):
        start = time.monotonic()
        subprocess.run(["cp", "-r", root / "tree", target], check=True)
        seconds = time.monotonic() - start
    sizes = [entry.stat().st_size for entry in os.scandir(target)]
    shutil.rmtree(target)
    if sizes != [FILE_BYTES] * count:
        raise SystemExit(f"copied {len(sizes)} files, {sum(sizes)} bytes")
    return seconds


def main() -> None:
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--files", type=int, default=500)
    p.add_argument("--latency", type=float, default=20.0, metavar="MS")
    p.add_argument("--freshness", default="1s")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--endpoint")
    p.add_argument("--json", type=Path)
    a = p.parse_args()
    work = Path(tempfile.mkdtemp(prefix="copy-tree-"))
    seconds: dict[str, list[float]] = {"0s": [], a.freshness: []}
    try:
        with store(work, a.endpoint, a.latency) as (client, endpoint):
            body = os.urandom(FILE_BYTES)
            with ThreadPoolExecutor(16) as pool:
                names = [f"tree/{number:05d}.jpg" for number in range(a.files)]
                put = client.put_object
                list(pool.map(lambda k: put(Bucket=peers.BUCKET, Key=k, Body=body), names))
            for _ in range(a.rounds):
                for freshness, told in seconds.items():
                    told.append(copy_once(work, endpoint, freshness, a.files))
    finally:
        shutil.rmtree(work, ignore_errors=True)
    medians = {freshness: statistics.median(told) for freshness, told in seconds.items()}
    for freshness, median in medians.items():
        print(f"--freshness {freshness:5} {median:7.2f} s {a.files / median:8,.0f} files/s")
    print(f"{medians['0s'] / medians[a.freshness]:.1f} times as fast")
    if a.json:
        a.json.write_text(json.dumps(medians, indent=1))


if __name__ == "__main__":
    main()
