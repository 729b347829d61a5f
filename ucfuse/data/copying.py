"""Copying one file into the cache, with errors of the source and of the cache told apart.

Errors of the source are `OSError`, those of the cache's disk `CacheTrouble`. `cache` decides what
is copied, where to, and under which locks.

Concurrency: functions only; whoever calls holds the lock of the copy.
"""

import contextlib
import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO

from ucfuse.data.listing import Version
from ucfuse.data.retries import Stopped
from ucfuse.data.statx import version_of_open

__all__ = ["CacheTrouble", "cache_trouble", "check_unchanged", "fill", "put_in_place"]

CHUNK_BYTES = 1 << 20


class CacheTrouble(Exception):
    """The cache's own disk refused: no reason to stop, the source can be read itself."""


@contextmanager
def cache_trouble() -> Iterator[None]:
    """Tell errors of the cache's disk from errors of the source."""
    try:
        yield
    except OSError as error:
        raise CacheTrouble from error


def fill(partial: str, source: FileIO, size: int, stop: threading.Event) -> None:
    """Copy all of `source`. Raises `Stopped`, `OSError` of the source, `CacheTrouble`."""
    # One byte more than the file has: the first read that is short is the end of it.
    buffer = memoryview(bytearray(min(size + 1, CHUNK_BYTES)))
    with contextlib.ExitStack() as stack:
        with cache_trouble():
            target = stack.enter_context(open(partial, "r+b", buffering=0))
        while count := source.readinto(buffer):
            with cache_trouble():
                _write_all(target, buffer[:count])
            if stop.is_set():
                raise Stopped


def _write_all(target: FileIO, data: memoryview) -> None:
    while data:
        data = data[target.write(data) :]


def check_unchanged(source: FileIO, version: Version) -> None:
    """Raise `OSError` (ESTALE, which is tried again) if the file changed while it was read."""
    if version_of_open(source.fileno()) != version or source.tell() != version.size:
        raise OSError(errno.ESTALE, "changed while it was copied", source.name)


def put_in_place(partial: str, path: str) -> int:
    """Rename the copy to its name; return the size of the older copy that this replaced."""
    try:
        replaced = os.stat(path).st_size
    except FileNotFoundError:
        replaced = 0
    try:
        os.replace(partial, path)
    except FileNotFoundError:  # the first copy of its directory
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.replace(partial, path)
    return replaced
