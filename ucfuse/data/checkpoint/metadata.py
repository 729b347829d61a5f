"""Reading `.metadata` without running what a stranger may have written into it.

The file is a pickle. Only the classes that torch's own planner and writer put there are let in,
and what the program itself has named with `torch.serialization.add_safe_globals`.
"""

import io
import os
import pathlib
import pickle
from enum import EnumMeta
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata

from ucfuse.data.checkpoint.errors import DamagedCheckpoint, RefusedGlobal

__all__ = ["load_metadata"]

# By module: `Metadata` and its parts, also where older versions of torch had them.
ALLOWED = {
    "torch.distributed.checkpoint.metadata": {
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed._shard.sharded_tensor.metadata": {
        "MEM_FORMAT_ENCODING",
        "TensorProperties",
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo", "_StoragePrefix"},
    "torch.serialization": {"_get_layout"},
    "torch": {"Size"},
    "collections": {"OrderedDict"},
    "builtins": {"set", "frozenset", "slice", "complex", "bytearray"},
}

# Where each version of Python has them. Pure, so that Linux reads what Windows wrote.
PATHS = {
    "PosixPath": pathlib.PurePosixPath,
    "PurePosixPath": pathlib.PurePosixPath,
    "WindowsPath": pathlib.PureWindowsPath,
    "PureWindowsPath": pathlib.PureWindowsPath,
}


def load_metadata(path: str | os.PathLike[str]) -> Metadata:
    """Return the metadata in a file.

    Raises:
        OSError: it cannot be read; FileNotFoundError: there is no complete checkpoint.
        RefusedGlobal: it names something that no checkpoint needs.
        DamagedCheckpoint: it is cut short or not what it should be.
    """
    name = os.fspath(path)
    with open(name, "rb") as file:
        stored = file.read()
    try:
        found = _Unpickler(stored, name).load()
    except RefusedGlobal:
        raise
    except Exception as error:  # a damaged pickle raises anything
        raise DamagedCheckpoint(name, [f"cannot be decoded: {error!r}"]) from error
    if not isinstance(found, Metadata):
        raise DamagedCheckpoint(name, [f"holds {type(found).__name__}, not Metadata"])
    return found


class _Unpickler(pickle.Unpickler):
    def __init__(self, stored: bytes, path: str) -> None:
        super().__init__(io.BytesIO(stored))
        self._path = path

    def find_class(self, module: str, name: str) -> Any:
        if name in ALLOWED.get(module, ()):
            return super().find_class(module, name)
        if module in ("pathlib", "pathlib._local") and name in PATHS:
            return PATHS[name]
        if (module, name) == ("builtins", "getattr"):
            return self._enum_member
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        for safe in torch.serialization.get_safe_globals():
            known, full_name = safe if isinstance(safe, tuple) else (safe, _full_name(safe))
            if full_name == f"{module}.{name}":
                return known
        raise self._refusal(f"{module}.{name}")

    def _enum_member(self, kind: Any, name: str) -> Any:
        """Stand in for getattr, by which the first releases of Python 3.11 pickle enum members."""
        if isinstance(kind, EnumMeta) and name in kind.__members__:
            return kind.__members__[name]
        raise self._refusal(f"builtins.getattr of {kind!r}")

    def _refusal(self, what: str) -> RefusedGlobal:
        return RefusedGlobal(
            f"{self._path} names {what}, which no checkpoint needs: it was damaged or made"
            " to run code here. If it is yours, allow it: torch.serialization.add_safe_globals"
        )


def _full_name(known: Any) -> str:
    return f"{known.__module__}.{known.__qualname__}"
