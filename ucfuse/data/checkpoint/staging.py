"""The memory of a staged state: given back when it is written, not when the last frame is gone.

Executor and planner hold the copy for a moment after a save has ended. Without this, the copy for
the next save would now and then be made beside it. What is freed goes back to the system: malloc
keeps blocks of such size for itself once it has seen a few, and up to a whole state piles up.
"""

import ctypes
import weakref
from collections.abc import Iterator
from typing import Any

import torch

__all__ = ["Staged"]


class Staged:
    """Tensors that staging made. Does not keep them alive. Empty when unpickled."""

    def __init__(self, state: Any = None, staged: Any = None) -> None:
        """Remember the tensors of `staged` that share no memory with those of `state`."""
        kept = {tensor.untyped_storage().data_ptr() for tensor in _tensors(state)}
        self._tensors = [
            weakref.ref(tensor)
            for tensor in _tensors(staged)
            if tensor.untyped_storage().data_ptr() not in kept
        ]

    def free(self) -> None:
        """Give their memory back. Nobody may read them after this."""
        for reference in self._tensors:
            tensor = reference()
            if tensor is not None:
                tensor.untyped_storage().resize_(0)
        if self._tensors:
            self._tensors.clear()
            _trim(0)

    def __reduce__(self) -> tuple[type["Staged"], tuple[()]]:
        return Staged, ()


def _keep(_: int) -> None:
    """A C library without `malloc_trim` keeps what it likes."""


# Each save once: it takes milliseconds.
_trim = getattr(ctypes.CDLL(None), "malloc_trim", _keep)


def _tensors(state: Any) -> Iterator[torch.Tensor]:
    """Yield the plain tensors in nested dicts, lists and tuples, on whatever device."""
    if isinstance(state, dict):
        state = state.values()
    elif not isinstance(state, list | tuple):
        if type(state) in (torch.Tensor, torch.nn.Parameter) and state.layout == torch.strided:
            yield state
        return
    for value in state:
        yield from _tensors(value)
