"""Checkpoints on mounts: the examples, and ranks that each have a mount of their own."""

import sys
from pathlib import Path

import pytest

from .harness import ROOT, MountVolume, Volume
from .programs import run

EXAMPLES = ROOT / "examples"
RANKS = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")


def python(*words: str | Path, deadline_s: int = 80) -> str:
    """Run Python as a user would, and return what it printed."""
    environment = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return run(sys.executable, *words, cwd=ROOT, deadline_s=deadline_s, environment=environment)


def test_example_of_torch_save(volume: Volume) -> None:
    assert "saved and loaded" in python(EXAMPLES / "checkpoint_torch_save.py", volume.path)

    assert volume.bucket.files() == {"ckpt.pt"}


def test_example_of_torch_save_in_ranks(volume: Volume) -> None:
    printed = python(*RANKS, EXAMPLES / "checkpoint_torchrun.py", volume.path / "c")

    assert "rank 0 loaded" in printed
    assert "rank 1 loaded" in printed


@pytest.mark.parametrize(
    "launcher",
    [pytest.param((), id="one process"), pytest.param(RANKS, id="ranks", marks=pytest.mark.long)],
)
def test_example_of_distributed_checkpoints(volume: Volume, launcher: tuple[str, ...]) -> None:
    printed = python(*launcher, EXAMPLES / "checkpoint_distributed.py", volume.path / "c")

    assert "saved, loaded, verified" in printed
    left = {name for name in volume.bucket.files() if name.endswith(".metadata")}
    assert left == {"c/step_20/.metadata", "c/step_30/.metadata"}
    assert not [name for name in volume.bucket.files() if name.endswith((".tmp", ".pruned"))]


def run_rounds(
    mount_volume: MountVolume, rounds: int, distributed_rounds: int, deadline_s: int
) -> None:
    mounts = [mount_volume(), mount_volume()]
    for mount in mounts:
        mount.watch_again(deadline_s)
    program = ("-m", "tests.data.checkpoint_programs", "both_rounds")
    counts = (str(rounds), str(distributed_rounds))
    python(*RANKS, *program, *(mount.path for mount in mounts), *counts, deadline_s=deadline_s)


def test_all_ranks_see_what_was_saved_through_another_mount(mount_volume: MountVolume) -> None:
    """Each rank has a mount of its own; nothing but a barrier is between save and load.

    First rank 0 saves for all; then both save their part of one checkpoint, again and again into
    the same directory.
    """
    run_rounds(mount_volume, 20, 5, 80)


@pytest.mark.long
@pytest.mark.timeout(800)
def test_all_ranks_always_see_what_was_saved_through_another_mount(
    mount_volume: MountVolume,
) -> None:
    run_rounds(mount_volume, 200, 50, 700)
