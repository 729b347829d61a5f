"""A program that writes until its file system fails: run as a script, by the crash tests.

Makes, changes, renames and removes files below a directory. Before each step that can answer
with success it logs, outside the mount, what it is about to be told; afterwards, that it was.
It imports nothing of ucfuse.
"""

import hashlib
import json
import math
import os
import random
import sys

CHUNK_BYTES = 1 << 20
LARGE_BYTES = 9_000_000
LARGEST_BYTES = 20_000_000
MAX_FILES = 4
STEPS = ("make", "make", "excl", "large", "rewrite", "append", "patch", "move")


class Writer:
    """One writer with its own names, which begin with `label`."""

    def __init__(self, root: str, log_path: str, label: str) -> None:
        self._root = root
        self._rng = random.Random(label)
        self._prefix = label.rpartition("-")[2]
        self._log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._contents: dict[str, bytes] = {}
        self._count = 0

    def run(self) -> None:
        """Go on until the file system fails."""
        try:
            while True:
                self._step()
        except OSError as error:
            self._say("ended", "", error=str(error))

    def _step(self) -> None:
        match self._rng.choice(STEPS):
            case "excl":
                self._make(100, os.O_EXCL)
            case "large":
                self._make(LARGE_BYTES, 0)
            case "rewrite" if self._contents:
                data = self._rng.randbytes(self._size(100))
                self._write(self._some_name(), os.O_TRUNC, 0, data, data)
            case "append" if self._contents:
                self._append(self._some_name())
            case "patch" if self._contents:
                self._patch(self._some_name())
            case "move" if self._contents:
                self._move(self._some_name())
            case _:
                self._make(100, 0)
        while len(self._contents) > MAX_FILES:
            self._remove(next(iter(self._contents)))

    def _make(self, least: int, flags: int) -> None:
        data = self._rng.randbytes(self._size(least))
        self._write(self._new_name(), os.O_CREAT | flags, 0, data, data)

    def _append(self, name: str) -> None:
        old, data = self._contents[name], self._rng.randbytes(self._rng.randrange(1, 1_000_000))
        self._write(name, os.O_APPEND, len(old), data, old + data)

    def _patch(self, name: str) -> None:
        old, data = self._contents[name], self._rng.randbytes(100)
        start = self._rng.randrange(len(old) - 99)
        self._write(name, 0, start, data, old[:start] + data + old[start + 100 :])

    def _move(self, name: str) -> None:
        to = self._new_name()
        self._say("renaming", name, to=to)
        os.rename(f"{self._root}/{name}", f"{self._root}/{to}")
        self._say("renamed", name, to=to)
        self._contents[to] = self._contents.pop(name)

    def _remove(self, name: str) -> None:
        self._say("removing", name)
        os.unlink(f"{self._root}/{name}")
        self._say("removed", name)
        del self._contents[name]

    def _write(self, name: str, flags: int, start: int, data: bytes, whole: bytes) -> None:
        """Write `data` at `start`, which makes the file `whole`; sometimes sync on the way."""
        fd = os.open(f"{self._root}/{name}", os.O_WRONLY | flags, 0o644)
        is_at_end = start + len(data) == len(whole)
        half = self._rng.randrange(len(data)) if is_at_end and self._rng.random() < 0.3 else 0
        if half:
            self._put(fd, data[:half], start)
            self._say("closing", name, whole[: start + half])
            os.fsync(fd)
            self._say("done", name, whole[: start + half])
        self._put(fd, data[half:], start + half)
        self._say("closing", name, whole)
        os.close(fd)
        self._say("done", name, whole)
        self._contents[name] = whole

    def _put(self, fd: int, data: bytes, offset: int) -> None:
        while data:
            done = os.pwrite(fd, data[:CHUNK_BYTES], offset)
            offset, data = offset + done, data[done:]

    def _new_name(self) -> str:
        self._count += 1
        return f"{self._prefix}-{self._count}"

    def _some_name(self) -> str:
        """Return a name that there is, a large one if it can be: these are changed in parts."""
        large = [name for name, data in self._contents.items() if len(data) >= LARGE_BYTES]
        return self._rng.choice(large or list(self._contents))

    def _size(self, least: int) -> int:
        return int(math.exp(self._rng.uniform(math.log(least), math.log(LARGEST_BYTES))))

    def _say(self, event: str, name: str, data: bytes | None = None, **more: str) -> None:
        if data is not None:
            more["md5"] = hashlib.md5(data).hexdigest()
        os.write(self._log, json.dumps({"event": event, "name": name, **more}).encode() + b"\n")


if __name__ == "__main__":
    Writer(*sys.argv[1:]).run()
