"""Where in a stored item the bytes of its tensor are.

`torch.save` makes an uncompressed zip archive: `data.pkl`, which describes the tensor, some small
records, then `data/0`, its bytes. Sizes stand behind each record, not before it, so that a reader
who wants neither the end of the archive nor a copy of the whole has to walk.

What does not look exactly like that is left to `torch.load`.
"""

import io
import pickle
import struct
import sys
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["DESCRIPTOR", "HEAD_BYTES", "TensorRecord", "find_tensor"]

# Enough for the head of an item: 650 bytes with torch 2.13, more with many dimensions.
HEAD_BYTES = 4096

# What stands before and behind each record.
HEADER = b"PK\x03\x04"
DESCRIPTOR = b"PK\x07\x08"
_HEADER_FIELDS = struct.Struct("<4s5H3I2H")
_DESCRIPTOR_FIELDS = struct.Struct("<4s3I")

# The names by which `torch.save` calls a dtype. Asked for it, these classes of torch would warn.
STORAGES = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
    "ComplexDoubleStorage": torch.complex128,
    "ComplexFloatStorage": torch.complex64,
}


@dataclass(frozen=True, slots=True)
class TensorRecord:
    """A tensor's dtype and sizes, and at which byte of the item its contiguous bytes begin."""

    dtype: torch.dtype
    sizes: tuple[int, ...]
    data_start: int


def find_tensor(head: bytes) -> TensorRecord | None:
    """Return what an item's first bytes tell; None: it has to be loaded by `torch.load`."""
    try:
        name, start = _record(head, 0)
        if not name.endswith("/data.pkl"):
            return None
        prefix = name.removesuffix("data.pkl")
        pickled = io.BytesIO(head[start:])
        described = _Description(pickled).load()
        data_start = _walk_to(head, start + pickled.tell(), prefix)
        if data_start is None or not isinstance(described, _Tensor):
            return None
        return TensorRecord(described.dtype, described.sizes, data_start)
    except UNUSUAL:
        return None


class _Unusual(Exception):
    """The item is not a plain tensor in a plain archive."""


# Damaged bytes can make pickle raise about anything; torch.load then says what is wrong.
UNUSUAL = (
    _Unusual,
    pickle.UnpicklingError,
    struct.error,
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    TypeError,
    ValueError,
)


def _record(head: bytes, at: int) -> tuple[str, int]:
    """Return name and first byte of the record whose header is at `at`."""
    fields = _HEADER_FIELDS.unpack_from(head, at)
    signature, _, _, method = fields[:4]
    name_bytes, extra_bytes = fields[-2:]
    if signature != HEADER or method != 0:
        raise _Unusual
    name_at = at + _HEADER_FIELDS.size
    start = name_at + name_bytes + extra_bytes
    if start > len(head):
        raise _Unusual
    return head[name_at : name_at + name_bytes].decode(), start


def _walk_to(head: bytes, end: int, prefix: str) -> int | None:
    """Go from the end of `data.pkl` to the first byte of `data/0`."""
    at = end + _DESCRIPTOR_FIELDS.size
    byte_order = None
    while True:
        name, start = _record(head, at)
        if name == prefix + "data/0":
            return start if byte_order == sys.byteorder.encode() else None
        stop = _end_of_record(head, start)
        if name == prefix + "byteorder":
            byte_order = head[start:stop]
        at = stop + _DESCRIPTOR_FIELDS.size


def _end_of_record(head: bytes, start: int) -> int:
    """Return where the record ends: before the first descriptor that has just this size."""
    stop = head.find(DESCRIPTOR, start)
    while stop >= 0:
        _, _, stored, size = _DESCRIPTOR_FIELDS.unpack_from(head, stop)
        if stored == size == stop - start:
            return stop
        stop = head.find(DESCRIPTOR, stop + 1)
    raise _Unusual


@dataclass(frozen=True, slots=True)
class _Tensor:
    dtype: torch.dtype
    sizes: tuple[int, ...]


class _Description(pickle.Unpickler):
    """Reads how `torch.save` describes one contiguous CPU tensor, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _tensor
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if module == "torch" and name in STORAGES:
            return STORAGES[name]
        raise _Unusual

    def persistent_load(self, reference: Any) -> Any:
        kind, dtype, key, _, count = reference
        if kind != "storage" or key != "0" or not isinstance(dtype, torch.dtype):
            raise _Unusual
        return dtype, count


def _tensor(
    storage: tuple[torch.dtype, int],
    offset: int,
    sizes: tuple[int, ...],
    strides: tuple[int, ...],
    requires_grad: object,
    hooks: object,
    metadata: object = None,
) -> _Tensor:
    dtype, count = storage
    expected = []
    step = 1
    for size in reversed(sizes):
        expected.append(step)
        step *= size
    is_contiguous = all(
        size == 1 or stride == wanted
        for size, stride, wanted in zip(sizes, strides, reversed(expected), strict=True)
    )
    if offset != 0 or not is_contiguous or count != step or metadata:
        raise _Unusual
    return _Tensor(dtype, tuple(sizes))
