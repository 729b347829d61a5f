"""How a file is cut into the parts of a multipart upload. Pure arithmetic.

`upload` sends by these plans; `staging` refuses sizes that no plan can hold.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ucfuse.errors import FileTooLarge
from ucfuse.volume import GiB, MiB

__all__ = [
    "MAX_OBJECT_BYTES",
    "MIN_PART_BYTES",
    "SMALLEST_PART_BYTES",
    "Part",
    "PartGrid",
    "update_plan",
]

MAX_OBJECT_BYTES = 5 * 1024 * GiB
"""What every store with the S3 interface takes as one object."""

MIN_PART_BYTES = 5 * MiB
"""What S3 demands of every part but the last."""

SMALLEST_PART_BYTES = 8 * MiB
MAX_PART_COUNT = 10_000

# S3 copies up to 5 GiB at once; shorter ranges run side by side and fail alone.
LARGEST_COPY_BYTES = 1 * GiB

# A plan does not depend on the file's final size, so a part keeps its place while a file grows.
# Doubling at each thousand reaches 5 TiB within the 10,000 parts that S3 allows, and the
# largest part, 4 GiB, is still below S3's 5 GiB.
PARTS_PER_SIZE = 1000

Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Part:
    """Part `number` (from 1) has the bytes `[start, stop)`: sent, or copied from the base."""

    number: int
    start: int
    stop: int
    is_copy: bool = False

    @property
    def size(self) -> int:
        return self.stop - self.start


class PartGrid:
    """Where the parts of a file that is sent as a whole begin and end, however large it becomes.

    `part_bytes`: equal parts, for stores that want them; None: they grow with the file.
    """

    def __init__(self, part_bytes: int | None = None) -> None:
        self._part_bytes = part_bytes

    @property
    def max_bytes(self) -> int:
        """The largest file that fits."""
        if self._part_bytes is None:
            return MAX_OBJECT_BYTES
        return min(MAX_OBJECT_BYTES, self._part_bytes * MAX_PART_COUNT)

    def at(self, offset: int) -> Part:
        """Return the part with the byte at `offset`, as if the file went on behind it."""
        if self._part_bytes is not None:
            index = offset // self._part_bytes
            return Part(index + 1, index * self._part_bytes, (index + 1) * self._part_bytes)
        first_block = PARTS_PER_SIZE * SMALLEST_PART_BYTES
        doublings = (offset // first_block + 1).bit_length() - 1
        part_bytes = SMALLEST_PART_BYTES << doublings
        block_start = first_block * ((1 << doublings) - 1)
        index = (offset - block_start) // part_bytes
        start = block_start + index * part_bytes
        return Part(doublings * PARTS_PER_SIZE + index + 1, start, start + part_bytes)

    def between(self, start: int, stop: int) -> Iterator[Part]:
        """Yield every part with bytes of `[start, stop)`."""
        while start < stop:
            part = self.at(start)
            yield part
            start = part.stop

    def appended(self, base_size: int, start: int, stop: int) -> Iterator[Part]:
        """Yield the parts with bytes of `[start, stop)` that `update_plan` sends of a file that
        only grows from `base_size` on, as if it went on behind them."""
        if self._part_bytes is not None:
            yield from self.between(start, stop)
            return
        copies = sum(1 for _ in _pieces(0, base_size, LARGEST_COPY_BYTES, MIN_PART_BYTES, -1))
        first = (start - base_size) // SMALLEST_PART_BYTES
        behind = -((base_size - stop) // SMALLEST_PART_BYTES)
        # Of more than 80 GB the plan has larger parts, so those behind wait for it.
        for index in range(first, min(behind, MAX_PART_COUNT - copies)):
            begin = base_size + index * SMALLEST_PART_BYTES
            yield Part(copies + index + 1, begin, begin + SMALLEST_PART_BYTES)

    def plan(self, size: int) -> list[Part]:
        """Return all parts of `size` bytes, in order. Raises `FileTooLarge`."""
        if size > self.max_bytes:
            raise FileTooLarge(f"a file of {size} bytes", f"at most {self.max_bytes} are possible")
        return [
            Part(part.number, part.start, min(part.stop, size)) for part in self.between(0, size)
        ]

    def update_plan(self, size: int, changed: Iterable[Range]) -> list[Part]:
        """Return parts that send what `changed` and copy the rest. Raises `FileTooLarge`."""
        if self._part_bytes is None:
            return update_plan(size, changed)
        touched = {part.number for each in changed for part in self.between(*each)}
        return [
            Part(part.number, part.start, part.stop, part.number not in touched)
            for part in self.plan(size)
        ]


def update_plan(size: int, changed: Iterable[Range]) -> list[Part]:
    """Return parts that send the `changed` ranges (in order, each apart) and copy the rest.

    Sent ranges grow to what a part must have, and those close to each other become one. The fewer
    bytes are sent the better, but no object has more than 10,000 parts.
    """
    spacing = MIN_PART_BYTES
    changes = list(changed)
    while True:
        parts = list(_cut(size, _grown(size, changes, spacing), spacing))
        if len(parts) <= MAX_PART_COUNT:
            return parts
        spacing *= 2


def _grown(size: int, changes: Iterable[Range], spacing: int) -> list[Range]:
    """Let each range have `spacing` bytes and as many between it and the next."""
    grown: list[Range] = []
    for start, stop in changes:
        stop = min(max(stop, start + spacing), size)
        last = grown[-1][1] if grown else 0
        if start - last >= spacing:
            grown.append((start, stop))
        elif grown:
            grown[-1] = (grown[-1][0], max(last, stop))
        else:
            grown.append((0, max(stop, min(spacing, size))))
    return grown


def _cut(size: int, sent: list[Range], spacing: int) -> Iterator[Part]:
    number, at = 1, 0
    for start, stop in [*sent, (size, size)]:
        copies = _pieces(at, start, LARGEST_COPY_BYTES, spacing, size)
        sends = _pieces(start, stop, max(spacing, SMALLEST_PART_BYTES), spacing, size)
        for pieces, is_copy in ((copies, True), (sends, False)):
            for piece_start, piece_stop in pieces:
                yield Part(number, piece_start, piece_stop, is_copy)
                number += 1
        at = stop


def _pieces(start: int, stop: int, largest: int, least: int, size: int) -> Iterator[Range]:
    """Cut a range into pieces of `largest`; the last has up to `least` more, unless it ends all."""
    while start < stop:
        end = min(start + largest, stop)
        if stop - end < least and stop != size:
            end = stop
        yield start, end
        start = end
