"""What of the stored items is wanted, in the order of the files.

What is wanted of a file is one reader's share, so that each reader is one sequential stream: a
network file system fetches ahead of that best. Pure bookkeeping: no I/O.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import torch

__all__ = ["Item", "Step", "Wanted", "plan_shares"]


@dataclass(slots=True)
class Wanted:
    """A box of a stored tensor, and where it goes. Rows are those of the first dimension."""

    target: torch.Tensor
    offsets: tuple[int, ...]
    lengths: tuple[int, ...]

    @property
    def rows(self) -> tuple[int, int]:
        """First row and the one after the last."""
        if not self.offsets:
            return 0, 1
        return self.offsets[0], self.offsets[0] + self.lengths[0]

    def target_rows(self, start: int, stop: int) -> torch.Tensor:
        """Return the part of the target that takes these stored rows."""
        if not self.offsets:
            return self.target
        return self.target.narrow(0, start - self.offsets[0], stop - start)

    def source_box(self, rows: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        """Return what belongs into `target_rows(start, stop)` of stored rows that begin there."""
        if not self.offsets:
            return rows.reshape(())
        box = rows.narrow(0, 0, stop - start)
        for dimension in range(1, len(self.offsets)):
            box = box.narrow(dimension, self.offsets[dimension], self.lengths[dimension])
        return box


@dataclass(slots=True)
class Item:
    """A stored tensor, as the metadata tells, and what is wanted of it.

    `is_raw`: not an archive with a tensor in it; its bytes as they are make the rows.
    """

    path: str
    offset: int
    length: int
    dtype: torch.dtype
    sizes: tuple[int, ...]
    wanted: list[Wanted] = field(default_factory=list)
    is_raw: bool = False

    @property
    def row_count(self) -> int:
        """How many rows it has; a scalar is one."""
        return self.sizes[0] if self.sizes else 1

    @property
    def row_bytes(self) -> int:
        """Bytes of each row."""
        return math.prod(self.sizes[1:]) * self.dtype.itemsize

    @property
    def stop(self) -> int:
        """Where in the file it ends."""
        return self.offset + self.length


@dataclass(frozen=True, slots=True)
class Step:
    """Rows of an item to read, for all who want any; `limit`: how far the file is wanted whole."""

    item: Item
    start: int
    stop: int
    wanted: tuple[Wanted, ...]
    limit: int = 0

    @property
    def byte_count(self) -> int:
        """Bytes of tensor to read."""
        return (self.stop - self.start) * self.item.row_bytes

    @property
    def is_whole(self) -> bool:
        """Whether it reads the item from its first byte to its last."""
        return self.start == 0 and self.stop == self.item.row_count

    @property
    def extent(self) -> tuple[int, int]:
        """Where in the file its rows are, as well as can be told before the item was looked at."""
        around = self.item.length - self.item.row_count * self.item.row_bytes
        first = self.item.offset + self.start * self.item.row_bytes
        return first, min(self.item.stop, first + self.byte_count + max(0, around))


def plan_shares(items: Iterable[Item]) -> list[list[Step]]:
    """Return the steps of each file, in the order of the file; the largest share is first."""
    shares: dict[str, list[Step]] = {}
    for item in sorted(items, key=lambda item: item.offset):
        shares.setdefault(item.path, []).extend(_steps(item))
    limited = [_with_limits(steps) for steps in shares.values()]
    return sorted(limited, key=lambda share: -sum(step.byte_count for step in share))


def _steps(item: Item) -> Iterator[Step]:
    """Yield disjoint stretches of rows, each with all who want any of them."""
    wanted = sorted(item.wanted, key=lambda each: each.rows)
    while wanted:
        together = [wanted.pop(0)]
        start, stop = together[0].rows
        while wanted and wanted[0].rows[0] < stop:
            together.append(wanted.pop(0))
            stop = max(stop, together[-1].rows[1])
        yield Step(item, start, stop, tuple(together))


def _with_limits(share: list[Step]) -> list[Step]:
    """Tell each step how far the reader may read on: to the end of its run of whole items."""
    limited: list[Step] = []
    for step in reversed(share):
        limit = step.item.stop if step.is_whole else 0
        following = limited[-1] if limited else None
        if following and following.limit and limit == following.item.offset:
            limit = following.limit
        limited.append(replace(step, limit=limit))
    return limited[::-1]
