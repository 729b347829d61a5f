"""CRC64NVME, by which a store can verify what is sent and what it gives back.

S3 keeps one for every object. It is fast, and those of parts that follow each other combine to that
of the whole, in no time. Pure functions.
"""

import hashlib
from base64 import b64decode, b64encode

from ucfuse.store.api import Buffer, Checksum
from ucfuse.store.s3 import crc64

__all__ = ["NOTHING", "checksum_of", "combined", "from_text", "md5_text", "to_text"]

WIDTH_BYTES = 8
NOTHING = Checksum(0)
"""Of no bytes at all."""


def checksum_of(body: Buffer) -> Checksum:
    """Return the checksum of these bytes."""
    return Checksum(crc64.compute(body))


def combined(first: Checksum, second: Checksum, second_bytes: int) -> Checksum:
    """Return the checksum of two runs of bytes from theirs; the second has `second_bytes`."""
    return Checksum(crc64.combine(first, second, second_bytes))


def to_text(checksum: Checksum) -> str:
    """Return it as S3's headers have it."""
    return b64encode(checksum.to_bytes(WIDTH_BYTES, "big")).decode()


def from_text(text: str) -> Checksum | None:
    """Read a header; None if it is no checksum of a whole (a composite ends in `-N`)."""
    try:
        told = b64decode(text, validate=True)
    except ValueError:
        return None
    return Checksum(int.from_bytes(told, "big")) if len(told) == WIDTH_BYTES else None


def md5_text(body: Buffer) -> str:
    """Return the value of Content-MD5, for stores that know no other checksum."""
    return b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()
