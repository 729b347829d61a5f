"""`DataLoader`: torch's own parameters, what it counts, and resuming through workers."""

import inspect
import json
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import IterableDataset

from ucfuse.data import Checkpointable, DataLoader, UCVolumeDataset

from .files import Files, as_rank, names_of
from .wrappers import Decoded, Endless, Filtered, Picky


@pytest.fixture
def dataset(volume_dir: Path, cache_dir: Path, files: Files) -> UCVolumeDataset:
    return UCVolumeDataset(volume_dir, cache_dir=cache_dir, shuffle=True)


def flat(batches: Any) -> list[str]:
    """Return the names in batches of paths."""
    return [name for batch in batches for name in names_of(batch)]


def failure_of(work: Callable[[], object], kind: type[Exception]) -> str:
    """Return the text of the error that `work` raises, and keep nothing of its traceback alive.

    Torch's iterator is in it; left to the garbage collector, it waits 5 s for each worker.
    """
    try:
        work()
    except kind as error:
        error.__traceback__ = None
        return str(error)
    pytest.fail(f"no {kind.__name__}")


def test_the_parameters_are_those_of_torch_in_their_order() -> None:
    ours = list(inspect.signature(DataLoader.__init__).parameters.values())
    torchs = list(inspect.signature(TorchDataLoader.__init__).parameters.values())
    assert [(p.name, p.kind) for p in ours[: len(torchs)]] == [(p.name, p.kind) for p in torchs]
    assert [p.name for p in ours[len(torchs) :]] == ["progress"]


def test_map_style_datasets_load_as_with_torch() -> None:
    loader = DataLoader(range(10), batch_size=4)  # type: ignore[arg-type]
    assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert loader.stats()["batches"] == len(loader) == 3
    with pytest.raises(TypeError, match="nothing to resume"):
        loader.state_dict()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("persistent", [None, False])
def test_each_epoch_has_each_file_once_in_an_order_of_its_own(
    dataset: UCVolumeDataset, files: Files, workers: int, persistent: bool | None
) -> None:
    loader = DataLoader(
        dataset, 8, num_workers=workers, persistent_workers=persistent if workers else None
    )
    epochs = [flat(loader) for _ in range(3)]
    assert all(sorted(epoch) == sorted(files) for epoch in epochs)
    assert len(set(map(tuple, epochs))) == 3
    assert loader.state_dict()["sources"][0]["epoch"] == 3


@pytest.mark.parametrize("loader_class", [DataLoader, TorchDataLoader])
def test_set_epoch_reaches_persistent_workers(
    dataset: UCVolumeDataset, files: Files, loader_class: type[TorchDataLoader[str]]
) -> None:
    loader = loader_class(dataset, batch_size=8, num_workers=2, persistent_workers=True)
    epochs = []
    for epoch in (0, 1, 0):
        dataset.set_epoch(epoch)
        epochs.append(flat(loader))
    assert sorted(epochs[0]) == sorted(files)
    assert epochs[0] == epochs[2] != epochs[1]


def test_what_workers_prefetched_does_not_count_as_delivered(
    dataset: UCVolumeDataset, files: Files
) -> None:
    loader = DataLoader(dataset, 4, num_workers=2)
    iterator = iter(loader)
    received = [name for _ in range(5) for name in names_of(next(iterator))]
    state = loader.state_dict()
    done = state["sources"][0]["done"]
    assert sum(stop - start for start, stop in zip(done[::2], done[1::2], strict=True)) == 20

    loader.load_state_dict(json.loads(json.dumps(state)))

    assert sorted(received + flat(loader)) == sorted(files)
    assert sorted(flat(loader)) == sorted(files)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_is_found_through_chained_wrappers(
    dataset: UCVolumeDataset, files: Files, workers: int
) -> None:
    loader = DataLoader(Filtered(Decoded(dataset)), 4, num_workers=workers)
    assert isinstance(loader, Checkpointable)
    iterator = iter(loader)
    received = [name for _ in range(4) for name in next(iterator)[0]]
    loader.load_state_dict(loader.state_dict())
    received += [name for names, _ in loader for name in names]
    assert sorted(received) == [name for name in sorted(files) if int(name[1:5]) % 2 == 0]


def test_a_wrapper_may_go_round_for_ever_but_cannot_be_resumed_then(
    dataset: UCVolumeDataset, files: Files
) -> None:
    loader = DataLoader(Endless(dataset), 1, num_workers=2)
    iterator = iter(loader)
    received = Counter(name for _ in range(404) for name in names_of(next(iterator)))
    assert set(received) == set(files)
    assert max(received.values()) - min(received.values()) <= 2
    with pytest.raises(RuntimeError, match="began the dataset again"):
        loader.state_dict()


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_with_an_error_is_not_taken_for_complete(
    volume_dir: Path, cache_dir: Path, files: Files, workers: int
) -> None:
    loader = DataLoader(
        Picky(UCVolumeDataset(volume_dir, cache_dir=cache_dir), "f0050.bin"),
        batch_size=4,
        num_workers=workers,
    )
    iterator, received = iter(loader), []

    def read_on() -> None:
        while True:
            received.extend(names_of(next(iterator)))

    assert "f0050" in failure_of(read_on, ValueError)
    received += flat(iterator)  # what the other worker still has
    loader.load_state_dict(loader.state_dict())
    loader.dataset.bad = "none"  # type: ignore[attr-defined]
    assert sorted(received + flat(loader)) == sorted(files)


