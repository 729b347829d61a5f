"""One pass over a dataset: who tells whom where it begins, and how far it has come.

The process that trains begins a `Pass` and counts in it what reached the training loop. A worker
iterates its own copy of the dataset; it is told by a `Brief` (at its start) and by the `Board`
(from the second pass of a persistent worker on), and reports back with a `Mark` per batch.

Concurrency: a `Pass` belongs to the thread that trains. The board is written by that process only,
before the workers are asked for the pass, and read by them after that.
"""

import os
from dataclasses import dataclass

import torch

from ucfuse.data.counters import Counters
from ucfuse.data.epoch_order import Position
from ucfuse.data.ranks import Placement

__all__ = ["Board", "Brief", "Mark", "Pass", "Walk"]


@dataclass(slots=True, eq=False)
class Pass:
    """A pass as the training process sees it."""

    number: int
    position: Position
    """Where it began."""
    placement: Placement
    counts: list[int]
    """How many paths of each worker reached the training loop."""
    complete: bool = False
    began_again: bool = False
    """A wrapper began the dataset again within the pass, so that counts mean nothing any more."""


@dataclass(frozen=True, slots=True)
class Brief:
    """What a worker, or an iteration in the process itself, must know of a loader's pass."""

    number: int
    position: Position
    placement: Placement
    workers: int
    hold: int
    """How many paths may be on their way to the training loop after they were handed out."""


@dataclass(frozen=True, slots=True)
class Mark:
    """How far one worker's copy of a dataset is, when a batch leaves it."""

    number: int
    epoch: int
    handed: int
    counters: Counters


@dataclass(slots=True, eq=False)
class Walk:
    """One iteration of one worker, or of the training process itself."""

    number: int
    position: Position
    placement: Placement
    worker: int = 0
    workers: int = 1
    hold: int = 0
    handed: int = 0
    """Paths handed out, and files skipped."""
    direct: Pass | None = None
    """The pass, where this iteration is the training loop's own."""


class Board:
    """A few numbers in memory that a process shares with its workers, however they were started.

    Owner: the process that trains. A process that got the dataset from another one, and is no
    worker of a loader, takes a board of its own before it writes.
    """

    _PASS, _PASS_EPOCH, _EPOCH, _LOADS, _FOREIGN = range(5)

    def __init__(self) -> None:
        self._numbers = _shared(torch.zeros(5, dtype=torch.int64))
        self._owner = os.getpid()

    def own(self) -> None:
        """Stop sharing with the process that this dataset came from."""
        if self._owner != os.getpid() or not _is_shared(self._numbers):
            self._numbers = _shared(self._numbers.clone())
            self._numbers[self._FOREIGN] = 0
            self._owner = os.getpid()

    def begin(self, number: int, epoch: int) -> None:
        """Announce a pass of a loader."""
        self._numbers[self._PASS] = number
        self._numbers[self._PASS_EPOCH] = epoch

    def current(self) -> tuple[int, int]:
        """Return number and epoch of the loader's latest pass."""
        return int(self._numbers[self._PASS]), int(self._numbers[self._PASS_EPOCH])

    @property
    def epoch(self) -> int:
        """The epoch of workers that no loader of ours has briefed."""
        return int(self._numbers[self._EPOCH])

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._numbers[self._EPOCH] = epoch

    @property
    def loads(self) -> int:
        """How many states have been loaded."""
        return int(self._numbers[self._LOADS])

    def count_load(self) -> None:
        """Count a loaded state."""
        self._numbers[self._LOADS] += 1

    @property
    def foreign(self) -> bool:
        """Whether workers of a loader that is not ours read the dataset: it cannot know how far."""
        return bool(self._numbers[self._FOREIGN])

    @foreign.setter
    def foreign(self, foreign: bool) -> None:
        self._numbers[self._FOREIGN] = int(foreign)


def _shared(numbers: torch.Tensor) -> torch.Tensor:
    """Move the numbers to memory that stays common to this process and its workers."""
    numbers.share_memory_()  # type: ignore[no-untyped-call]
    return numbers


def _is_shared(numbers: torch.Tensor) -> bool:
    """Return whether the numbers are common to several processes: a deep copy's are not."""
    return bool(numbers.is_shared())  # type: ignore[no-untyped-call]
