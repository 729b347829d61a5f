#!/usr/bin/env python3
"""Copy many small objects to the local disk with `ucfuse cp -r`, and with AWS's C client alone.

    copy_objects.py [--files 15375] [--latency 0] [--requests 256] [--rounds 3] [--json FILE]

The bare client lists the prefix and has as many requests in flight, and writes each object to a
file of its name by itself (`recv_filepath`, no Python in between); it verifies nothing, and a file
that it was killed at stays there in part. Of both the whole process counts. Rounds are interleaved,
each into a fresh directory; medians are printed. At the end one more copy is killed half-way and
repeated: all files must be right, and those that were there must not be asked for again.
"""

import argparse
import hashlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import peers
from stand import store

FILE_BYTES = 150 * 1024
PREFIX = "tree/"


class Bare(peers.Direct):
    """The C client as it is used without any file system."""

    def copy_all(self, client, target, width):
        target.mkdir()
        slots, futures = threading.Semaphore(width), []
        for page in client.get_paginator("list_objects_v2").paginate(
            Bucket=peers.BUCKET, Prefix=PREFIX
        ):
            for entry in page["Contents"]:
                slots.acquire()
                path = target / entry["Key"].removeprefix(PREFIX)
                path.parent.mkdir(exist_ok=True)
                headers = self.http.HttpHeaders([("host", self.host)])
                request = self.http.HttpRequest(
                    "GET", f"/{peers.BUCKET}/{entry['Key']}", headers, None
                )
                future = self.client.make_request(
                    type=self.s3.S3RequestType.GET_OBJECT,
                    request=request,
                    recv_filepath=str(path),
                ).finished_future
                future.add_done_callback(lambda _: slots.release())
                futures.append(future)
        for future in futures:
            future.result()


def run_bare(endpoint, target, width):
    """Return the seconds that a process of the bare client takes."""
    script = (
        "import sys; from pathlib import Path; import copy_objects, peers\n"
        "bare = copy_objects.Bare(sys.argv[1])\n"
        "bare.copy_all(peers.client(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))"
    )
    began = time.monotonic()
    subprocess.run(
        [sys.executable, "-c", script, endpoint, target, str(width)], cwd=peers.HERE, check=True
    )
    return time.monotonic() - began


def command(endpoint, target, width):
    return [
        *(sys.executable, "-m", "ucfuse", "cp", "-r", "--endpoint-url", endpoint),
        *("--requests", str(width), f"s3://{peers.BUCKET}/{PREFIX}", str(target)),
    ]


def run_ours(endpoint, target, width):
    """Return the seconds that the command takes."""
    began = time.monotonic()
    subprocess.run(command(endpoint, target, width), check=True, capture_output=True)
    return time.monotonic() - began


def require_right(target, digests):
    found = {
        str(path.relative_to(target)): hashlib.md5(path.read_bytes()).hexdigest()
        for path in target.rglob("*")
        if path.is_file()
    }
    if found != digests:
        raise SystemExit(f"{len(found)} files, {len(digests)} expected, or other bytes")


def kill_and_repeat(endpoint, target, width, count):
    """Return how many files the second run copied, and how many the first had left."""
    with subprocess.Popen(command(endpoint, target, width), stdout=subprocess.PIPE) as first:
        while not target.is_dir() or sum(len(f) for _, _, f in os.walk(target)) < count // 2:
            time.sleep(0.01)
        first.send_signal(signal.SIGKILL)
    left = sum(len(files) for _, _, files in os.walk(target))
    done = subprocess.run(
        command(endpoint, target, width), check=True, capture_output=True, text=True
    )
    return int(done.stdout.split()[0]), count - left


def fill(client, count):
    """Put the objects; return the digest of each by name."""
    names = [f"{number % 25:02d}/{number:05d}.jpg" for number in range(count)]

    def put(name):
        body = os.urandom(FILE_BYTES)
        client.put_object(Bucket=peers.BUCKET, Key=PREFIX + name, Body=body)
        return name, hashlib.md5(body).hexdigest()

    with ThreadPoolExecutor(16) as pool:
        return dict(pool.map(put, names))


def main():
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--files", type=int, default=15_375)
    p.add_argument("--latency", type=float, default=0.0, metavar="MS")
    p.add_argument("--requests", type=int, default=256)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--endpoint")
    p.add_argument("--json", type=Path)
    a = p.parse_args()
    work = Path(tempfile.mkdtemp(prefix="copy-objects-"))
    runs = {"bare": run_bare, "ucfuse": run_ours}
    seconds = {name: [] for name in runs}
    try:
        with store(work, a.endpoint, a.latency) as (client, endpoint):
            digests = fill(client, a.files)
            for number in range(a.rounds):
                for name, run in runs.items():
                    target = work / f"{name}{number}"
                    seconds[name].append(run(endpoint, target, a.requests))
                    require_right(target, digests)
                    shutil.rmtree(target)
            target = work / "killed"
            copied, missing = kill_and_repeat(endpoint, target, a.requests, a.files)
            require_right(target, digests)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    medians = {name: statistics.median(told) for name, told in seconds.items()}
    for name, median in medians.items():
        print(f"{name:8} {median:7.2f} s {a.files / median:8,.0f} files/s  {seconds[name]}")
    ratio = medians["bare"] / medians["ucfuse"]
    print(f"ucfuse is {ratio:.2f} times as fast as the bare client")
    print(f"killed half-way and repeated: {copied} files copied, {missing} were missing")
    if a.json:
        a.json.write_text(json.dumps({**medians, "ratio": ratio}, indent=1))


if __name__ == "__main__":
    main()
