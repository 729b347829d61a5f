"""Real jobs of several processes: each file once, however they are started, wherever they read."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .files import Files
from .programs import EPOCHS

ROOT = Path(__file__).parents[2]
PROGRAM = ("-m", "tests.data.programs")
JOB_DEADLINE_S = 170

Place = tuple[Path, Files]


def start(*command: str, **environment: str) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.Popen(
        [sys.executable, *command], env={**os.environ, "PYTHONPATH": path, **environment}
    )


def run_ranks(world: int, *arguments: str) -> None:
    ranks = [
        start(*PROGRAM, *arguments, RANK=str(rank), WORLD_SIZE=str(world)) for rank in range(world)
    ]
    for rank in ranks:
        rank.wait(JOB_DEADLINE_S)
    assert [rank.returncode for rank in ranks] == [0] * world


def assert_exactly_once(out: Path, files: Files) -> None:
    ranks = [json.loads(path.read_text()) for path in out.iterdir()]
    for grid in ranks[0]:
        for epoch in range(EPOCHS):
            received = [name for rank in ranks for name in rank[grid][epoch]]
            assert sorted(received) == sorted(files), (grid, epoch)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Where the ranks leave what they received."""
    path = tmp_path / "out"
    path.mkdir()
    return path


@pytest.mark.parametrize("world", [1, 2])
def test_each_file_comes_once_per_epoch(
    place: Place, cache_dir: Path, out: Path, world: int
) -> None:
    directory, files = place
    grids = ["0", "2:fork", "2:spawn"]
    run_ranks(world, "exactly-once", str(directory), str(cache_dir), str(out), *grids)
    assert_exactly_once(out, files)


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_each_file_comes_once_per_epoch_on_every_grid(
    place: Place, cache_dir: Path, out: Path, world: int, method: str
) -> None:
    directory, files = place
    grids = ["0", *(f"{workers}:{method}" for workers in (1, 4))]
    run_ranks(world, "exactly-once", str(directory), str(cache_dir), str(out), *grids)
    assert_exactly_once(out, files)


# On a mount in every run, on a local disk in a long one.
@pytest.mark.parametrize(
    "place", [pytest.param("local", marks=pytest.mark.long), "mount"], indirect=True
)
def test_spawned_workers_know_the_rank_of_their_process_group(
    place: Place, cache_dir: Path, out: Path
) -> None:
    directory, files = place
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    job = start(*torchrun, *PROGRAM, "distributed", str(directory), str(cache_dir), str(out))
    assert job.wait(JOB_DEADLINE_S) == 0
    assert len(list(out.iterdir())) == 2
    assert_exactly_once(out, files)
