"""`verify`: whether every byte that a checkpoint's metadata names is there, readable and sound."""

import contextlib
import io
import os
import struct
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import pairwise
from math import prod
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from ucfuse.data.checkpoint.archive import DESCRIPTOR, HEAD_BYTES, find_tensor
from ucfuse.data.checkpoint.errors import CheckpointError, DamagedCheckpoint, RefusedGlobal
from ucfuse.data.checkpoint.items import load_item
from ucfuse.data.checkpoint.layout import (
    METADATA,
    data_path,
    extents,
    is_rank_metadata,
    stored_items,
)
from ucfuse.data.checkpoint.metadata import load_metadata
from ucfuse.data.checkpoint.watch import Watch

__all__ = ["find_problems", "verify"]

READERS = 4
PATIENCE_S = 600.0
CHUNK_BYTES = 4 << 20

# What the decoding of damaged bytes raises.
UNSOUND = (
    zipfile.BadZipFile,
    RuntimeError,
    EOFError,
    ValueError,
    KeyError,
    AttributeError,
    TypeError,
    struct.error,
)

Beat = Callable[[], None]


def verify(path: str | os.PathLike[str]) -> None:
    """Read a whole checkpoint and return if it is complete and sound.

    Each item is compared with the metadata (type, shape) and with the checksums that `torch.save`
    stored with it. Of a save without collectives, the ranks that are there are looked at.

    Raises:
        DamagedCheckpoint: `problems` has what is missing or wrong, by file and item.
        RefusedGlobal: its metadata names something that no checkpoint needs.
        OSError: the directory or its metadata cannot be read.
    """
    directory = os.fspath(path)
    problems = []
    for name in _metadata_names(directory):
        metadata = load_metadata(os.path.join(directory, name))
        found = find_problems(directory, metadata)
        problems += found or _damage(directory, metadata)
    if problems:
        raise DamagedCheckpoint(directory, problems)


def _metadata_names(directory: str) -> list[str]:
    present = os.listdir(directory)
    if METADATA in present:
        return [METADATA]
    names = sorted(filter(is_rank_metadata, present))
    if not names:
        raise DamagedCheckpoint(directory, [f"there is no {METADATA}: no save came to its end"])
    return names


def find_problems(directory: str, metadata: Metadata) -> list[str]:
    """Return what is wrong, as far as the metadata and the sizes of the files tell."""
    try:
        return [
            *_gaps(metadata),
            *_overlaps(metadata),
            *_short_files(directory, metadata),
        ]
    except (AttributeError, TypeError, ValueError) as error:  # a damaged pickle makes any object
        return [f"the metadata lacks something or holds the wrong kind of it: {error}"]


def _gaps(metadata: Metadata) -> Iterator[str]:
    """Yield what the metadata describes and does not place anywhere."""
    placed: dict[str, set[tuple[int, ...] | None]] = defaultdict(set)
    for index, _ in stored_items(metadata):
        placed[index.fqn].add(None if index.offset is None else tuple(index.offset))
    for name, kind in metadata.state_dict_metadata.items():
        if not isinstance(kind, TensorStorageMetadata):
            if name not in placed:
                yield f"{name} is stored nowhere"
            continue
        for chunk in kind.chunks:
            if placed[name].isdisjoint({tuple(chunk.offsets), None}):
                yield f"{name} {list(chunk.offsets)} is stored nowhere"
        if sum(prod(chunk.sizes) for chunk in kind.chunks) < prod(kind.size):
            yield f"{name}: its parts do not make a tensor of {list(kind.size)}"


def _overlaps(metadata: Metadata) -> Iterator[str]:
    """Yield items of one file that lie over each other."""
    spans: dict[str, set[tuple[int, int]]] = defaultdict(set)
    for _, place in stored_items(metadata):
        spans[place.relative_path].add((place.offset, place.offset + place.length))
    for name, found in spans.items():
        for (_, stop), (start, _) in pairwise(sorted(found)):
            if start < stop:
                yield f"{name}: two items share byte {start}"


def _short_files(directory: str, metadata: Metadata) -> Iterator[str]:
    needed = extents(place for _, place in stored_items(metadata))
    for name, size in sorted(needed.items()):
        try:
            found = os.stat(data_path(directory, name))
        except OSError as error:
            yield f"{name}: {error.strerror}"
            continue
        if found.st_size < size:
            yield f"{name} has {found.st_size} bytes of at least {size}"


