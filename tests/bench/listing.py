#!/usr/bin/env python3
"""Measure how fast a huge directory is listed through a mount, and what its names cost in memory.

    listing.py [--objects 100000] [--json]

The volume is a memory store inside the daemon, so the figures are those of ucfuse and the kernel,
not of a store. Needs /dev/fuse. The program that lists is another process than the daemon.
"""

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

DIRECTORY = "data"


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--objects", type=int, default=100_000, metavar="N")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", metavar="DIR", help=argparse.SUPPRESS)
    return parser.parse_args()


def serve(mountpoint, count):
    """Be the daemon: mount a memory store with `count` empty objects, say so, serve."""
    import pyfuse3
    import trio

    from ucfuse.budget import MemoryBudget
    from ucfuse.config import MountConfig, Source
    from ucfuse.fs.filesystem import VolumeFilesystem
    from ucfuse.kernel import session
    from ucfuse.kernel.adapter import FuseOperations
    from ucfuse.kernel.descriptors import ProcDescriptors
    from ucfuse.metrics import Metrics
    from ucfuse.store.memory import MemoryStore
    from ucfuse.volume import Key

    async def main():
        config = MountConfig(
            source=Source(None),
            mountpoint=mountpoint,
            uid=os.getuid(),
            gid=os.getgid(),
            state_dir=mountpoint.parent / "state",
        )
        store, metrics = MemoryStore(), Metrics()
        for number in range(count):
            await store.put(Key(f"{DIRECTORY}/image-{number:08d}.jpg"), b"")
        budget, probe = MemoryBudget(config.memory_limit_bytes), ProcDescriptors(mountpoint)
        gc.freeze()  # as `ucfuse mount` does
        gc.set_threshold(50_000, 10, 10)
        async with VolumeFilesystem(config, store, budget, metrics, probe) as fs:
            session.attach(FuseOperations(fs, config, metrics), config, mountpoint)
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(session.serve)
                    await session.until_usable(mountpoint)
                    print("ready", flush=True)
                    await trio.to_thread.run_sync(sys.stdin.read)
                    pyfuse3.terminate()
            finally:
                session.detach()

    trio.run(main)


def high_water_bytes(pid):
    """Return the largest resident size that the process ever had."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise SystemExit("no VmHWM")


def measure(root, pid, count):
    before, start = high_water_bytes(pid), time.monotonic()
    with os.scandir(root / DIRECTORY) as entries:
        next(entries)
        first_s = time.monotonic() - start
        listed = 1 + sum(1 for _ in entries)
    list_s = time.monotonic() - start
    if listed != count:
        raise SystemExit(f"{listed} entries instead of {count}")
    grown = high_water_bytes(pid) - before
    start = time.monotonic()
    with os.scandir(root / DIRECTORY) as entries:
        stats = sum(1 for entry in entries if entry.stat())
    stat_s = time.monotonic() - start
    return {
        "objects": count,
        "entries_per_s": round(count / list_s),
        "first_entry_s": round(first_s, 4),
        "list_and_stat_per_s": round(stats / stat_s),
        "bytes_per_entry": round(grown / count),
        "grown_MiB": round(grown / (1 << 20), 1),
    }


def main():
    options = parse()
    if options.serve:
        serve(Path(options.serve), options.objects)
        return
    with tempfile.TemporaryDirectory() as work:
        root = Path(work) / "mnt"
        root.mkdir()
        daemon = subprocess.Popen(
            [sys.executable, __file__, "--serve", root, "--objects", str(options.objects)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        try:
            if daemon.stdout.readline() != b"ready\n":
                raise SystemExit("the daemon did not start")
            result = measure(root, daemon.pid, options.objects)
        finally:
            daemon.stdin.close()
            daemon.wait(120)
    if options.json:
        print(json.dumps(result))
    else:
        print("\n".join(f"{name:22} {value:,}" for name, value in result.items()))


if __name__ == "__main__":
    main()
