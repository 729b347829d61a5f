"""`UCVolumeWriter`: torch's writer of distributed checkpoints, with no way to fail silently.

What is on disk is what torch writes, and torch reads it. Beyond that:

- An error in any thread of any rank fails the save, and then no metadata is published.
- Data files never touch those of a checkpoint that is there already, so it stays whole until the
  new metadata takes its place, in one step, after every file was seen with its full size.
- An async save begins when the one before has ended, and its failure is told (see `saves`).

Concurrency: one save at a time per object, as in torch. File operations run in threads of their
own under a `Watch`, so that one that hangs ends the save and not the training.
"""

import contextlib
import copy
import dataclasses
import logging
import os
import pickle
import sys
import threading
import uuid
from collections.abc import Iterable
from concurrent import futures
from functools import partial
from queue import Empty, Queue
from types import FrameType
from typing import Any

import torch
from torch.distributed.checkpoint import filesystem
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from ucfuse.data.checkpoint import saves
from ucfuse.data.checkpoint.errors import CheckpointError, SaveFailed, Stalled
from ucfuse.data.checkpoint.files import (
    Beat,
    CheckedFiles,
    publish,
    remove_quietly,
    sync_directory,
)
from ucfuse.data.checkpoint.layout import (
    METADATA,
    SUFFIX,
    data_path,
    extents,
    is_rank_metadata,
    metadata_name,
    stored_items,
)
from ucfuse.data.checkpoint.metadata import load_metadata
from ucfuse.data.checkpoint.staging import Staged
from ucfuse.data.checkpoint.watch import Watch

__all__ = ["UCVolumeWriter"]

log = logging.getLogger(__name__)

# Six times what a mount lets a commit wait without progress: whoever gives up first should be the
# one who knows why. It is also how long ranks wait for each other.
PATIENCE_S = 1800.0

# Looks at the files of that many ranks at the same time.
CHECKERS = 16


class UCVolumeWriter(FileSystemWriter):
    """Saves a distributed checkpoint into the directory `path`, for `dcp.save` and `async_save`.

    Takes the options of torch's `FileSystemWriter`. `patience_s`: a save in which no file operation
    ends for that long fails with `Stalled`.

    A save fails with torch's `CheckpointException`, which has the error of each rank. An async save
    waits for the one before it; a failure that nobody asked its future for is raised by the next
    save or load as `SaveFailed`, else the process prints it at its end and exits with 120.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, patience_s: float = PATIENCE_S, **options: Any
    ) -> None:
        """Touch nothing yet. Raises `ValueError`: `path` is a URL."""
        if "://" in os.fspath(path):
            raise ValueError(f"{path} is a URL: mount it and give the directory")
        if not hasattr(FileSystemWriter, "_write_data"):
            raise CheckpointError(f"torch {torch.__version__} is too old for UCVolumeWriter")
        super().__init__(path, **options)
        self.patience_s = patience_s
        self._staged_by: int | None = None
        self._unwatched = False
        self._staged = Staged()
        self._infix = ""

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Return a copy of the state, tensors included, when no other save runs any more.

        Raises `SaveFailed`: an earlier async save did, and nobody has heard.
        """
        saves.settle()
        staged = super().stage(state_dict)
        if not self.cache_staged_state_dict:
            self._staged = Staged(state_dict, staged)
        self._staged_by = threading.get_ident()
        self._unwatched = True
        return staged

    @property
    def should_synchronize_after_execute(self) -> bool:
        """False. Torch asks right after it has started the save: there its future is found."""
        if self._unwatched:
            self._unwatched = False
            saves.watch(_future_of_caller(sys._getframe(1)), self.path)
        return False

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Begin a save; unless it was staged by another thread, wait for those that run."""
        super().set_up_storage_writer(is_coordinator, *args, **kwargs)
        staged_by, self._staged_by = self._staged_by, None
        if staged_by in (None, threading.get_ident()):
            self._settle()

    def _settle(self) -> None:
        """Wait for other saves. An async one that was staged elsewhere is watched from here on."""
        future = _future_of_executor(sys._getframe(1))
        if future is None:
            saves.settle()
        elif not saves.is_watched(future):
            saves.wait(but=future)
            failure = saves.take_failure()
            saves.watch(future, self.path)
            if failure is not None:
                raise failure

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Make the directory and see what is in it."""
        rank = None if self.use_collectives else self.rank
        (self._infix,) = Watch(self.patience_s).run([partial(self._look, rank)])
        if rank is not None:
            plan = dataclasses.replace(plan, storage_data=filesystem._StoragePrefix(f"__{rank}_"))
        return plan

    def _look(self, rank: int | None) -> str:
        """Return what goes into the names of data files so that they are new in the directory."""
        os.makedirs(self.path, exist_ok=True)
        present = set(os.listdir(self.path))
        if rank is None:
            other = next(filter(is_rank_metadata, present), None)
        else:
            other = METADATA if METADATA in present else None
        if other is not None:
            raise CheckpointError(
                f"{self.path} has a checkpoint of the other kind ({other}; use_collectives):"
                " torch would load that one. Save to another directory"
            )
        if metadata_name(rank) in present and not self.overwrite:
            raise CheckpointError(f"{self.path} has a checkpoint, and overwrite is False")
        mine = f"__{self.rank or 0}_"
        is_new = not any(name.startswith(mine) for name in present)
        return "" if is_new else f"{uuid.uuid4().hex[:8]}_"

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's files. Raises the first error of any of its threads."""
        prefix = plan.storage_data.prefix + self._infix
        own = dataclasses.replace(plan, storage_data=filesystem._StoragePrefix(prefix))
        if torch.accelerator.is_available():
            # The threads below copy on streams of their own.
            torch.accelerator.synchronize()
        return super().write_data(own, planner)

    def _write_data(
        self, planner: SavePlanner, file_queue: Queue[Any]
    ) -> Future[list[WriteResult]]:
        """Write the files in the queue; torch's own method, once in each thread, does each."""
        files = _without_empty(file_queue)
        watch = Watch(self.patience_s)
        stream = CheckedFiles(watch.beat)
        lane = copy.copy(self)
        lane.fs = stream
        lane.thread_count = 1
        lane.per_thread_copy_ahead = 0
        threads = max(1, min(self.thread_count, files.qsize()))
        work = partial(FileSystemWriter._write_data, lane, planner, files)
        try:
            parts = watch.run([work] * threads)
        except Stalled:
            raise
        except BaseException:
            _remove(stream.made)
            raise
        if self.sync_files and stream.made:
            Watch(self.patience_s).run([partial(sync_directory, self.path)])
        self._staged.free()
        written: Future[list[WriteResult]] = Future()
        written.set_result([result for part in parts for result in part.value()])
        return written

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Publish the metadata: from then on there is this checkpoint, and no older one here."""
        metadata.version = getattr(filesystem, "CURRENT_DCP_VERSION", None)
        metadata.storage_data = {
            result.index: result.storage_data for written in results for result in written
        }
        metadata.storage_meta = self.storage_meta()
        needed = list(extents(metadata.storage_data.values()).items())
        checking = Watch(self.patience_s)
        checking.run(
            [
                partial(_check_sizes, os.fspath(self.path), needed[first::CHECKERS], checking.beat)
                for first in range(min(CHECKERS, len(needed)))
            ]
        )
        publishing = Watch(self.patience_s)
        publishing.run([partial(self._publish, metadata, dict(needed), publishing.beat)])

    def _publish(self, metadata: Metadata, needed: dict[str, int], beat: Beat) -> None:
        directory = os.fspath(self.path)
        name = metadata_name(None if self.use_collectives else self.rank)
        path = os.path.join(directory, name)
        beat()
        replaced = _files_of(path) - set(needed)
        draft = os.path.join(directory, f"{name}.{uuid.uuid4().hex[:8]}.tmp")
        publish(path, pickle.dumps(metadata), draft, sync=self.sync_files, beat=beat)
        _remove(data_path(directory, file) for file in replaced)

    def __getstate__(self) -> dict[str, Any]:
        if self._staged_by is None and _future_of_executor(sys._getframe(1)) is not None:
            self._settle()  # on its way to torch's checkpoint process
        return {**self.__dict__, "_staged_by": None, "_unwatched": False}


def _future_of_caller(frame: FrameType | None) -> futures.Future[Any]:
    """Return the future that torch's `async_save`, a caller, has among its variables."""
    while frame is not None and str(frame.f_globals.get("__name__")).startswith("torch."):
        for value in list(frame.f_locals.values()):
            if isinstance(value, futures.Future):
                return value
        frame = frame.f_back
    raise CheckpointError(f"cannot watch async saves of torch {torch.__version__}")


