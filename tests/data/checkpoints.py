"""States to save, and what the checkpoint tests ask of them."""

import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp

from ucfuse.data import UCVolumeReader

__all__ = ["MIXED_DTYPES", "blank", "equal", "load", "mixed_state", "small_state"]

MIXED_DTYPES = (
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int8,
    torch.uint8,
    torch.uint16,
    torch.bool,
    torch.complex64,
    torch.float8_e4m3fn,
)


def small_state(seed: int) -> dict[str, Any]:
    """Return a model, an optimizer and a number; different for each seed."""
    generator = torch.Generator().manual_seed(seed)
    weights = {f"layer{n}": torch.randn(40, 9, generator=generator) for n in range(4)}
    moments = {name: torch.randn(40, 9, generator=generator) for name in weights}
    return {"model": weights, "optim": moments, "step": seed}


def mixed_state(seed: int) -> dict[str, Any]:
    """Return tensors of all kinds, dtypes and layouts, and values that are no tensors."""
    generator = torch.Generator().manual_seed(seed)
    plain = torch.randn(70, 31, generator=generator)
    return {
        "model": {
            **{str(dtype): plain.mul(9).to(dtype) for dtype in MIXED_DTYPES},
            "scalar": torch.tensor(1.5 * seed),
            "empty": torch.empty(0, 3),
            "transposed": plain.t(),
            "slice": plain[3:, 2:9],
            "conjugate": torch.randn(5, 6, dtype=torch.complex64, generator=generator).conj(),
            "channels": torch.randn(2, 3, 4, 5, generator=generator).to(
                memory_format=torch.channels_last
            ),
            "parameter": torch.nn.Parameter(plain.clone()),
            "large": torch.randn(3_000_000, generator=generator),
        },
        "list": [seed, "text", None, {"nested": torch.ones(3) * seed}],
        "step": seed,
    }


def blank(value: Any) -> Any:
    """Return the same structure with nothing in it."""
    if isinstance(value, torch.Tensor):
        return torch.zeros_like(value.detach())
    if isinstance(value, dict):
        return {key: blank(each) for key, each in value.items()}
    if isinstance(value, list):
        return [blank(each) for each in value]
    return None


def equal(one: Any, other: Any) -> bool:
    """Say whether two states are the same, to the bit where they are tensors."""
    if isinstance(one, torch.Tensor):
        raw = [each.detach().resolve_conj().contiguous().view(-1) for each in (one, other)]
        same = one.dtype == other.dtype and one.shape == other.shape
        return same and torch.equal(*(each.view(torch.uint8) for each in raw))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


def load(like: Any, path: str | os.PathLike[str] | Path) -> Any:
    """Return what a checkpoint has for the keys of `like`."""
    state = blank(like)
    dcp.load(state, storage_reader=UCVolumeReader(path), no_dist=True)
    return state
