"""Durations and sizes as users write them: the one rule of every option.

The command line parses with it, `status` and messages print with it. Pure text and numbers.
"""

import re

from ucfuse.errors import ConfigError

__all__ = ["duration_text", "latency_text", "parse_duration", "parse_size", "size_text"]

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_BYTES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]+)?)([A-Za-z]*)", re.ASCII)


def parse_duration(text: str) -> float:
    """Return seconds. Raises `ConfigError` unless it is a number with `ms`, `s`, `m` or `h`."""
    value = _scaled(text, _SECONDS)
    if value is None:
        raise ConfigError(f"{text!r}: not a duration; write it like 250ms, 10s, 5m or 1h")
    return value


def parse_size(text: str) -> int:
    """Return bytes. Raises `ConfigError` unless it is a number with `B`, `KiB`, `MiB`, ...

    `MB` is refused: to half of its readers it means a million bytes, to the other half 2**20.
    """
    value = _scaled(text, _BYTES)
    if value is None:
        raise ConfigError(f"{text!r}: not a size; write it like 4096B, 512MiB or 2GiB")
    return int(value)


def duration_text(seconds: float) -> str:
    """Return a short duration for people: `0.3s`, `12s`, `5m03s`, `2h00m`."""
    if seconds < 10:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(int(seconds), 60)
    if not minutes:
        return f"{rest}s"
    hours, minutes_left = divmod(minutes, 60)
    return f"{hours}h{minutes_left:02}m" if hours else f"{minutes}m{rest:02}s"


def latency_text(seconds: float) -> str:
    """Return the time of one request for people: `85us`, `3.2ms`, `1.50s`."""
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f}us"
    return f"{seconds * 1000:.1f}ms" if seconds < 1 else f"{seconds:.2f}s"


def size_text(size_bytes: int) -> str:
    """Return a short size for people: `17B`, `4.0KiB`, `1.5GiB`."""
    for unit, factor in reversed(_BYTES.items()):
        if factor > 1 and size_bytes >= factor:
            return f"{size_bytes / factor:.1f}{unit}"
    return f"{size_bytes}B"


def _scaled(text: str, factors: dict[str, float] | dict[str, int]) -> float | None:
    match = _QUANTITY.fullmatch(text.strip())
    if match is None or match[2] not in factors:
        return None
    return float(match[1]) * factors[match[2]]