def test_torchs_loader_shares_out_but_does_not_pretend_to_know_how_far_it_is(
    dataset: UCVolumeDataset, files: Files
) -> None:
    fresh = dataset.state_dict()
    assert sorted(flat(TorchDataLoader(dataset, batch_size=8, num_workers=2))) == sorted(files)
    with pytest.raises(RuntimeError, match=r"ucfuse\.data\.DataLoader"):
        dataset.state_dict()
    dataset.load_state_dict(fresh)
    loader = TorchDataLoader(dataset, batch_size=8, num_workers=2)
    assert "cannot resume" in failure_of(lambda: list(loader), RuntimeError)


def test_a_state_of_another_loader_is_refused(dataset: UCVolumeDataset) -> None:
    with pytest.raises(ValueError, match="not a state of a loader"):
        DataLoader(dataset).load_state_dict({"sources": []})


def test_statistics_add_up_over_workers_and_epochs(dataset: UCVolumeDataset, files: Files) -> None:
    loader = DataLoader(dataset, 8, num_workers=2)
    for _ in range(2):
        flat(loader)
    stats = loader.stats()
    assert stats["files"] == 2 * len(files)
    assert stats["misses"] == stats["hits"] == len(files)
    assert stats["bytes"] == sum(map(len, files.values()))
    assert stats["batches"] == 2 * len(loader)
    assert stats["wait_s"] > 0


def test_a_bar_shows_the_batches(
    dataset: UCVolumeDataset, files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sorted(flat(DataLoader(dataset, 8, progress=True))) == sorted(files)
    assert "13/13" in capsys.readouterr().err


def test_what_the_user_gave_is_what_the_loader_shows(dataset: UCVolumeDataset) -> None:
    loader = DataLoader(dataset, 4, num_workers=1, collate_fn=list, worker_init_fn=seed_worker)
    assert len(next(iter(loader))) == 4
    assert loader.collate_fn is list
    assert loader.worker_init_fn is seed_worker
    assert (loader.persistent_workers, loader.prefetch_factor) == (True, 4)


def seed_worker(worker: int) -> None:
    torch.manual_seed(worker)


class Pair(IterableDataset[tuple[str, str]]):
    """Two datasets side by side."""

    def __init__(self, left: UCVolumeDataset, right: UCVolumeDataset) -> None:
        self.both = (left, right)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return zip(*self.both, strict=True)


def test_two_datasets_in_one_wrapper_are_resumed_together(
    volume_dir: Path, cache_dir: Path, files: Files
) -> None:
    def datasets() -> Pair:
        options = {"cache_dir": cache_dir, "shuffle": True, "seed": 1}
        return Pair(UCVolumeDataset(volume_dir, **options), UCVolumeDataset(volume_dir, **options))  # type: ignore[arg-type]

    loader = DataLoader(datasets(), 4, num_workers=2)
    first = [next(iterator) for iterator in [iter(loader)] for _ in range(3)]
    resumed = DataLoader(datasets(), 4)
    resumed.load_state_dict(loader.state_dict())
    pairs = [pair for left, right in [*first, *resumed] for pair in zip(left, right, strict=True)]
    assert all(left == right for left, right in pairs)
    assert sorted(names_of(left for left, _ in pairs)) == sorted(files)


@st.composite
def jobs(draw: st.DrawFn, most_workers: int = 0) -> list[tuple[int, int, int]]:
    """Three runs: ranks, workers, and after how many batches each rank stops."""
    workers = st.integers(0, most_workers) if most_workers else st.sampled_from([0, 2])
    return [(draw(st.integers(1, 3)), draw(workers), draw(st.integers(0, 6))) for _ in range(3)]


STOPS = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@settings(STOPS, max_examples=8)
@given(jobs())
@example([(3, 0, 4), (3, 0, 6), (1, 0, 0)])
def test_stopped_anywhere_and_resumed_twice_each_file_comes_once(
    volume_dir: Path, cache_dir: Path, files: Files, jobs: list[tuple[int, int, int]]
) -> None:
    assert_each_file_once(volume_dir, cache_dir, files, jobs)


@pytest.mark.long
@pytest.mark.timeout(1200)
@settings(STOPS, max_examples=100)
@given(jobs(most_workers=4))
def test_stopped_anywhere_on_any_grid_each_file_comes_once(
    volume_dir: Path, cache_dir: Path, files: Files, jobs: list[tuple[int, int, int]]
) -> None:
    assert_each_file_once(volume_dir, cache_dir, files, jobs)


def assert_each_file_once(
    volume_dir: Path, cache_dir: Path, files: Files, jobs: list[tuple[int, int, int]]
) -> None:
    states: list[dict[str, Any]] = []
    received: dict[int, list[str]] = {}  # by epoch: a run that stops late has begun the next one
    for number, (world, workers, stop_after) in enumerate(jobs):
        before, states = states, []
        for rank in range(world):
            with as_rank(rank, world):
                loader = DataLoader(
                    UCVolumeDataset(volume_dir, cache_dir=cache_dir, shuffle=True, uneven="strict"),
                    batch_size=4,
                    num_workers=workers,
                )
                if before:
                    loader.load_state_dict(before)
                epoch = loader.state_dict()["sources"][0]["epoch"]
                batches = iter(loader)
                if number < len(jobs) - 1:
                    batches = islice(batches, stop_after)
                received.setdefault(epoch, []).extend(flat(batches))
                states.append(loader.state_dict())
    assert {epoch: sorted(names) for epoch, names in received.items()} == dict.fromkeys(
        range(len(received)), sorted(files)
    )
