"""What the values of options may be: sizes, durations, modes, owners and ports, with their limits.

Each function is a `type` of argparse: it returns the number that a text stands for, or says why it
cannot be used.
"""

import argparse
import os
from collections.abc import Callable
from typing import TypeVar

from ucfuse.errors import ConfigError
from ucfuse.units import parse_duration, parse_size
from ucfuse.volume import GiB, MiB

__all__ = [
    "default_memory_limit",
    "disk_cache",
    "duration",
    "memory_limit",
    "mode",
    "owner",
    "part_size",
    "port",
    "size",
    "timeout",
]

T = TypeVar("T")

# The largest id that the kernel takes; the one above means "nobody in particular".
MAX_OWNER = (1 << 32) - 2
MAX_PORT = (1 << 16) - 1
MIN_MEMORY_BYTES = MiB
# Enough to keep a fast network busy with parts; small machines keep three quarters for programs.
MAX_DEFAULT_MEMORY_BYTES = 1 * GiB
DEFAULT_MEMORY_SHARE = 4
# What S3 takes as a part.
MIN_PART_BYTES = 5 * MiB
MAX_PART_BYTES = 5 * GiB
MIN_DISK_CACHE_BYTES = 16 * MiB


def _type(parse: Callable[[str], T]) -> Callable[[str], T]:
    """Let argparse print the reason why a value was refused."""

    def convert(text: str) -> T:
        try:
            return parse(text)
        except ConfigError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return convert


size = _type(parse_size)
duration = _type(parse_duration)


@_type
def disk_cache(text: str) -> int:
    """Read how much the disk cache may hold, in bytes."""
    size_bytes = parse_size(text)
    if size_bytes < MIN_DISK_CACHE_BYTES:
        raise ConfigError(f"{text!r}: too little to be of use; the least is 16MiB")
    return size_bytes


@_type
def part_size(text: str) -> int:
    """Read the size of the parts of an upload, in bytes."""
    size_bytes = parse_size(text)
    if not MIN_PART_BYTES <= size_bytes <= MAX_PART_BYTES:
        raise ConfigError(f"{text!r}: a part has 5MiB to 5GiB")
    return size_bytes


@_type
def owner(text: str) -> int:
    """Read the number of a user or group."""
    if not (text.isascii() and text.isdigit()) or int(text) > MAX_OWNER:
        raise ConfigError(f"{text!r}: not the number of a user or group")
    return int(text)


@_type
def port(text: str) -> int:
    """Read the number of a TCP port."""
    if not (text.isascii() and text.isdigit()) or not 0 < int(text) <= MAX_PORT:
        raise ConfigError(f"{text!r}: not a port; write a number from 1 to {MAX_PORT}")
    return int(text)


@_type
def timeout(text: str) -> float:
    """Read a duration that is not zero, in seconds."""
    seconds = parse_duration(text)
    if seconds <= 0:
        raise ConfigError(f"{text!r}: nothing could be answered in no time; the least is 1ms")
    return seconds


@_type
def memory_limit(text: str) -> int:
    """Read how much memory all buffers may have together, in bytes."""
    size_bytes = parse_size(text)
    if size_bytes < MIN_MEMORY_BYTES:
        raise ConfigError(f"{text!r}: too little to read from; the least is 1MiB")
    return size_bytes


@_type
def mode(text: str) -> int:
    """Read the permission bits of a file or folder, in octal."""
    try:
        bits = int(text, 8)
    except ValueError:
        bits = -1
    if not 0 <= bits <= 0o777:
        raise ConfigError(f"{text!r}: not a mode; write it like 755")
    return bits


def default_memory_limit() -> int:
    """Return what `memory_limit` is unless it is given, in bytes."""
    installed_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(MAX_DEFAULT_MEMORY_BYTES, installed_bytes // DEFAULT_MEMORY_SHARE)
