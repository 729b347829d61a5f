#!/usr/bin/env python3
"""What storing bytes in the kernel's page cache unasked (`notify_store`) is worth, store left out.

    page_cache.py [--big 2048] [--files 4000] [--rounds 3] [--json FILE]

A file system whose bytes lie in its own memory, so that the daemon is the limit, serves one large
file and many small ones: by READ requests, and by pushing. Of the large file two worker threads
push parts of 8 MiB from the open on; each small file is pushed while its open is answered. Printed
per row: rate, READ requests, and seconds of CPU of the daemon; medians of interleaved rounds.
"""

import argparse
import errno
import json
import os
import stat
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import peers
import pyfuse3
import trio

MiB = 1 << 20
PART = 8 * MiB
BLOCK = memoryview(os.urandom(MiB) * 9)  # any 8 MiB of any offset lie in it, in one piece
SMALL = 150 * 1024
BIG, FIRST_SMALL = 2, 1000
READERS = 16


class Bytes(pyfuse3.Operations):
    """One large file and any number of small ones. `pushes`: gives bytes before they are asked."""

    def __init__(self, big: int, *, pushes: bool) -> None:
        super().__init__()
        self.big, self.pushes, self.reads = big, pushes, 0

    def _attributes(self, inode: int) -> pyfuse3.EntryAttributes:
        entry = pyfuse3.EntryAttributes()
        entry.st_ino = inode
        is_root = inode == pyfuse3.ROOT_INODE
        entry.st_mode = stat.S_IFDIR | 0o755 if is_root else stat.S_IFREG | 0o644
        entry.st_size = self.big if inode == BIG else SMALL
        entry.entry_timeout = entry.attr_timeout = 60
        return entry

    async def lookup(self, parent, name, ctx):
        return self._attributes(BIG if name == b"big" else FIRST_SMALL + int(name))

    async def getattr(self, inode, ctx):
        return self._attributes(inode)

    async def getxattr(self, inode, name, ctx):
        if name == b"user.reads":
            return b"%d" % self.reads
        raise pyfuse3.FUSEError(errno.ENODATA)

    async def open(self, inode, flags, ctx):
        if self.pushes and inode == BIG:
            for turn in range(2):
                threading.Thread(target=self._push_parts, args=(turn,), daemon=True).start()
        elif self.pushes:
            pyfuse3.notify_store(inode, 0, BLOCK[:SMALL])
        return pyfuse3.FileInfo(fh=inode, keep_cache=True)

    def _push_parts(self, turn: int) -> None:
        with suppress(OSError):  # the file was closed and forgotten
            for start in range(turn * PART, self.big, 2 * PART):
                pyfuse3.notify_store(BIG, start, BLOCK[: min(PART, self.big - start)])

    async def read(self, fh, off, size):
        self.reads += 1
        stop = min(off + size, self.big if fh == BIG else SMALL)
        first = off % MiB if fh == BIG else off
        return BLOCK[first : first + stop - off]


def serve(root: str, big: int, pushes: bool) -> None:
    """Run the file system until it is unmounted."""
    pyfuse3.init(Bytes(big, pushes=pushes), root, {"fsname=page-cache"})
    trio.run(pyfuse3.main)


def read_files(root: Path, numbers: Sequence[int]) -> None:
    with ThreadPoolExecutor(READERS) as pool:
        got = sum(pool.map(lambda number: peers.read_file(root / str(number)), numbers))
    if got != len(numbers) * SMALL:
        raise SystemExit(f"read {got} bytes")


def tune(root: Path) -> None:
    """Let the kernel read 1 MiB at a time, as ucfuse does."""
    device = os.stat(root).st_dev
    path = Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb")
    path.write_text("1024")


def measure(root: Path, big: int, count: int, pushes: bool) -> dict[str, tuple[float, int, float]]:
    """Return rate, READs and CPU of each row on a fresh mount."""
    arguments = [sys.executable, __file__, "--serve", str(root), "--big", str(big // MiB)]
    process = subprocess.Popen([*arguments, *(["--push"] if pushes else [])])
    rows: dict[str, tuple[float, int, float]] = {}
    work: list[tuple[str, int, Callable[[], object]]] = [
        ("large file (MiB/s)", big // MiB, lambda: peers.read_file(root / "big")),
        ("150 KiB files (files/s)", count, lambda: read_files(root, range(count))),
    ]
    try:
        while not os.path.ismount(root):
            time.sleep(0.02)
        tune(root)
        for title, quantity, function in work:
            reads, cpu = int(os.getxattr(root, "user.reads")), peers.cpu_seconds(process.pid)
            start = time.monotonic()
            function()
            seconds = time.monotonic() - start
            reads = int(os.getxattr(root, "user.reads")) - reads
            rows[title] = (quantity / seconds, reads, peers.cpu_seconds(process.pid) - cpu)
    finally:
        subprocess.run(["umount", "-l", root], check=False)
        process.wait(10)
    return rows


def main() -> None:
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--big", type=int, default=2048, metavar="MIB")
    p.add_argument("--files", type=int, default=4000)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--json", type=Path)
    p.add_argument("--serve", help=argparse.SUPPRESS)
    p.add_argument("--push", action="store_true", help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.serve:
        serve(a.serve, a.big * MiB, a.push)
        return
    found: dict[str, dict[str, list[tuple[float, int, float]]]] = {}
    with tempfile.TemporaryDirectory(prefix="page-cache-") as work:
        for _ in range(a.rounds):
            for name, pushes in (("READs", False), ("pushed", True)):
                for title, row in measure(Path(work), a.big * MiB, a.files, pushes).items():
                    found.setdefault(title, {}).setdefault(name, []).append(row)
    table = {
        title: {
            name: [statistics.median(values) for values in zip(*rows, strict=True)]
            for name, rows in ways.items()
        }
        for title, ways in found.items()
    }
    for title, ways in table.items():
        for name, (rate, reads, cpu) in ways.items():
            print(f"{title:26} {name:7} {rate:10,.0f} {reads:8,.0f} READs {cpu:6.2f} s CPU")
    if a.json:
        a.json.write_text(json.dumps(table, indent=1))


if __name__ == "__main__":
    main()
