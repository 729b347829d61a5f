"""Getting stored items into tensors, straight to their place.

Within a share a byte is read once: directly into the tensor where its memory is as the file has
it, else through a buffer.

Concurrency: a share is read by one thread, and different shares write to different rows.
"""

import ctypes
import io
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from ucfuse.data.checkpoint.archive import DESCRIPTOR, HEAD_BYTES, TensorRecord, find_tensor
from ucfuse.data.checkpoint.errors import DamagedCheckpoint
from ucfuse.data.checkpoint.items import load_item
from ucfuse.data.checkpoint.shares import Item, Step

__all__ = ["memory_of", "read_share"]

# Smaller items are gathered: one system call for many, and a copy that costs nothing beside it.
BUFFER_BYTES = 1 << 20
# Bytes of rows that pass through a copy at the same time.
PIECE_BYTES = 16 << 20
# What the kernel is asked for before it is read. Over a mount whose store answers after 20 ms, 16
# were faster than 4, and 4 than none.
AHEAD_BYTES = 16 << 20
# More than this at once the kernel cuts to the size of its own read-ahead.
ANNOUNCED_BYTES = 1 << 20

Beat = Callable[[], None]


class _Source:
    """One reader's place in a file, with a buffer for what is small.

    The kernel is told of what comes next, `AHEAD_BYTES` of it, and else reads only what it is
    asked for: its own read-ahead is shorter, and also reads what nobody wants.
    """

    def __init__(self, path: str, coming: Iterable[tuple[int, int]], beat: Beat) -> None:
        self.path = path
        self._beat = beat
        self._coming = _pieces(coming)
        self._announced = 0  # bytes, ahead of those read
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_RANDOM)
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._start = self._stop = 0  # which bytes of the file are in the buffer

    def close(self) -> None:
        os.close(self._fd)

    def read_into(self, target: memoryview, offset: int, limit: int) -> None:
        """Fill `target` from `offset` on; the file is wanted up to `limit`."""
        while target:
            if self._start <= offset < self._stop:
                at = offset - self._start
                count = min(len(target), self._stop - offset)
                target[:count] = self._buffer[at : at + count]
            elif len(target) >= BUFFER_BYTES:
                count = self._read(target[:BUFFER_BYTES], offset)
            else:
                self._fill(offset, max(limit, offset + len(target)))
                continue
            target = target[count:]
            offset += count

    def _fill(self, offset: int, limit: int) -> None:
        self._start = self._stop = offset
        self._stop += self._read(self._buffer[: limit - offset], offset)

    def _read(self, target: memoryview, offset: int) -> int:
        self._beat()
        self._announce()
        try:
            count = os.preadv(self._fd, [target], offset)
        except OSError as error:
            raise OSError(error.errno, error.strerror, self.path) from error
        if count == 0:
            raise DamagedCheckpoint(
                self.path, [f"ends at byte {offset}, in the middle of a tensor"]
            )
        self._announced -= count
        return count

    def _announce(self) -> None:
        while self._announced < AHEAD_BYTES:
            start, stop = next(self._coming, (0, 0))
            if start == stop:
                return
            os.posix_fadvise(self._fd, start, stop - start, os.POSIX_FADV_WILLNEED)
            self._announced += stop - start


