"""Distributed checkpoints on a volume, or in any directory: saved and loaded by torch's `dcp`.

`UCVolumeWriter` and `UCVolumeReader` take the place of torch's `FileSystemWriter` and
`FileSystemReader`; the files are the same. `latest_complete`, `verify` and `prune` look after a
directory of checkpoints.
"""

from ucfuse.data.checkpoint.errors import (
    CheckpointError,
    DamagedCheckpoint,
    RefusedGlobal,
    SaveFailed,
    Stalled,
)
from ucfuse.data.checkpoint.reader import UCVolumeReader
from ucfuse.data.checkpoint.retention import latest_complete, prune
from ucfuse.data.checkpoint.verify import verify
from ucfuse.data.checkpoint.writer import UCVolumeWriter

__all__ = [
    "CheckpointError",
    "DamagedCheckpoint",
    "RefusedGlobal",
    "SaveFailed",
    "Stalled",
    "UCVolumeReader",
    "UCVolumeWriter",
    "latest_complete",
    "prune",
    "verify",
]
