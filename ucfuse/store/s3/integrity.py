"""How the store verifies what is sent, and how we verify what it gives back.

`client` puts a guard on every body: CRC64NVME, which the store keeps too, or Content-MD5 where it
knows no other. A whole object that comes back is checked by what the store tells of it: these, or
CRC32; a range cannot be.

Concurrency: an MD5 of many bytes is computed in a worker thread, the rest takes microseconds.
"""

import zlib
from base64 import b64decode

import trio

from ucfuse.errors import CorruptData
from ucfuse.store.api import Buffer, Bytes, Checksum
from ucfuse.store.checksums import checksum_of, md5_text, to_text
from ucfuse.store.s3 import answers
from ucfuse.store.s3.messages import Answer, Header
from ucfuse.store.s3.requests import CHECKSUM_HEADER
from ucfuse.volume import Key, KiB

__all__ = ["checksum_guard", "md5_guard", "verify_whole"]

# An MD5 of this much takes 0.4 ms; one thread there and back, with a busy loop, costs about half.
INLINE_MD5_BYTES = 256 * KiB
# Computing it leaves other threads alone; two keep up with any network that such stores have.
_threads = trio.CapacityLimiter(2)


def checksum_guard(checksum: Checksum) -> list[Header]:
    """Let the store verify a body by its checksum, and keep that."""
    return [(CHECKSUM_HEADER, to_text(checksum))]


async def md5_guard(body: Buffer) -> list[Header]:
    """Let a store that knows no better verify a body by its MD5."""
    return [("content-md5", await _md5(body))]


async def verify_whole(key: Key, data: Bytes, answer: Answer) -> None:
    """Check a whole object by what the answer tells of it. Raises `CorruptData`."""
    told = answers.checksum_told(answer)
    if told is not None:
        is_good = told == checksum_of(data)
    elif (crc32 := answers.crc32_told(answer)) is not None:
        is_good = crc32 == zlib.crc32(data)
    elif answers.is_md5(answer):
        is_good = b64decode(await _md5(data)).hex() == answers.etag_of(answer).strip('"')
    else:
        return
    if not is_good:
        raise CorruptData(key, f"{len(data)} bytes that are not those of {answers.etag_of(answer)}")


async def _md5(data: Buffer) -> str:
    if memoryview(data).nbytes <= INLINE_MD5_BYTES:
        return md5_text(data)
    return await trio.to_thread.run_sync(md5_text, data, limiter=_threads)
