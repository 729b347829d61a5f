"""Decoding stored items that are no plain tensors, without running code that they may contain."""

import io
import pickle
from typing import IO, Any, cast

import torch

from ucfuse.data.checkpoint.errors import RefusedGlobal

__all__ = ["load_item"]


def load_item(path: str, stored: io.IOBase, *, map_location: str = "cpu") -> Any:
    """Return what `torch.save` stored.

    Raises `RefusedGlobal`: it names something beyond tensors, plain Python values and what the
    program itself has allowed with `torch.serialization.add_safe_globals`.
    """
    try:
        return torch.load(cast(IO[bytes], stored), map_location=map_location, weights_only=True)
    except pickle.UnpicklingError as error:
        raise RefusedGlobal(f"{path}: {_reason(stored, error)}") from error


def _reason(stored: io.IOBase, error: Exception) -> str:
    stored.seek(0)
    try:
        names = torch.serialization.get_unsafe_globals_in_checkpoint(cast(IO[bytes], stored))
    except (ValueError, RuntimeError, pickle.UnpicklingError):
        names = []
    if not names:
        return f"an item cannot be decoded: {error}"
    return (
        f"an item names {', '.join(names)}, which torch does not load unless told to. If you trust"
        " the file: torch.serialization.add_safe_globals, or UCVolumeReader(weights_only=False)"
    )