def _damage(directory: str, metadata: Metadata) -> list[str]:
    """Read every item and return what is wrong with it."""
    items = sorted(stored_items(metadata), key=lambda item: (item[1].relative_path, item[1].offset))
    watch = Watch(PATIENCE_S)
    share = -(-len(items) // READERS) or 1
    works = [
        partial(_read_items, directory, metadata, items[at : at + share], watch.beat)
        for at in range(0, len(items), share)
    ]
    return [problem for problems in watch.run(works) for problem in problems]


def _read_items(
    directory: str, metadata: Metadata, items: Iterable[tuple[Any, Any]], beat: Beat
) -> list[str]:
    problems = []
    for index, place in items:
        try:
            problem = _check_item(directory, metadata, index, place, beat)
        except OSError as error:
            problem = error.strerror or repr(error)
        except UNSOUND as error:
            problem = str(error) or repr(error)
        if problem:
            problems.append(f"{place.relative_path}, {index.fqn} at {place.offset}: {problem}")
    return problems


def _check_item(
    directory: str, metadata: Metadata, index: Any, place: Any, beat: Beat
) -> str | None:
    path = data_path(directory, place.relative_path)
    with open(path, "rb", buffering=0) as file:
        view = _View(file, place.offset, place.length, beat)
        if place.transform_descriptors:
            while view.read(CHUNK_BYTES):
                pass
            return None
        buffered = io.BufferedReader(view, CHUNK_BYTES)
        with zipfile.ZipFile(buffered) as archive:
            # Without checksums (torch.serialization.set_crc32_options) all of them are 0.
            if any(record.CRC for record in archive.infolist()):
                broken = archive.testzip()
                if broken is not None:
                    return f"{broken} does not have its checksum"
            else:
                view.seek(0)
                while view.read(CHUNK_BYTES):
                    pass
        return _compare(path, metadata, index, view)


def _compare(path: str, metadata: Metadata, index: Any, view: "_View") -> str | None:
    """Decode an item, and compare a tensor with its description, without its bytes."""
    kind = metadata.state_dict_metadata.get(index.fqn)
    view.seek(0)
    if not isinstance(kind, TensorStorageMetadata):
        # It may have classes of its own, which only the program can allow; its bytes are sound.
        with contextlib.suppress(RefusedGlobal):
            load_item(path, view)
        return None
    try:
        tensor = load_item(path, view, map_location="meta")
    except CheckpointError as error:
        return str(error)
    sizes = {
        tuple(chunk.sizes)
        for chunk in kind.chunks
        if index.offset is None or tuple(chunk.offsets) == tuple(index.offset)
    }
    if not isinstance(tensor, torch.Tensor):
        return f"is {type(tensor).__name__}, not a tensor"
    if tuple(tensor.shape) not in sizes or tensor.dtype != kind.properties.dtype:
        return f"is a tensor of {tensor.dtype} {list(tensor.shape)}, unlike the metadata"
    return _end_of_data(view)


def _end_of_data(view: "_View") -> str | None:
    """Look for what a load of the whole tensor looks for behind its bytes."""
    view.seek(0)
    record = find_tensor(view.read(HEAD_BYTES) or b"")
    if record is None or not prod(record.sizes):
        return None  # read by `torch.load` and not by us, or nothing to read
    stop = record.data_start + prod(record.sizes) * record.dtype.itemsize
    view.seek(stop)
    return None if view.read(len(DESCRIPTOR)) == DESCRIPTOR else f"no end of record at byte {stop}"


class _View(io.RawIOBase):
    """A range of a file as a file of its own. Ends early with `EOFError`, never silently."""

    def __init__(self, file: io.FileIO, start: int, length: int, beat: Beat) -> None:
        super().__init__()
        self._fd = file.fileno()
        self._start = start
        self._length = length
        self._at = 0
        self._beat = beat

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._length}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, target: Any) -> int:
        view = memoryview(target).cast("B")[: max(0, self._length - self._at)]
        if not view:
            return 0
        self._beat()
        count = os.preadv(self._fd, [view], self._start + self._at)
        if count == 0:
            raise EOFError(f"the file ends at byte {self._start + self._at}")
        self._at += count
        return count
