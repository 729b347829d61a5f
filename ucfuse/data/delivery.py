"""How a loader learns what reached the training loop: every batch carries marks of its worker.

A worker fetches batches ahead of the training, so what it has handed out is not what was delivered.
Its collate function adds, to each batch, how far its datasets were when the batch was complete; the
loader takes the mark off when it hands the batch to the training loop.

Concurrency: made in the worker (or in the training process without workers), read by the loader.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch.utils.data import get_worker_info
from torch.utils.data._utils.pin_memory import pin_memory

from ucfuse.data.checkpointable import find_sources
from ucfuse.data.dataset import UCVolumeDataset
from ucfuse.data.passes import Brief, Mark

__all__ = ["Collate", "Delivery", "Prepare"]


@dataclass(slots=True)
class Delivery:
    """One batch on its way to the training loop."""

    worker: int
    pid: int
    marks: list[Mark]
    data: Any

    def pin_memory(self) -> "Delivery":
        """Pin the batch; torch's pinning calls this for what it does not know."""
        self.data = pin_memory(self.data)  # type: ignore[no-untyped-call]
        return self


class Collate:
    """A collate function that adds the marks to what the loader's own makes."""

    def __init__(self, collate: Callable[[Any], Any], sources: Sequence[UCVolumeDataset]) -> None:
        self._collate = collate
        self._sources = sources

    def __call__(self, samples: Any) -> Delivery:
        """Return the batch of `samples` with the marks of this process."""
        data = self._collate(samples)
        info = get_worker_info()
        worker = 0 if info is None else info.id
        return Delivery(worker, os.getpid(), [source.mark() for source in self._sources], data)


class Prepare:
    """A worker's first step: it briefs the worker's copy, then runs the loader's own init function.

    The sources are pickled in one go with the dataset and the collate function of the worker, so
    they are the very objects in that dataset.
    """

    def __init__(
        self,
        briefs: Sequence[Brief],
        sources: Sequence[UCVolumeDataset],
        init: Callable[[int], None] | None,
    ) -> None:
        self._briefs = briefs
        self._sources = sources
        self._init = init

    def __call__(self, worker: int) -> None:
        """Prepare this worker. Raises `RuntimeError`: its copy of the dataset is not as briefed."""
        info = get_worker_info()
        assert info is not None
        found = find_sources(info.dataset)
        if [id(source) for source in found] != [id(source) for source in self._sources]:
            raise RuntimeError("the worker's copy of the dataset has other sources than the loader")
        for source, brief in zip(self._sources, self._briefs, strict=True):
            source.brief(brief)
        if self._init is not None:
            self._init(worker)
