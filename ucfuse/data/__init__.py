"""Training data and checkpoints on a volume.

`UCVolumeDataset` yields paths of local copies, shared out over ranks and workers; wrappers decode
them, `DataLoader` batches them. `UCVolumeWriter` and `UCVolumeReader` save and load distributed
checkpoints; `latest_complete`, `verify` and `prune` look after them. All take any directory and use
ordinary file operations only; they know nothing of the mount.

Needs the extra: `pip install "ucfuse[data]"`.
"""

from typing import TYPE_CHECKING, Any

from ucfuse.data.checkpointable import Checkpointable
from ucfuse.data.dataset import UCVolumeDataset
from ucfuse.data.loader import DataLoader

if TYPE_CHECKING:
    from ucfuse.data.checkpoint import (
        CheckpointError,
        DamagedCheckpoint,
        RefusedGlobal,
        SaveFailed,
        Stalled,
        UCVolumeReader,
        UCVolumeWriter,
        latest_complete,
        prune,
        verify,
    )

__all__ = [
    "CheckpointError",
    "Checkpointable",
    "DamagedCheckpoint",
    "DataLoader",
    "RefusedGlobal",
    "SaveFailed",
    "Stalled",
    "UCVolumeDataset",
    "UCVolumeReader",
    "UCVolumeWriter",
    "latest_complete",
    "prune",
    "verify",
]


def __getattr__(name: str) -> Any:
    """Import what is for checkpoints at its first use: loader workers need none of it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ucfuse.data import checkpoint

    found = getattr(checkpoint, name)
    globals()[name] = found
    return found
