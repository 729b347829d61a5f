"""Holding a file's pages in the kernel's page cache: mlock(2)."""

import ctypes
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["pages_held"]

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.mlock.argtypes = _libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
FAILED = ctypes.c_void_p(-1).value


@contextmanager
def pages_held(path: Path) -> Iterator[None]:
    """Keep the kernel from taking pages of the file back, as it may at any time; it still drops
    them when it learns that the file has changed.

    Opens the file, and reads what is not there. Users who may not lock so much hold nothing.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        address = _libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0)
    assert address != FAILED, os.strerror(ctypes.get_errno())
    try:
        if _libc.mlock(address, size):
            assert os.geteuid(), os.strerror(ctypes.get_errno())
        yield
    finally:
        _libc.munmap(address, size)
