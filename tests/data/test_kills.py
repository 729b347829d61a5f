"""kill -9 of a worker or of the whole job at random points: the next run is right by itself."""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO

import pytest

from tests.mount.programs import eventually
from ucfuse.data import UCVolumeDataset

from .files import Files, complete_copies, write_files
from .programs import READ_WORKERS
from .test_processes import PROGRAM, ROOT

# Five kills in every run, fifty in a long one.
KILLS = [pytest.param(n, marks=[pytest.mark.long] if n >= 5 else []) for n in range(50)]
FILES = 24


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Files]:
    """Files of some megabytes, so that there is a middle of the copying to be killed in."""
    directory = tmp_path_factory.mktemp("large")
    return directory, write_files(directory, FILES, 3_000_000)


@contextmanager
def reading(volume: Path, *arguments: str, **environment: str) -> Iterator[tuple[Path, list[int]]]:
    """Run the job that reads; its cache and the pids of all its processes, its own first."""
    job = subprocess.Popen(
        [sys.executable, *PROGRAM, "read", str(volume), *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    workers: list[int] = []
    try:
        cache = Path(next(lines_of(job)).strip())
        workers = [int(pid) for pid in next(lines_of(job)).split()]
        assert len(workers) == READ_WORKERS
        yield cache, [job.pid, *workers]
    finally:
        # Workers outlive their job for some seconds, and go on copying.
        for pid in workers:
            kill_quietly(pid)
        job.kill()
        job.communicate(timeout=60)
        for pid in workers:  # until then they hold what they had locked
            eventually(f"the end of {pid}", partial(has_ended, pid))


def lines_of(job: subprocess.Popen[str]) -> IO[str]:
    assert job.stdout is not None
    return job.stdout


def has_ended(pid: int) -> bool:
    """Whether the process is gone, or only its exit code is left."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return status.rpartition(")")[2].split()[0] == "Z"


def kill_quietly(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def assert_right(volume: Path, cache_dir: Path, limit: int | None, files: Files) -> None:
    """Read all of the volume: every file comes once, whole, and nothing partial has a name."""
    for copy in complete_copies(cache_dir):
        try:
            content = copy.read_bytes()
        except FileNotFoundError:  # evicted by a worker that outlived its job
            continue
        assert content == files[copy.name]
    received = {}
    for path in UCVolumeDataset(volume, cache_dir=cache_dir, cache_bytes=limit):
        received[os.path.basename(path)] = Path(path).read_bytes()
    assert received == files


@pytest.mark.parametrize("number", KILLS)
def test_after_kill_9_the_next_run_is_right(
    large: tuple[Path, Files], cache_dir: Path, number: int
) -> None:
    """Nothing partial is visible and there is nothing to clean, also while orphans go on."""
    volume, files = large
    chance = random.Random(number)
    limit = None if number % 4 < 2 else 10 * 3_100_000
    # With a limit the cache may at no time hold as many as would just fit.
    copies, victim = chance.randrange(FILES if limit is None else 5), number % 2
    with reading(volume, str(cache_dir), str(limit or "")) as (_, pids):
        eventually(f"{copies} copies", lambda: len(list(complete_copies(cache_dir))) >= copies, 30)
        os.kill(pids[victim], signal.SIGKILL)
        assert_right(volume, cache_dir, limit, files)
    assert_right(volume, cache_dir, limit, files)
    # Our own dataset may still be ending: it was fetching ahead for its next pass.
    partials = (cache_dir / "partial").rglob
    eventually("no partial file", lambda: not [path for path in partials("*") if path.is_file()])


def test_the_private_cache_of_a_killed_job_is_removed_by_the_next(
    volume_dir: Path, tmp_path: Path, files: Files
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    with reading(volume_dir, TMPDIR=str(temporary)) as (left, pids):
        eventually("a copy", lambda: any(complete_copies(left)))
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
    assert left.exists()

    done = subprocess.run(
        [sys.executable, *PROGRAM, "read", str(volume_dir)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    own, _, *names = done.stdout.splitlines()
    assert sorted(names) == sorted(files)
    assert [Path(own).exists(), left.exists()] == [False, False]
    assert list(temporary.glob("ucfuse-data-*/*")) == []
