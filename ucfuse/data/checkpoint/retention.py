"""Finding the newest complete checkpoint below a directory, and removing old ones.

A checkpoint is complete when its `.metadata` is there and names only files that have the bytes.
Those saved without collectives (one `__N.metadata` per rank) do not count: nothing in them says
how many ranks there were.
"""

import os
import re
import shutil
from dataclasses import dataclass

from ucfuse.data.checkpoint import saves
from ucfuse.data.checkpoint.errors import CheckpointError
from ucfuse.data.checkpoint.files import sync_directory
from ucfuse.data.checkpoint.layout import METADATA
from ucfuse.data.checkpoint.metadata import load_metadata
from ucfuse.data.checkpoint.verify import find_problems

__all__ = ["latest_complete", "prune"]

# What `prune` makes of the metadata: no longer a checkpoint, and known as begun.
PRUNED = ".metadata.pruned"


@dataclass(frozen=True, slots=True)
class _Found:
    path: str
    published_at_ns: int

    @property
    def age(self) -> tuple[int, list[tuple[int, str]]]:
        """Orders by time of publication. Within the same second of a store, step_10 is after
        step_9."""
        parts = re.split(r"(\d+)", os.path.basename(self.path))
        return self.published_at_ns, [
            (int(part), "") if part.isdigit() else (-1, part) for part in parts if part
        ]


def latest_complete(root: str | os.PathLike[str]) -> str | None:
    """Return the path of the newest complete checkpoint among the directories in `root`, or None.

    None also if there is no `root` yet. Newest is what was published last; async saves of this
    process are waited for. Bytes are not read (`verify` does). Raises `OSError`: `root` cannot be
    listed, or it cannot be told whether one is complete; `Stalled`: a save does not end.
    """
    saves.wait()
    try:
        candidates = _newest_first(os.fspath(root))
    except FileNotFoundError:
        return None
    for found in candidates:
        if _is_complete(found.path):
            return found.path
    return None


def prune(root: str | os.PathLike[str], keep: int) -> list[str]:
    """Remove checkpoints older than the newest `keep` complete ones; return what was removed.

    A checkpoint stops being one before its first file goes, and what an interrupted `prune` left
    is removed too. Directories without metadata are left alone: they may be saves under way.
    Raises `ValueError`: `keep` is below 1; `OSError`.
    """
    if keep < 1:
        raise ValueError(f"keep is {keep}: the newest complete checkpoint is never removed")
    directory = os.fspath(root)
    complete = 0
    removed = []
    for found in _newest_first(directory):
        if complete < keep:
            complete += _is_complete(found.path)
            continue
        os.replace(os.path.join(found.path, METADATA), os.path.join(found.path, PRUNED))
        sync_directory(found.path)
        removed.append(found.path)
    removed += [path for path in _half_removed(directory) if path not in removed]
    for path in removed:
        _remove(path)
    return sorted(removed)


def _newest_first(root: str) -> list[_Found]:
    """Return every directory in `root` that has metadata."""
    found = []
    with os.scandir(root) as entries:
        for entry in entries:
            if not entry.is_dir():
                continue
            try:
                metadata = os.stat(os.path.join(entry.path, METADATA))
            except (FileNotFoundError, NotADirectoryError):
                continue
            found.append(_Found(entry.path, metadata.st_mtime_ns))
    return sorted(found, key=lambda each: each.age, reverse=True)


def _is_complete(path: str) -> bool:
    try:
        metadata = load_metadata(os.path.join(path, METADATA))
        return not find_problems(path, metadata)
    except (FileNotFoundError, CheckpointError):
        return False


def _half_removed(root: str) -> list[str]:
    with os.scandir(root) as entries:
        return [
            entry.path
            for entry in entries
            if entry.is_dir()
            and os.path.exists(os.path.join(entry.path, PRUNED))
            and not os.path.exists(os.path.join(entry.path, METADATA))
        ]


def _remove(path: str) -> None:
    """Remove a directory, the mark that says so last."""
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.name == PRUNED:
                continue
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            else:
                os.unlink(entry.path)
    os.unlink(os.path.join(path, PRUNED))
    os.rmdir(path)
