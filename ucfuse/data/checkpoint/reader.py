"""`UCVolumeReader`: torch's reader of distributed checkpoints, faster and careful.

It reads what is wanted and nothing else: in the order of the files, each byte once, in several
threads, straight into the tensors. It reads checkpoints of torch's writer as well as ours.

It never runs code from a checkpoint (see `metadata` and `items`), and never loads from before a
save of this process that still runs or that failed unheard (see `saves`).

Concurrency: one load at a time per object. The planner is called in the caller's thread only.
"""

import contextlib
import dataclasses
import io
import os
from collections.abc import Iterable, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.futures import Future

from ucfuse.data.checkpoint import saves
from ucfuse.data.checkpoint.errors import CheckpointError, DamagedCheckpoint, SaveFailed
from ucfuse.data.checkpoint.items import load_item
from ucfuse.data.checkpoint.layout import data_path, metadata_name
from ucfuse.data.checkpoint.metadata import load_metadata
from ucfuse.data.checkpoint.reading import memory_of, read_share
from ucfuse.data.checkpoint.shares import Item, Step, Wanted, plan_shares
from ucfuse.data.checkpoint.watch import Watch

__all__ = ["UCVolumeReader"]

# Beyond what a mount lets a read wait, with room for its retries.
PATIENCE_S = 600.0
# Files that are read at the same time.
READERS = 4


