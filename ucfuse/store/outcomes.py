"""Telling from what a key holds whether a change that went unanswered was carried out. Pure.

`retrying` asks before it repeats a change; `writing` foretells the ETag of an upload.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence

from ucfuse.errors import ObjectChanged
from ucfuse.store.api import Absent, Buffer, Checksum, Condition, ObjectHead, Whole
from ucfuse.volume import ETag, Key

__all__ = ["etag_of_parts", "holds", "is_made_of", "is_ours", "require_unchanged"]


def require_unchanged(key: Key, condition: Condition, present: ObjectHead | None) -> None:
    """Raise `ObjectChanged` unless the condition still holds and the change can be made again."""
    if not holds(condition, present):
        raise ObjectChanged(key, f"expected {condition}, got {present and present.info.etag}")


def holds(condition: Condition, present: ObjectHead | None) -> bool:
    match condition:
        case None:
            return True
        case Absent():
            return present is None
        case etag:
            return present is not None and present.info.etag == etag


def is_ours(
    present: ObjectHead,
    body: Buffer,
    metadata: Mapping[str, str] | None,
    checksum: Checksum | None,
) -> bool:
    """Return whether this is the version that we sent. Metadata, if sent, decides alone: another
    client's object may well have the same bytes (every empty file has)."""
    if metadata:
        return dict(present.metadata) == {name.lower(): text for name, text in metadata.items()}
    if checksum is not None and present.checksum is not None:
        # Encrypted objects have ETags that are no MD5.
        size = memoryview(body).nbytes
        return (present.info.size, present.checksum) == (size, checksum)
    return present.info.etag == f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'


def is_made_of(present: ObjectHead, expected: ETag | None, whole: Whole | None) -> bool:
    if present.info.etag == expected:
        return True
    if whole is None:
        return False
    return (present.info.size, present.checksum) == (whole.size, whole.checksum)


def etag_of_parts(parts: Sequence[ETag]) -> ETag | None:
    """Return the ETag of an object of these parts; None where the store does not use MD5."""
    digests = [etag.strip('"') for etag in parts]
    if not all(re.fullmatch("[0-9a-f]{32}", digest) for digest in digests):
        return None
    joined = b"".join(bytes.fromhex(digest) for digest in digests)
    return ETag(f'"{hashlib.md5(joined, usedforsecurity=False).hexdigest()}-{len(parts)}"')
