"""What saving and loading checkpoints can fail with, beside `OSError`.

All can be pickled: torch sends the errors of one rank to all others.
"""

import pickle
from collections.abc import Sequence

__all__ = [
    "CheckpointError",
    "DamagedCheckpoint",
    "RefusedGlobal",
    "SaveFailed",
    "Stalled",
]


class CheckpointError(RuntimeError):
    """Anything that is wrong with a checkpoint, its saving or its loading."""


class SaveFailed(CheckpointError):
    """A save did not come to its end, so its checkpoint does not exist."""


class Stalled(CheckpointError):
    """A file operation gave no answer for longer than the patience of its caller."""


class RefusedGlobal(CheckpointError, pickle.UnpicklingError):
    """A pickle names a class or function that a checkpoint has no need of."""


class DamagedCheckpoint(CheckpointError):
    """Something that the metadata names is not there, or not as it says. `problems` has each."""

    def __init__(self, path: str, problems: Sequence[str]) -> None:
        super().__init__(path, problems)
        self.path = path
        self.problems = list(problems)

    def __str__(self) -> str:
        return f"{self.path}: not a complete checkpoint:\n  " + "\n  ".join(self.problems)
