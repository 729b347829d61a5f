"""From what the user, or a catalog, names to a `Source`: `s3://BUCKET[/PREFIX]` or `memory:`.

Also which names catalogs, schemas and volumes can have. Pure.
"""

import re

from ucfuse.config import Source
from ucfuse.errors import ConfigError

__all__ = ["MEMORY_SOURCE", "NAME_PARTS", "can_be_part", "parse_source", "parse_volume_name"]

MEMORY_SOURCE = "memory:"
_SCHEME = "s3://"
# Older stores allow upper case, `_` and up to 255 characters; what they refuse they say themselves.
# This only keeps out what would change the meaning of a URL.
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}", re.ASCII)
_MAX_KEY_BYTES = 1024

# No space, no control character, no `/` or `.` in it: what Unity Catalog takes as a name, and what
# can be a directory's name.
_NAME = re.compile(r"[^\s./\x00-\x1f\x7f]+")
_MAX_NAME_BYTES = 255
NAME_PARTS = 3


def parse_source(text: str) -> Source:
    """Return the source that `text` names. Raises `ConfigError`.

    A prefix names a directory: `s3://b/data` and `s3://b/data/` are the same.
    """
    if text == MEMORY_SOURCE:
        return Source(bucket=None)
    if not text.startswith(_SCHEME):
        raise ConfigError(f"{text!r}: not a source; write s3://BUCKET or s3://BUCKET/PREFIX")
    bucket, _, prefix = text.removeprefix(_SCHEME).partition("/")
    if not _BUCKET.fullmatch(bucket):
        raise ConfigError(f"{text!r}: {bucket!r} cannot be a bucket; write s3://BUCKET/PREFIX")
    return Source(bucket, _directory_prefix(text, prefix))


def _directory_prefix(text: str, prefix: str) -> str:
    if not prefix:
        return ""
    prefix = prefix.removesuffix("/")
    segments = prefix.split("/")
    if any(segment in ("", ".", "..") or "\0" in segment for segment in segments):
        raise ConfigError(f"{text!r}: a prefix has no empty, '.' or '..' part; leave it out")
    try:
        length = len(prefix.encode())
    except UnicodeEncodeError as error:
        raise ConfigError(f"{text!r}: a prefix is UTF-8; mount a part above it") from error
    if length >= _MAX_KEY_BYTES:
        raise ConfigError(f"{text!r}: the prefix is longer than a key may be; shorten it")
    return prefix + "/"


def can_be_part(text: str) -> bool:
    """Say whether a catalog, schema or volume can have this name."""
    return bool(_NAME.fullmatch(text)) and len(text.encode(errors="replace")) <= _MAX_NAME_BYTES


def parse_volume_name(name: str) -> tuple[str, ...] | None:
    """Return the parts of `catalog.schema.volume`; None: it is no such name."""
    parts = tuple(name.split("."))
    fits = len(parts) == NAME_PARTS and all(can_be_part(part) for part in parts)
    return parts if fits else None
