"""Whether the store has the object that an upload was to make.

`upload` and `recovery` ask before they send bytes again, since a request that nobody heard of may
have been carried out; `upload` and `copies` ask after each completion, since another change of the
key may have won although it answered success.
"""

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ucfuse.errors import ObjectChanged, ObjectMissing
from ucfuse.store.api import Buffer, Checksum, ObjectHead, ObjectStore
from ucfuse.volume import ETag, Key, MiB, ObjectInfo

__all__ = ["SINGLE_PUT_BYTES", "Expected", "confirmed"]

SINGLE_PUT_BYTES = 8 * MiB
"""Up to this size a file is one PUT, whose ETag is an MD5 where the store uses it."""


@dataclass(frozen=True, slots=True)
class Expected:
    """The object that one attempt was to make. None: that cannot be told beforehand."""

    size: int
    etag: ETag | None
    checksum: Checksum | None

    async def is_made(
        self, present: ObjectHead, read_body: Callable[[], Awaitable[Buffer]]
    ) -> bool:
        """Say whether this is what the store has; `read_body` gives all bytes of the file."""
        if self.etag is not None and present.info.etag == self.etag:
            return True
        if self.checksum is None or present.info.size != self.size:
            return False
        if present.checksum is not None:
            return present.checksum == self.checksum
        if self.size > SINGLE_PUT_BYTES:
            return False
        digest = hashlib.md5(await read_body(), usedforsecurity=False).hexdigest()
        return present.info.etag == f'"{digest}"'


async def confirmed(store: ObjectStore, key: Key, etag: ETag) -> ObjectInfo:
    """Return what the key holds now, which must be what the completion of an upload answered.

    The order among writers is that of the beginnings of their uploads, so a PUT or DELETE since
    then may have won unseen. Raises `ObjectChanged`.
    """
    try:
        info = (await store.head(key)).info
    except ObjectMissing:
        raise ObjectChanged(key, "it was removed during the upload") from None
    if info.etag != etag:
        raise ObjectChanged(key, f"expected {etag} after the upload, got {info.etag}")
    return info
