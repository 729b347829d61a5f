"""`DataLoader`: torch's, with defaults for files from a volume, resumable, and with statistics.

It differs from torch's in its defaults only where the dataset contains no `UCVolumeDataset`. Where
it does, the loader tells workers which epoch it is, counts what was delivered to the training loop,
and can save and load that.

It fetches nothing itself: the datasets do, in threads of the process that iterates them.

Concurrency: as torch's: one thread iterates.
"""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import ceil
from typing import Any, TypeVar

import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Dataset, Sampler

from ucfuse.data.checkpointable import find_sources
from ucfuse.data.counters import Counters
from ucfuse.data.dataset import State, UCVolumeDataset
from ucfuse.data.delivery import Collate, Delivery, Prepare
from ucfuse.data.passes import Brief, Mark, Pass

__all__ = ["DataLoader"]

T_co = TypeVar("T_co", covariant=True)

# Torch's two batches per worker run dry when a few files are slow; a volume is not a local disk.
PREFETCH_FACTOR = 4

STATE_VERSION = 1


class DataLoader(TorchDataLoader[T_co]):
    """A drop-in for torch's `DataLoader`, with the same parameters in the same order.

    Defaults that differ: `persistent_workers` is on where there are workers (they keep fetching for
    the next epoch), `prefetch_factor` is 4, and `pin_memory` is on where there is an accelerator.
    `num_workers` stays 0: files are fetched by threads anyway, workers are for decoding.

    `progress=True` shows a bar, if `tqdm` is installed.
    """

    def __init__(
        self,
        dataset: Dataset[T_co],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: Sampler[list[Any]] | Iterable[list[Any]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool | None = None,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool | None = None,
        pin_memory_device: str = "",
        in_order: bool = True,
        progress: bool = False,
    ) -> None:
        if num_workers > 0:
            prefetch_factor = PREFETCH_FACTOR if prefetch_factor is None else prefetch_factor
            persistent_workers = True if persistent_workers is None else persistent_workers
        # Passed on by place, as torch's own subclasses do: the order is checked by a test.
        first = (dataset, batch_size, shuffle, sampler, batch_sampler, num_workers, collate_fn)
        pins = torch.accelerator.is_available() if pin_memory is None else pin_memory
        then = (pins, drop_last, timeout, worker_init_fn, multiprocessing_context, generator)
        super().__init__(
            *first,
            *then,
            prefetch_factor=prefetch_factor,
            persistent_workers=bool(persistent_workers),
            pin_memory_device=pin_memory_device,
            in_order=in_order,
        )
        self.progress = progress
        self._sources = find_sources(dataset)
        self._briefs: list[Brief] = []
        self._counts = _Counts()

    def __iter__(self) -> Iterator[T_co]:  # type: ignore[override]
        begun = [source.begin_pass(self.num_workers, self._hold()) for source in self._sources]
        self._briefs = [brief for _, brief in begun]
        with _briefed(self._sources, self._briefs):
            inner = super().__iter__()
        passes = [passed for passed, _ in begun]
        batches = _Batches(inner, self._sources, passes, self._briefs, self._counts)
        return _with_bar(batches, self) if self.progress else batches

    def __len__(self) -> int:
        """Return the number of batches; exact with workers too if the dataset is ours itself."""
        batch, workers = self.batch_size, self.num_workers
        if batch is None or workers < 2 or not isinstance(self.dataset, UCVolumeDataset):
            return super().__len__()
        files = len(self.dataset)
        shares = [len(range(files)[worker::workers]) for worker in range(workers)]
        count = sum(n // batch if self.drop_last else ceil(n / batch) for n in shares)
        # Torch warns where more batches come than it was told.
        self._IterableDataset_len_called = count  # type: ignore[assignment]
        return count

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be of `epoch`, for the datasets, and for samplers that know epochs."""
        for source in self._sources:
            source.set_epoch(epoch)
        for sampler in (self.sampler, self.batch_sampler):
            tell = getattr(sampler, "set_epoch", None)
            if tell is not None:
                tell(epoch)

    def state_dict(self) -> State:
        """Return how much of the epoch this rank's training loop has received from this loader.

        Batches that workers have prefetched do not count. Raises `TypeError`: there is nothing in
        the dataset that can be resumed; `RuntimeError`: a wrapper makes that impossible.
        """
        sources = self._resumable()
        return {"version": STATE_VERSION, "sources": [source.state_dict() for source in sources]}

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Let the next pass go on where `state` was, on any number of ranks and workers.

        Give one state, or the list of all ranks' states: see `UCVolumeDataset.load_state_dict`.
        Raises `ValueError`: it is of another dataset.
        """
        sources = self._resumable()
        states = [state] if isinstance(state, Mapping) else list(state)
        for one in states:
            if one.get("version") != STATE_VERSION or len(one["sources"]) != len(sources):
                raise ValueError("not a state of a loader of this dataset")
        for number, source in enumerate(sources):
            of_ranks = [one["sources"][number] for one in states]
            source.load_state_dict(of_ranks)
        # Workers that live on have the old position: new ones are started by the next pass.
        self._iterator = None

    def stats(self) -> dict[str, float]:
        """Return what this loader counted so far, over all its passes and workers.

        `batches`; `wait_s`: how long the training loop waited for them; `busy_s`: how long it used
        them; and the counts of the datasets: `files`, `hits`, `misses`, `passed`, `skipped`,
        `retries`, `bytes` (copied from the volume).
        """
        return self._counts.as_dict()

    def _resumable(self) -> list[UCVolumeDataset]:
        if not self._sources:
            raise TypeError(
                f"{type(self.dataset).__name__} contains no UCVolumeDataset that its attributes"
                " lead to: there is nothing to resume"
            )
        return self._sources

    def _hold(self) -> int:
        """Return how many paths may be handed out and not opened yet, per worker."""
        return (self.batch_size or 1) * ((self.prefetch_factor or 0) + 2)

    def _get_iterator(self) -> Any:
        if not self._sources:
            return super()._get_iterator()
        # Torch reads both off the loader; what the user gave stays what the loader shows.
        collate, init = self.collate_fn, self.worker_init_fn
        try:
            self.collate_fn = Collate(collate, self._sources)
            self.worker_init_fn = Prepare(self._briefs, self._sources, init)
            return super()._get_iterator()
        finally:
            self.collate_fn, self.worker_init_fn = collate, init


class _Counts:
    """What one loader counts. Invariant: `latest` has the newest numbers of every worker."""

    def __init__(self) -> None:
        self.batches = 0
        self.wait_s = 0.0
        self.busy_s = 0.0
        self.latest: dict[tuple[int, int], Counters] = {}

    def as_dict(self) -> dict[str, float]:
        total = Counters()
        for counters in self.latest.values():
            total.add(counters)
        times = {"batches": self.batches, "wait_s": self.wait_s, "busy_s": self.busy_s}
        return times | total.as_dict()


class _Batches(Iterator[Any]):
    """The batches of one pass: takes off the marks, and counts what is handed on."""

    def __init__(
        self,
        inner: Iterator[Any],
        sources: Sequence[UCVolumeDataset],
        passes: Sequence[Pass],
        briefs: Sequence[Brief],
        counts: _Counts,
    ) -> None:
        self._inner = inner
        self._sources = sources
        self._passes = passes
        self._briefs = briefs
        self._counts = counts
        self._failed = False
        self._handed_at: float | None = None

    def __next__(self) -> Any:
        asked_at = time.perf_counter()
        if self._handed_at is not None:
            self._counts.busy_s += asked_at - self._handed_at
        try:
            with _briefed(self._sources, self._briefs):
                item = next(self._inner)
        except StopIteration:
            self._handed_at = None
            self._end()
            raise
        except BaseException:
            # What follows an error may leave files out, so the pass is not complete at its end.
            self._failed = True
            raise
        self._handed_at = time.perf_counter()
        self._counts.wait_s += self._handed_at - asked_at
        self._counts.batches += 1
        return self._note(item) if isinstance(item, Delivery) else item

    def __len__(self) -> int:
        return len(self._inner)  # type: ignore[arg-type]

    def _note(self, delivery: Delivery) -> Any:
        for number, (passed, mark) in enumerate(zip(self._passes, delivery.marks, strict=True)):
            _note_mark(passed, delivery.worker, mark)
            self._counts.latest[delivery.pid, number] = mark.counters
        return delivery.data

    def _end(self) -> None:
        if not self._failed:
            for source, passed in zip(self._sources, self._passes, strict=True):
                source.end_pass(passed)


@contextlib.contextmanager
def _briefed(sources: Sequence[UCVolumeDataset], briefs: Sequence[Brief]) -> Iterator[None]:
    """Tell the datasets which pass they are iterated for: without workers that happens right here.

    Torch begins the iteration when its iterator is made, a wrapper perhaps only at the first batch.
    """
    for source, brief in zip(sources, briefs, strict=True):
        source.brief(brief)
    try:
        yield
    finally:
        for source in sources:
            source.brief(None)


def _note_mark(passed: Pass, worker: int, mark: Mark) -> None:
    if mark.number != passed.number or mark.epoch != passed.position.epoch:
        passed.began_again = True
    else:
        passed.counts[worker] = mark.handed


def _with_bar(batches: Iterator[T_co], loader: DataLoader[T_co]) -> Iterator[T_co]:
    """Show a bar while the batches are used; without tqdm, none."""
    try:
        from tqdm.auto import tqdm  # type: ignore[import-untyped]
    except ImportError:
        return batches
    try:
        total: int | None = len(loader)
    except TypeError:  # a wrapper that does not know its length
        total = None
    return iter(tqdm(batches, total=total, unit="batch"))
