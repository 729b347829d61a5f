"""Files to read, and checks of what was read."""

import contextlib
import os
import random
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

__all__ = ["Files", "as_rank", "names_of", "complete_copies", "make_files", "write_files"]


class Files(dict[str, bytes]):
    """Name and content of files; a failed test shows how many, not what is in them."""

    def __repr__(self) -> str:
        return f"<{len(self)} files>"


def make_files(count: int, size: int) -> Files:
    """Return name and content of files of about that size."""
    random_bytes = random.Random(count).randbytes
    return Files({f"f{number:04}.bin": random_bytes(size + number) for number in range(count)})


def write_files(directory: Path, count: int, size: int) -> Files:
    """Write files of about that size; return name and content of each."""
    files = make_files(count, size)
    for name, content in files.items():
        (directory / name).write_bytes(content)
    return files


def names_of(paths: Iterable[str]) -> list[str]:
    """Return the file names of paths, in their order."""
    return [os.path.basename(path) for path in paths]


def complete_copies(cache_dir: Path) -> Iterator[Path]:
    """Yield every published copy in a cache directory."""
    return (path for path in (cache_dir / "files").rglob("*") if path.is_file())


@contextlib.contextmanager
def as_rank(rank: int, world: int) -> Iterator[None]:
    """Be one rank of a job, as a launcher's environment tells."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANK", str(rank))
        patch.setenv("WORLD_SIZE", str(world))
        yield
