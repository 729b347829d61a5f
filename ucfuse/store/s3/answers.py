"""What the headers of S3's answers say, as the words of the domain. Pure functions.

`client` uses it; bodies in XML are `xml`'s.
"""

import re
from base64 import b64decode
from calendar import timegm
from collections.abc import Mapping

from ucfuse.store.api import Checksum, Fetched, ObjectHead
from ucfuse.store.checksums import from_text
from ucfuse.store.s3.messages import Answer
from ucfuse.store.s3.requests import CHECKSUM_HEADER, METADATA_PREFIX
from ucfuse.store.s3.xml import MalformedAnswer
from ucfuse.volume import ETag, Key, ObjectInfo

__all__ = [
    "checksum_told",
    "crc32_told",
    "etag_of",
    "fetched_of",
    "head_of",
    "is_md5",
    "parse_http_date",
]

_CRC32_HEADER = "x-amz-checksum-crc32"
_CRC32_BYTES = 4
_OWN_KEY_HEADER = "x-amz-server-side-encryption-customer-algorithm"
_MD5_ETAG = re.compile('"[0-9a-f]{32}"')
_MONTHS = "JanFebMarAprMayJunJulAugSepOctNovDec"


def etag_of(answer: Answer) -> ETag:
    """Return the ETag header. Raises `MalformedAnswer`."""
    return ETag(_header(answer.headers, "etag"))


def head_of(key: Key, answer: Answer) -> ObjectHead:
    """Read the answer to a HEAD. Raises `MalformedAnswer`."""
    info = _info_of(key, int(_header(answer.headers, "content-length")), answer)
    metadata = {
        name.removeprefix(METADATA_PREFIX): value
        for name, value in answer.headers.items()
        if name.startswith(METADATA_PREFIX)
    }
    return ObjectHead(info, metadata, checksum_told(answer))


def checksum_told(answer: Answer) -> Checksum | None:
    """Return the checksum of the whole object, if the answer has it."""
    return from_text(answer.headers.get(CHECKSUM_HEADER, ""))


def crc32_told(answer: Answer) -> int | None:
    """Return the CRC32 of the whole object, if the answer has it: what many clients upload with."""
    try:
        told = b64decode(answer.headers.get(_CRC32_HEADER, ""), validate=True)
    except ValueError:  # that of parts, which ends in `-N`
        return None
    return int.from_bytes(told, "big") if len(told) == _CRC32_BYTES else None


def is_md5(answer: Answer) -> bool:
    """Whether the ETag is the MD5 of the bytes. Of those encrypted by a key of one's own it is
    not, though it looks the same."""
    encryption = answer.headers.get("x-amz-server-side-encryption", "AES256")
    is_plain = encryption == "AES256" and _OWN_KEY_HEADER not in answer.headers
    return is_plain and _MD5_ETAG.fullmatch(answer.headers.get("etag", "")) is not None


def fetched_of(
    key: Key, start: int, stop: int, answer: Answer, *, is_whole: bool = False
) -> Fetched:
    """Read the answer to a GET. Raises `MalformedAnswer` unless every byte is there."""
    data = answer.body
    if is_whole and "content-range" not in answer.headers:
        content_range = f"bytes {start}-{stop - 1}/{stop}"
    else:
        content_range = _header(answer.headers, "content-range")
    told, _, total = content_range.removeprefix("bytes ").partition("/")
    size = int(total)
    if told != f"{start}-{min(stop, size) - 1}" or len(data) != min(stop, size) - start:
        raise MalformedAnswer(f"cut: {len(data)} bytes of {start}-{stop}, told {content_range}")
    return Fetched(_info_of(key, size, answer), start, data)


def parse_http_date(text: str) -> int | None:
    """Return the seconds since the epoch of `Sun, 29 Nov 2026 14:05:06 GMT`; None if it is none.

    By position: the library's parser takes as long as the rest of an answer together.
    """
    try:
        day, month, year = int(text[5:7]), _MONTHS.index(text[8:11]) // 3 + 1, int(text[12:16])
        hour, minute, second = int(text[17:19]), int(text[20:22]), int(text[23:25])
    except ValueError:
        return None
    return timegm((year, month, day, hour, minute, second))


def _info_of(key: Key, size: int, answer: Answer) -> ObjectInfo:
    mtime_s = parse_http_date(answer.headers.get("last-modified", ""))
    return ObjectInfo(key, size, etag_of(answer), mtime_s)


def _header(headers: Mapping[str, str], name: str) -> str:
    try:
        return headers[name]
    except KeyError:
        raise MalformedAnswer(f"no {name} header") from None
