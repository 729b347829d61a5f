"""`Checkpointable`, and where a loader finds what it can resume."""

from collections import deque
from typing import Any, Protocol, runtime_checkable

import torch

from ucfuse.data.dataset import UCVolumeDataset

__all__ = ["Checkpointable", "find_sources"]

# Wrappers are few; this only bounds the search where somebody keeps a large structure in one.
MOST_OBJECTS = 10_000


@runtime_checkable
class Checkpointable(Protocol):
    """What can be saved in the middle of an epoch and resumed there: datasets and loaders here."""

    def state_dict(self) -> dict[str, Any]:
        """Return what `load_state_dict` needs to go on from here."""
        ...

    def load_state_dict(self, state: Any) -> None:
        """Let the next iteration go on where `state` was."""
        ...


def find_sources(dataset: object) -> list[UCVolumeDataset]:
    """Return every `UCVolumeDataset` that `dataset` is made of, in a stable order.

    Looked through, breadth first: attributes of objects that can be iterated or indexed (wrappers
    of any class), and the items of lists, tuples and dicts among them. Not seen: what is hidden in
    a closure, a generator or a `map` object.
    """
    sources: list[UCVolumeDataset] = []
    seen: dict[int, object] = {}
    pending = deque([dataset])
    while pending and len(seen) < MOST_OBJECTS:
        item = pending.popleft()
        if id(item) in seen:
            continue
        seen[id(item)] = item
        if isinstance(item, UCVolumeDataset):
            sources.append(item)
        else:
            pending.extend(_parts(item))
    return sources


def _parts(item: object) -> list[object]:
    if isinstance(item, list | tuple):
        return list(item)
    if isinstance(item, dict):
        return list(item.values())
    if isinstance(item, type | torch.Tensor | torch.nn.Module):
        return []
    if not (hasattr(type(item), "__iter__") or hasattr(type(item), "__getitem__")):
        return []
    slots = [
        getattr(item, name)
        for kind in type(item).__mro__
        for name in _slots(kind)
        if hasattr(item, name)
    ]
    return [*vars(item).values(), *slots] if hasattr(item, "__dict__") else slots


def _slots(kind: type) -> tuple[str, ...]:
    names = kind.__dict__.get("__slots__", ())
    return (names,) if isinstance(names, str) else tuple(names)
