"""What one file of the disk cache holds, and how it proves that it is what was written.

Head (what the bytes are of), bytes, checksum of both. `CacheFiles` keeps such files.
"""

import os
import struct
from hashlib import blake2b

from ucfuse.store.checksums import WIDTH_BYTES, checksum_of

__all__ = ["PIECE_SUFFIX", "Piece", "checked", "read_all"]

PIECE_SUFFIX = ".part"

# Begins every file; another number for another format.
MAGIC = b"ucfuse part 1\n"


class Piece:
    """What one file holds: bytes `[start, stop)` of one version of one object, of one store."""

    __slots__ = ("head", "name", "start", "stop")

    def __init__(self, origin: tuple[str, ...], start: int, stop: int) -> None:
        """`origin` names the version among those of all stores: never two the same."""
        fields = [*(field.encode() for field in origin), b"%d" % start, b"%d" % stop]
        words = b"".join(struct.pack(">I", len(field)) + field for field in fields)
        self.head = MAGIC + struct.pack(">I", len(words)) + words
        self.name = blake2b(words, digest_size=20).hexdigest() + PIECE_SUFFIX
        self.start, self.stop = start, stop

    @property
    def file_bytes(self) -> int:
        """Length of the file."""
        return len(self.head) + self.stop - self.start + WIDTH_BYTES


def read_all(fd: int, size: int) -> memoryview | None:
    """Return the whole file, or None if it does not have `size` bytes."""
    if os.fstat(fd).st_size != size:
        return None
    content = bytearray(size)
    view = memoryview(content)
    done = 0
    while done < size:
        count = os.preadv(fd, [view[done:]], done)
        if not count:
            return None
        done += count
    return view


def checked(content: memoryview, piece: Piece) -> memoryview | None:
    """Return the bytes of the piece, or None if anything in the file is not as it was written."""
    body, told = content[:-WIDTH_BYTES], content[-WIDTH_BYTES:]
    head_bytes = len(piece.head)
    if checksum_of(body) != int.from_bytes(told, "big") or body[:head_bytes] != piece.head:
        return None
    return body[head_bytes:]