def _future_of_executor(frame: FrameType | None) -> futures.Future[Any] | None:
    """Return the future of the async save that a caller is part of, if one is."""
    in_async_save = False
    while frame is not None:
        name = str(frame.f_globals.get("__name__"))
        in_async_save |= name.startswith("torch.distributed.checkpoint._async")
        if in_async_save and name == "concurrent.futures.thread":
            found = getattr(frame.f_locals.get("self"), "future", None)
            return found if isinstance(found, futures.Future) else None
        frame = frame.f_back
    return None


def _without_empty(queue: Queue[Any]) -> Queue[Any]:
    """Return the files that have something in them: `(path, name, items)` each."""
    kept: Queue[Any] = Queue()
    with contextlib.suppress(Empty):
        while True:
            file = queue.get_nowait()
            if file[2]:
                kept.put(file)
    return kept


def _check_sizes(directory: str, needed: Iterable[tuple[str, int]], beat: Beat) -> None:
    """Raise `SaveFailed` unless data files, of any rank, are there with all their bytes."""
    for name, size in needed:
        beat()
        try:
            found = os.stat(data_path(directory, name)).st_size
        except FileNotFoundError:
            raise SaveFailed(
                f"{directory}/{name} was written and is not here: do all ranks share this"
                " directory, and does one job only save to it?"
            ) from None
        if found < size:
            raise SaveFailed(f"{directory}/{name} has {found} bytes; {size} were written")


def _files_of(path: str) -> set[str]:
    """Return the data files of the checkpoint that is about to be replaced; none if unknown."""
    try:
        older = load_metadata(path)
    except FileNotFoundError:
        return set()
    except (CheckpointError, OSError) as error:
        log.warning("%s: cannot be read, so its data files stay: %s", path, error)
        return set()
    names = {place.relative_path for _, place in stored_items(older)}
    return {name for name in names if name.endswith(SUFFIX) and "/" not in name}


def _remove(paths: Iterable[str]) -> None:
    """Remove files that no checkpoint has. What cannot be removed costs room, nothing else."""
    for path in paths:
        error = remove_quietly(path)
        if error is not None:
            log.warning("%s stays behind: %s", path, error)
