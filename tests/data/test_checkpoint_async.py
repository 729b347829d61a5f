"""Async saves: the training's tensors are free at once, and no failure is lost."""

from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from tests.mount.programs import eventually
from ucfuse.data import UCVolumeWriter, latest_complete, verify
from ucfuse.data.checkpoint import SaveFailed, saves

from .checkpoints import equal, load, small_state
from .forking import Forks, forks

__all__ = ["forks"]

pytestmark = pytest.mark.filterwarnings("ignore")


class Slow(DefaultSavePlanner):
    """Waits with the first byte until it is let go, as a slow store would."""

    def __init__(self) -> None:
        super().__init__()
        self.go = Event()

    def resolve_data(self, write_item: Any) -> Any:
        assert self.go.wait(30)
        return super().resolve_data(write_item)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where no directory can be made."""
    path = tmp_path / "file"
    path.touch()
    return path


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """No test leaves a failure for the next one."""
    yield
    saves.wait()
    assert saves.take_failure() is None


def begin(path: Path, seed: int = 1, **options: Any) -> Future[Any]:
    """Begin an async save."""
    future: Future[Any] = dcp.async_save(
        small_state(seed), storage_writer=UCVolumeWriter(path), **options
    )
    return future


def test_what_is_saved_is_the_state_when_the_save_began(tmp_path: Path) -> None:
    """CPU tensors are copied before `async_save` returns; the training may change them."""
    state = small_state(1)
    planner = Slow()
    future = dcp.async_save(state, storage_writer=UCVolumeWriter(tmp_path), planner=planner)
    for tensor in state["model"].values():
        tensor.fill_(9)
    state["step"] = 99
    planner.go.set()
    future.result()

    assert equal(load(small_state(1), tmp_path), small_state(1))


def test_a_load_waits_for_the_save_that_runs(tmp_path: Path) -> None:
    """The documentation saves, drops the future, and loads."""
    begin(tmp_path)

    assert equal(load(small_state(1), tmp_path), small_state(1))


def test_saves_that_overlap_wait_for_each_other(tmp_path: Path) -> None:
    planner = Slow()
    first = begin(tmp_path, 1, planner=planner)
    first.add_done_callback(lambda _: order.append("first"))
    order: list[str] = []
    planner.go.set()

    begin(tmp_path, 2).result()
    order.append("second")

    assert order == ["first", "second"]
    assert equal(load(small_state(2), tmp_path), small_state(2))


def test_a_failure_that_nobody_asked_for_is_raised_by_the_next_async_save(
    tmp_path: Path, file: Path
) -> None:
    begin(file / "c")

    with pytest.raises(SaveFailed, match=r"rank 0: NotADirectoryError.*file/c"):
        begin(tmp_path / "c")

    begin(tmp_path / "c").result()
    verify(tmp_path / "c")


def test_the_newest_checkpoint_is_the_one_whose_save_has_just_begun(tmp_path: Path) -> None:
    for step in range(1, 4):
        begin(tmp_path / "root" / f"step_{step}")

        assert latest_complete(tmp_path / "root") == str(tmp_path / "root" / f"step_{step}")


def test_a_failure_that_nobody_asked_for_is_raised_by_the_next_save(
    tmp_path: Path, file: Path
) -> None:
    begin(file / "c")

    with pytest.raises(CheckpointException, match="NotADirectoryError"):
        dcp.save(small_state(1), storage_writer=UCVolumeWriter(tmp_path / "c"), no_dist=True)

    assert latest_complete(tmp_path) is None


def test_a_failure_that_nobody_asked_for_is_raised_by_the_next_load(
    tmp_path: Path, file: Path
) -> None:
    """Else the training would go on from an older checkpoint without a word."""
    begin(tmp_path / "c").result()
    begin(file / "c")

    with pytest.raises(CheckpointException, match="NotADirectoryError"):
        load(small_state(1), tmp_path / "c")

    assert equal(load(small_state(1), tmp_path / "c"), small_state(1))


def test_a_failure_is_raised_too_where_the_program_stages_by_itself(
    tmp_path: Path, file: Path
) -> None:
    begin(file / "c", async_stager=DefaultStager(StagingOptions(False, False, False, False)))

    # Not known before its thread has begun, but then.
    eventually("the end of the save", lambda: saves._failed)
    with pytest.raises(SaveFailed, match="NotADirectoryError"):
        begin(tmp_path / "c")


def test_a_failure_that_was_asked_for_is_not_raised_again(tmp_path: Path, file: Path) -> None:
    future = begin(file / "c")
    with pytest.raises(CheckpointException):
        future.result()

    begin(tmp_path / "c").result()
    verify(tmp_path / "c")


def test_cached_staging_is_not_overwritten_while_it_is_saved(tmp_path: Path) -> None:
    """One writer, its staging memory used again: the second save waits before it copies."""
    # Pinned memory needs an accelerator; the order is the same without.
    cached = torch.accelerator.is_available()
    writer = UCVolumeWriter(tmp_path, cache_staged_state_dict=cached)
    for seed in (1, 2, 3):
        dcp.async_save(
            small_state(seed), storage_writer=writer, checkpoint_id=str(tmp_path / str(seed))
        )
    saves.wait()

    for seed in (1, 2, 3):
        assert equal(load(small_state(seed), tmp_path / str(seed)), small_state(seed))


@pytest.mark.parametrize("kind", ["THREAD", "PROCESS"])
def test_a_program_that_ends_at_once_has_saved(forks: Forks, tmp_path: Path, kind: str) -> None:
    printed = forks.run("dropped", tmp_path / "c", kind, expect=0)

    assert "the training went on" in printed
    assert "ucfuse:" not in printed
    assert equal(load(small_state(1), tmp_path / "c"), small_state(1))


@pytest.mark.parametrize("kind", ["THREAD", "PROCESS"])
def test_a_program_whose_save_failed_unheard_does_not_end_well(
    forks: Forks, file: Path, kind: str
) -> None:
    printed = forks.run("dropped", file / "c", kind, expect=120)

    assert "the training went on" in printed
    assert f"ucfuse: the async save to {file}/c failed: rank 0: NotADirectoryError" in printed


def test_a_program_that_knows_of_the_failure_ends_as_it_likes(forks: Forks, file: Path) -> None:
    assert "CheckpointException" in forks.run("handled", file / "c", expect=0)


def measure_memory(forks: Forks, path: Path, count: int) -> None:
    printed = forks.run("memory", path, str(count), expect=0).split()
    after_fifth = [int(kib) for kib in printed[4:]]
    assert len(after_fifth) == count - 4
    assert max(after_fifth) <= 1.05 * after_fifth[0], after_fifth


def test_memory_does_not_grow_with_async_saves(forks: Forks, tmp_path: Path) -> None:
    measure_memory(forks, tmp_path, 12)


@pytest.mark.long
def test_memory_does_not_grow_with_fifty_async_saves(forks: Forks, tmp_path: Path) -> None:
    measure_memory(forks, tmp_path, 50)