def _pieces(extents: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield what the extents cover, piece by piece, those that touch as one."""
    at = stop = 0
    for first, last in extents:
        if first > stop:
            yield from _cut(at, stop)
            at = first
        stop = max(stop, last)
        while stop - at >= ANNOUNCED_BYTES:
            yield at, at + ANNOUNCED_BYTES
            at += ANNOUNCED_BYTES
    yield from _cut(at, stop)


def _cut(start: int, stop: int) -> Iterator[tuple[int, int]]:
    if start < stop:
        yield start, stop


def read_share(share: Sequence[Step], beat: Beat) -> None:
    """Read the steps, all of one file, to where they go. Raises `OSError`, `DamagedCheckpoint`."""
    source = _Source(share[0].item.path, (step.extent for step in share), beat)
    try:
        for step in share:
            _read_step(step, source)
    finally:
        source.close()


def _read_step(step: Step, source: _Source) -> None:
    item = step.item
    if item.is_raw:
        _read_data(step, source, item.offset)
        return
    head = bytearray(min(HEAD_BYTES, item.length))
    source.read_into(memoryview(head), item.offset, max(step.limit, item.offset + len(head)))
    record = find_tensor(bytes(head))
    if record is None:
        if step.start == step.wanted[0].rows[0]:
            _read_unusual(item, source, step)
        return
    _check(item, record)
    stop = _read_data(step, source, item.offset + record.data_start)
    if step.is_whole:
        mark = bytearray(len(DESCRIPTOR))
        source.read_into(memoryview(mark), stop, max(step.limit, stop + len(mark)))
        if mark != DESCRIPTOR:
            raise DamagedCheckpoint(item.path, [f"no end of record at byte {stop}"])


def _read_data(step: Step, source: _Source, first: int) -> int:
    """Read the step's rows, of which row 0 is at `first`; return where in the file they end."""
    item = step.item
    offset = first + step.start * item.row_bytes
    stop = first + step.stop * item.row_bytes
    if stop > item.stop:
        raise DamagedCheckpoint(item.path, [f"the item at byte {item.offset} is too short"])
    limit = max(step.limit, stop)
    direct = _memory(step)
    if direct is not None:
        source.read_into(direct, offset, limit)
    else:
        _read_rows(step, source, offset, limit)
    return stop


def _check(item: Item, record: TensorRecord) -> None:
    if (record.dtype, record.sizes) != (item.dtype, item.sizes):
        found = f"{record.dtype} {list(record.sizes)}"
        said = f"{item.dtype} {list(item.sizes)}"
        raise DamagedCheckpoint(
            item.path, [f"at byte {item.offset} is a tensor of {found}; the metadata says {said}"]
        )


def _memory(step: Step) -> memoryview | None:
    """Return the memory that takes the bytes of the rows as they are, if there is one."""
    if len(step.wanted) != 1:
        return None
    (wanted,) = step.wanted
    target = wanted.target_rows(step.start, step.stop)
    is_whole_rows = wanted.lengths[1:] == step.item.sizes[1:]
    is_plain = (
        type(target) in (torch.Tensor, torch.nn.Parameter)
        and target.device.type == "cpu"
        and target.layout == torch.strided
        and target.dtype == step.item.dtype
        and target.is_contiguous()
        and not (target.is_conj() or target.is_neg() or target.is_quantized)
    )
    if not (is_whole_rows and is_plain):
        return None
    return memory_of(target)


def memory_of(tensor: torch.Tensor) -> memoryview:
    """Return the bytes of a contiguous CPU tensor, which the caller keeps alive."""
    count = tensor.numel() * tensor.element_size()
    if count == 0:
        return memoryview(b"")
    return memoryview((ctypes.c_char * count).from_address(tensor.data_ptr())).cast("B")


def _read_rows(step: Step, source: _Source, offset: int, limit: int) -> None:
    """Read rows piece by piece and copy from each what is wanted."""
    item = step.item
    rows_at_once = max(1, PIECE_BYTES // max(1, item.row_bytes))
    for start in range(step.start, step.stop, rows_at_once):
        stop = min(step.stop, start + rows_at_once)
        rows = torch.empty((stop - start, *item.sizes[1:]), dtype=item.dtype)
        at = offset + (start - step.start) * item.row_bytes
        source.read_into(memory_of(rows), at, limit)
        _distribute(step, rows, start, stop)


def _distribute(step: Step, rows: torch.Tensor, start: int, stop: int) -> None:
    for wanted in step.wanted:
        first, last = wanted.rows
        begin, end = max(start, first), min(stop, last)
        if begin < end:
            box = wanted.source_box(rows.narrow(0, begin - start, end - begin), begin, end)
            with torch.no_grad():
                wanted.target_rows(begin, end).copy_(box)


def _read_unusual(item: Item, source: _Source, step: Step) -> None:
    """Load the whole item as torch does, for all rows of these targets."""
    stored = bytearray(item.length)
    source.read_into(memoryview(stored), item.offset, max(step.limit, item.stop))
    tensor = load_item(item.path, io.BytesIO(stored))
    if tuple(tensor.shape) != item.sizes:
        raise DamagedCheckpoint(
            item.path, [f"at byte {item.offset} is a tensor of {list(tensor.shape)}"]
        )
    for wanted in step.wanted:
        box: Any = tensor
        for dimension, (begin, length) in enumerate(
            zip(wanted.offsets, wanted.lengths, strict=True)
        ):
            box = box.narrow(dimension, begin, length)
        with torch.no_grad():
            wanted.target.copy_(box)