class UCVolumeReader(FileSystemReader):
    """Loads a distributed checkpoint from the directory `path`, for `dcp.load`.

    `readers`: files that each rank reads at the same time. `weights_only`: refuse values that are
    neither tensors nor plain Python (`RefusedGlobal`), since decoding them can run code; False: for
    files that you trust. `patience_s`: a load in which no read ends for that long fails.

    A load waits for async saves of this process, and raises `SaveFailed` for one that failed
    unheard. It fails with torch's `CheckpointException`, which has the error of each rank.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        readers: int = READERS,
        weights_only: bool = True,
        patience_s: float = PATIENCE_S,
        **options: Any,
    ) -> None:
        """Read nothing yet. Raises `ValueError`: `path` is a URL; `readers` is below 1."""
        if "://" in os.fspath(path):
            raise ValueError(f"{path} is a URL: mount it and give the directory")
        if readers < 1:
            raise ValueError(f"readers is {readers}: at least one is needed")
        super().__init__(path, **options)
        self.readers = readers
        self.weights_only = weights_only
        self.patience_s = patience_s
        self._failure: SaveFailed | None = None
        self._save_id: str | None = None
        self._kinds: dict[str, Any] = {}

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begin a load."""
        super().reset(checkpoint_id)
        self._failure = None

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Return the metadata of all ranks, or with `rank` that of one saved without collectives.

        Raises `OSError`, `RefusedGlobal`, `DamagedCheckpoint`, `SaveFailed`.
        """
        # Torch tries both kinds, and would take the second for an answer to an error of the first.
        saves.wait()
        self._failure = self._failure or saves.take_failure()
        if self._failure is not None:
            raise self._failure
        path = os.path.join(self.path, metadata_name(kwargs.get("rank")))
        (metadata,) = Watch(self.patience_s).run([partial(load_metadata, path)])
        if metadata.storage_meta is None:
            metadata.storage_meta = StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        """Remember where everything lies."""
        super().set_up_storage_reader(metadata, is_coordinator, *args, **kwargs)
        self._save_id = metadata.storage_meta.save_id if metadata.storage_meta else None
        self._kinds = metadata.state_dict_metadata

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Tell the coordinator which save this rank sees."""
        return dataclasses.replace(plan, storage_data=self._save_id)

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Make sure that all ranks load the same save. Raises `CheckpointError`."""
        if len({plan.storage_data for plan in plans}) > 1:
            raise CheckpointError(
                f"{self.path} was replaced while ranks began to load it: load again"
            )
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read what the plan says into the tensors that the planner gives.

        Raises `OSError`, `DamagedCheckpoint`, `RefusedGlobal`.
        """
        items: dict[Any, Item] = {}
        tensors: list[tuple[ReadItem, torch.Tensor]] = []
        blobs: list[tuple[ReadItem, torch.Tensor]] = []
        for request in plan.items:
            place = self.storage_data[request.storage_index]
            if request.type == LoadItemType.BYTE_IO or place.transform_descriptors:
                blobs.append((request, self._add_blob(items, place)))
            else:
                target = planner.resolve_tensor(request).detach()
                self._add_tensor(items, request, place, target)
                tensors.append((request, target))
        self._read(items.values())
        for request, target in tensors:
            planner.commit_tensor(request, target)
        for request, blob in blobs:
            self._deliver(request, blob, planner)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _read(self, items: Iterable[Item]) -> None:
        """Read each file in one thread, the largest share first."""
        watch = Watch(self.patience_s)
        shares: SimpleQueue[list[Step]] = SimpleQueue()
        for share in plan_shares(items):
            shares.put(share)

        def read() -> None:
            with contextlib.suppress(Empty):
                while True:
                    read_share(shares.get_nowait(), watch.beat)

        watch.run([read] * min(self.readers, shares.qsize()))

    def _add_blob(self, items: dict[Any, Item], place: Any) -> torch.Tensor:
        """Want all bytes of an item; return where they will be."""
        path = data_path(self.path, place.relative_path)
        key = (path, place.offset, place.length, "raw")
        if key not in items:
            sizes = (place.length,)
            item = Item(path, place.offset, place.length, torch.uint8, sizes, is_raw=True)
            item.wanted.append(Wanted(torch.empty(sizes, dtype=torch.uint8), (0,), sizes))
            items[key] = item
        return items[key].wanted[0].target

    def _add_tensor(
        self, items: dict[Any, Item], request: ReadItem, place: Any, target: torch.Tensor
    ) -> None:
        """Want a box of a stored tensor. Raises `DamagedCheckpoint`."""
        if tuple(target.shape) != tuple(request.lengths):
            raise CheckpointError(
                f"{request.dest_index.fqn}: {list(request.lengths)} is loaded into a tensor of"
                f" {list(target.shape)}"
            )
        if target.numel() == 0:
            return
        path = data_path(self.path, place.relative_path)
        key = (path, place.offset, place.length)
        if key not in items:
            dtype, sizes = self._kind_of(request.storage_index)
            items[key] = Item(path, place.offset, place.length, dtype, sizes)
        box = tuple(request.storage_offsets), tuple(request.lengths)
        items[key].wanted.append(Wanted(target, *box))

    def _kind_of(self, index: Any) -> tuple[torch.dtype, tuple[int, ...]]:
        """Return dtype and sizes of a stored chunk, as the metadata has them."""
        kind = self._kinds.get(index.fqn)
        if isinstance(kind, TensorStorageMetadata):
            hint = index.index
            chunks: Sequence[Any] = kind.chunks
            if hint is not None and hint < len(chunks):
                chunks = [chunks[hint], *chunks]
            for chunk in chunks:
                if index.offset is None or tuple(chunk.offsets) == tuple(index.offset):
                    return kind.properties.dtype, tuple(chunk.sizes)
        raise DamagedCheckpoint(
            os.fspath(self.path), [f"its metadata does not describe {index.fqn} {index.offset}"]
        )

    def _deliver(self, request: ReadItem, blob: torch.Tensor, planner: LoadPlanner) -> None:
        """Decode an item that is no plain stored tensor, and hand it over."""
        place = self.storage_data[request.storage_index]
        path = data_path(self.path, place.relative_path)
        stored = io.BytesIO(memory_of(blob))
        if place.transform_descriptors:
            stream = self.transforms.transform_load_stream(
                request, place.transform_descriptors, stored
            )
            stored = io.BytesIO(stream.read(-1))
        if request.type == LoadItemType.BYTE_IO:
            if self.weights_only:
                # The planner decodes again, without limits: what it gets was seen to be harmless.
                load_item(path, stored)
                stored.seek(0)
            planner.load_bytes(request, stored)
            return
        tensor = load_item(path, stored)
        target = planner.resolve_tensor(request).detach()
        for dimension, (begin, length) in enumerate(
            zip(request.storage_offsets, request.lengths, strict=True)
        ):
            tensor = tensor.narrow(dimension, begin, length)
        target.copy_(tensor)
        planner.commit_tensor(request, target)
