"""What every store can do: the one interface between the file system and a bucket.

Implemented by `s3` and `memory`; `metered` counts requests and `retrying` repeats them, both
around any store. `connect` builds the stack. `names`, `reading`, `writing` and `fs` use it.

Contract of every method:
- It is cancellable at any time and then leaves nothing running that could still change the store
  or touch the caller's buffers. The deadline is the caller's cancel scope; no method has its own
  idea of patience except `retrying`, which stops early when a repeat cannot fit the scope.
- It raises only causes from `errors.py`, and all of them may raise `AccessDenied`, `Throttled`,
  `StoreUnavailable` and `StoreRefused`.
- Ranges are `[start, stop)`. ETags are passed through verbatim.
- A store itself never repeats a request; `retrying` alone does.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NewType, Protocol

from ucfuse.volume import ETag, Key, ObjectInfo

__all__ = [
    "ABSENT",
    "Absent",
    "Buffer",
    "Bytes",
    "Checksum",
    "Condition",
    "Fetched",
    "IN_FLIGHT_COPIES",
    "ListPage",
    "NotModified",
    "ObjectHead",
    "ObjectStore",
    "UploadId",
    "Whole",
]

Buffer = bytes | bytearray | memoryview
Bytes = bytes | bytearray
"""What a store hands out, for nobody to change."""

IN_FLIGHT_COPIES = 2
"""How often the bytes of a GET are in memory while it runs: as the native client or the kernel
receives them, and as they are handed out. Whoever counts memory reserves as much."""
UploadId = NewType("UploadId", str)
Checksum = NewType("Checksum", int)
"""CRC64NVME of some bytes. Given with a body, the store verifies it (`CorruptData` if it differs)
and keeps it, where it can."""


@dataclass(frozen=True, slots=True)
class Absent:
    """The condition that no object has the key (If-None-Match: *)."""


ABSENT = Absent()
Condition = ETag | Absent | None
"""An ETag: replace exactly this version. ABSENT: create. None: whatever is there."""


@dataclass(frozen=True, slots=True)
class ObjectHead:
    """Answer of HEAD: the version and its user metadata (names in lower case, no prefix).

    `checksum`: of the whole object, where the store keeps one.
    """

    info: ObjectInfo
    metadata: Mapping[str, str] = field(default_factory=dict)
    checksum: Checksum | None = None


@dataclass(frozen=True, slots=True)
class Whole:
    """What an object of several parts must be as a whole: verified like the checksum of a body."""

    size: int
    checksum: Checksum


@dataclass(frozen=True, slots=True)
class Fetched:
    """Bytes `[start, start + len(data))` of the version `info` (its whole size in `info.size`)."""

    info: ObjectInfo
    start: int
    data: Bytes


@dataclass(frozen=True, slots=True)
class NotModified:
    """The key still holds the version with the ETag that was asked about (304)."""

    etag: ETag


@dataclass(frozen=True, slots=True)
class ListPage:
    """One page of a listing in key order (UTF-8 bytes, which is Python's order of `str`).

    `objects`: keys that are direct children (with `delimited`), or all keys below the prefix.
    `prefixes`: full key prefixes of sub-directories, each ending in `/`. Empty without `delimited`.
    `next_token`: None on the last page. Then everything after `start_after` was told.
    """

    objects: Sequence[ObjectInfo]
    prefixes: Sequence[str]
    next_token: str | None


class ObjectStore(Protocol):
    """One bucket. Keys are full keys; a volume's prefix is the caller's business."""

    async def head(self, key: Key) -> ObjectHead:
        """Return version and metadata. Raises `ObjectMissing`."""
        ...

    async def get(
        self,
        key: Key,
        start: int,
        stop: int,
        *,
        if_match: ETag | None = None,
        if_none_match: ETag | None = None,
        is_whole: bool = False,
    ) -> Fetched | NotModified:
        """Return bytes `[start, stop)`, fewer only at the end of the object.

        `is_whole`: the caller knows that this version has these bytes and no others. Stores tell
        a checksum of their own for a whole object only.
        An empty object, or a start at or past its end, gives no bytes but its `info`.
        `NotModified` only with `if_none_match`. Raises `ObjectMissing`, `ObjectChanged` (with
        `if_match`: another version, or none), `CorruptData`.
        """
        ...

    async def put(
        self,
        key: Key,
        body: Buffer,
        *,
        condition: Condition = None,
        metadata: Mapping[str, str] | None = None,
        checksum: Checksum | None = None,
    ) -> ETag:
        """Store the whole object and return its ETag. `body` must not change until this returns.

        Raises `ObjectChanged` if the condition fails, `OutcomeUnclear` if it may have been done.
        """
        ...

    async def delete(self, key: Key, *, if_match: ETag | None = None) -> None:
        """Remove the key; a key that is absent already is success unless `if_match` is given.

        Raises `ObjectChanged` (with `if_match`: another version, or none), `OutcomeUnclear`.
        """
        ...

    async def copy(
        self, source: Key, source_etag: ETag, target: Key, *, condition: Condition = None
    ) -> ObjectInfo:
        """Copy exactly this version (up to 5 GiB) inside the store; return what `target` became.

        Success although another client replaced the copy at once; its size is then told as 0.

        Raises `ObjectMissing` (the source), `ObjectChanged` (the source, or the condition on the
        target), `OutcomeUnclear`.
        """
        ...

    async def list_page(
        self,
        prefix: str,
        *,
        delimited: bool,
        start_after: str | None = None,
        token: str | None = None,
        max_keys: int = 1000,
    ) -> ListPage:
        """Return one page of the keys below `prefix`, from `token` or after `start_after`."""
        ...

    async def create_upload(self, key: Key) -> UploadId:
        """Begin a multipart upload."""
        ...

    async def upload_part(
        self,
        key: Key,
        upload: UploadId,
        number: int,
        body: Buffer,
        *,
        checksum: Checksum | None = None,
    ) -> ETag:
        """Send part `number` (from 1); a number sent again replaces it. Raises `NoSuchUpload`."""
        ...

    async def upload_part_copy(
        self,
        key: Key,
        upload: UploadId,
        number: int,
        source: Key,
        source_etag: ETag,
        start: int,
        stop: int,
    ) -> ETag:
        """Make part `number` of bytes `[start, stop)` of exactly this version of `source`.

        Raises `ObjectChanged` or `ObjectMissing` (the source), `NoSuchUpload`, and `StoreRefused`
        where the store cannot do it.
        """
        ...

    async def complete_upload(
        self,
        key: Key,
        upload: UploadId,
        parts: Sequence[ETag],
        *,
        condition: Condition = None,
        whole: Whole | None = None,
    ) -> ETag:
        """Make the object of parts 1, 2, ... and return its ETag.

        `whole`, where the caller knows it, must be what comes of them.

        Raises `ObjectChanged` if the condition fails, `NoSuchUpload`, `OutcomeUnclear`.
        """
        ...

    async def abort_upload(self, key: Key, upload: UploadId) -> None:
        """Give the parts up. An upload that is gone already is success."""
        ...

    async def aclose(self) -> None:
        """End all connections. The store's owner (`mount`) calls it once."""
        ...
