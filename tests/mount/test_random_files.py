"""Random operations on a file of a mount and on a plain file: never a difference."""

import mmap
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest

from .harness import MountVolume

MIB = 1 << 20


@dataclass
class Twin:
    """One file twice: on the mount, and on the local disk."""

    paths: list[Path]
    rng: Random
    max_bytes: int
    fds: list[int] = field(default_factory=list)

    def open(self) -> None:
        self.fds = [os.open(path, os.O_RDWR | os.O_CREAT, 0o644) for path in self.paths]

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)

    @property
    def size(self) -> int:
        return os.fstat(self.fds[1]).st_size

    def both(self, work: Callable[[int], object]) -> None:
        results = [work(fd) for fd in self.fds]
        assert results[0] == results[1]

    def some_range(self, limit: int) -> tuple[int, int]:
        start = self.rng.randrange(limit + 1)
        length = min(self.rng.choice((1, 100, 4096, 65537, 300_000)), limit - start)
        return start, length

    def block(self, length: int) -> bytes:
        return self.rng.randbytes(min(length, 4096)) * (length // 4096 + 1)

    # --- operations --------------------------------------------------------------------------

    def write(self) -> None:
        start, length = self.some_range(self.max_bytes)
        data = self.block(length)[:length]
        self.both(lambda fd: os.pwrite(fd, data, start))

    def append(self) -> None:
        if self.size > self.max_bytes:
            return
        data = self.block(5000)[: self.rng.randrange(5000)]
        for path in self.paths:
            with path.open("ab") as file:
                file.write(data)

    def read(self) -> None:
        start, length = self.some_range(self.size + 10)
        self.both(lambda fd: os.pread(fd, length, start))

    def truncate(self) -> None:
        size = self.rng.randrange(self.max_bytes)
        self.both(lambda fd: os.ftruncate(fd, size))

    def truncate_by_path(self) -> None:
        size = self.rng.randrange(self.max_bytes)
        for path in self.paths:
            os.truncate(path, size)

    def map_and_change(self) -> None:
        size = self.size
        if not size:
            return
        start, length = self.some_range(size)
        data = self.block(length)[:length]

        def change(fd: int) -> bytes:
            with mmap.mmap(fd, size) as mapped:
                mapped[start : start + length] = data
                mapped.flush()
                return mapped[: min(size, 1000)]

        self.both(change)

    def reopen(self) -> None:
        self.close()
        self.open()

    def rename(self) -> None:
        for index, path in enumerate(self.paths):
            new = path.with_name("other" if path.name == "file" else "file")
            os.rename(path, new)
            self.paths[index] = new

    def fsync(self) -> None:
        self.both(os.fsync)

    def compare(self) -> None:
        self.both(lambda fd: os.fstat(fd).st_size)
        assert self.paths[0].read_bytes() == self.paths[1].read_bytes()


# How often each comes, in 100.
CHANCES = {
    "write": 32, "read": 32, "append": 8, "truncate": 6, "truncate_by_path": 2,
    "map_and_change": 8, "reopen": 4, "rename": 2, "fsync": 4, "compare": 2,
}  # fmt: skip


def play(twin: Twin, count: int) -> None:
    twin.open()
    names, weights = list(CHANCES), list(CHANCES.values())
    for name in twin.rng.choices(names, weights, k=count):
        getattr(twin, name)()
    twin.compare()
    twin.close()
    twin.open()
    twin.compare()
    twin.close()


@pytest.mark.promise("P14")
@pytest.mark.parametrize(
    ("count", "seed"),
    [
        (5_000, 1),
        pytest.param(100_000, 2, marks=[pytest.mark.long, pytest.mark.timeout(1800)]),
    ],
)
def test_a_small_file_equals_its_twin(
    mount_volume: MountVolume, tmp_path: Path, count: int, seed: int
) -> None:
    mount = mount_volume(memory=True)
    mount.watch_again(seconds=1800)
    play(Twin([mount.path / "file", tmp_path / "file"], Random(seed), 600_000), count)


@pytest.mark.promise("P14")
@pytest.mark.parametrize(
    "count", [150, pytest.param(3_000, marks=[pytest.mark.long, pytest.mark.timeout(900)])]
)
def test_a_large_file_equals_its_twin(
    mount_volume: MountVolume, tmp_path: Path, count: int
) -> None:
    """Parts, copied parts, and small files in turn."""
    mount = mount_volume()
    mount.watch_again(seconds=900)
    play(Twin([mount.path / "file", tmp_path / "file"], Random(3), 24 * MIB), count)
