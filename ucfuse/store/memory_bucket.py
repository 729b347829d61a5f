"""The objects of a bucket in memory, with the rules of AWS S3, strict where others are lenient.

`MemoryStore` is its client; the two are one store. Strict means: the order and the LastModified
of a multipart object are those of its creation, so that a change of the key in between wins
although the completion answers success; parts have a least size and a greatest number; a
conditional completion that lost to another change is refused; a copy onto itself is refused.

It never waits, never persists anything and never fails by itself.

Concurrency: every method is one request, carried out in one step; none awaits.
"""

import hashlib
import time
from base64 import b64decode, b64encode
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ucfuse.errors import CorruptData, NoSuchUpload, ObjectChanged, ObjectMissing, StoreRefused
from ucfuse.store.api import Absent, Buffer, Checksum, Condition, ListPage, UploadId, Whole
from ucfuse.store.checksums import checksum_of
from ucfuse.volume import DIRECTORY_SUFFIX, ETag, GiB, Key, MiB, ObjectInfo

__all__ = ["MAX_PAGE_KEYS", "MemoryBucket", "Version"]

# The first string after every key that begins with "x/" is "x0": "0" follows "/" in UTF-8.
AFTER_SUFFIX = chr(ord(DIRECTORY_SUFFIX) + 1)

# Limits of AWS S3.
MAX_KEY_BYTES = 1024
MAX_PAGE_KEYS = 1000
MAX_PART_COUNT = 10_000
MIN_PART_BYTES = 5 * MiB
# The source of a copied part; smaller objects cannot be copied in pieces.
MIN_COPY_SOURCE_BYTES = 5 * 10**6
MAX_PART_COPY_BYTES = 5 * GiB


@dataclass(frozen=True, slots=True)
class Version:
    info: ObjectInfo
    data: bytes
    metadata: Mapping[str, str]

    @property
    def checksum(self) -> Checksum:
        return checksum_of(self.data)


@dataclass(slots=True)
class _Part:
    digest: bytes
    data: bytes

    @property
    def etag(self) -> ETag:
        return ETag(f'"{self.digest.hex()}"')


@dataclass(slots=True)
class _Upload:
    """`began` and `rival` count changes of the bucket: a later change of the key wins."""

    key: Key
    mtime_s: int
    began: int
    rival: int = 0
    parts: dict[int, _Part] = field(default_factory=dict)

    @property
    def is_outdated(self) -> bool:
        return self.rival > self.began


class MemoryBucket:
    """The objects and uploads of one bucket. Every method is one atomic request.

    Invariant: `_keys` holds the keys of `_versions` in order. Python orders `str` by code point,
    which is the order of the UTF-8 bytes.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._versions: dict[Key, Version] = {}
        self._keys: list[Key] = []
        self._uploads: dict[UploadId, _Upload] = {}
        self._changes = 0

    def version(self, key: Key) -> Version:
        """Return what the key holds. Raises `ObjectMissing`."""
        found = self._versions.get(key)
        if found is None:
            raise ObjectMissing(key)
        return found

    def put(
        self,
        key: Key,
        body: Buffer,
        condition: Condition,
        metadata: Mapping[str, str],
        checksum: Checksum | None = None,
    ) -> ETag:
        _check_key(key)
        self._check_condition(key, condition)
        data = bytes(body)
        _verify(key, data, checksum)
        return self._store(key, data, _etag_of(data), metadata).etag

    def delete(self, key: Key, if_match: ETag | None) -> None:
        self._check_condition(key, if_match)
        self._note_change(key, self._next_change())
        if self._versions.pop(key, None) is not None:
            del self._keys[bisect_left(self._keys, key)]

    def copy(self, source: Key, etag: ETag, target: Key, condition: Condition) -> ObjectInfo:
        _check_key(target)
        version = self.version(source)
        if version.info.etag != etag:
            raise ObjectChanged(source, f"copy of {etag}, the key holds {version.info.etag}")
        if source == target:
            raise StoreRefused(target, "a copy onto itself changes nothing")
        self._check_condition(target, condition)
        # The whole is one piece afterwards: a multipart ETag does not survive a copy.
        return self._store(target, version.data, _etag_of(version.data), version.metadata)

    def list_page(
        self,
        prefix: str,
        *,
        delimited: bool,
        start_after: str | None,
        token: str | None,
        max_keys: int,
    ) -> ListPage:
        if max_keys < 1:
            raise StoreRefused(prefix, f"a page of {max_keys} keys")
        limit = min(max_keys, MAX_PAGE_KEYS)
        objects: list[ObjectInfo] = []
        prefixes: list[str] = []
        at = self._first_index(prefix, delimited, start_after, token)
        last = prefix
        while at < len(self._keys) and (key := self._keys[at]).startswith(prefix):
            if len(objects) + len(prefixes) == limit:
                return ListPage(objects, prefixes, _token_after(last))
            group = _group(key, prefix) if delimited else None
            if group is None:
                objects.append(self._versions[key].info)
            else:
                prefixes.append(group)
            last = group or key
            at = self._index_after(key, group)
        return ListPage(objects, prefixes, None)

    def create_upload(self, key: Key) -> UploadId:
        _check_key(key)
        change = self._next_change()
        upload = UploadId(f"upload-{change}")
        self._uploads[upload] = _Upload(key, int(self._clock()), change)
        return upload

    def upload_part(
        self,
        key: Key,
        upload: UploadId,
        number: int,
        body: Buffer,
        checksum: Checksum | None = None,
    ) -> ETag:
        if not 1 <= number <= MAX_PART_COUNT:
            raise StoreRefused(key, f"part {number} is not in 1..{MAX_PART_COUNT}")
        data = bytes(body)
        _verify(key, data, checksum)
        part = _Part(_digest(data), data)
        self._upload(key, upload).parts[number] = part
        return part.etag

    def copy_part(
        self,
        key: Key,
        upload: UploadId,
        number: int,
        source: Key,
        source_etag: ETag,
        start: int,
        stop: int,
    ) -> ETag:
        version = self.version(source)
        if version.info.etag != source_etag:
            raise ObjectChanged(source, f"copy of {source_etag}, it is {version.info.etag}")
        if version.info.size <= MIN_COPY_SOURCE_BYTES:
            raise StoreRefused(source, "too small to be copied in parts")
        if not start < stop <= version.info.size or stop - start > MAX_PART_COPY_BYTES:
            raise StoreRefused(source, f"no range of it: {start}-{stop}")
        return self.upload_part(key, upload, number, version.data[start:stop])

    def complete_upload(
        self,
        key: Key,
        upload: UploadId,
        etags: Sequence[ETag],
        condition: Condition,
        whole: Whole | None = None,
    ) -> ETag:
        """The condition is judged now, but the place in the key's history is that of the start."""
        begun = self._upload(key, upload)
        parts = _chosen_parts(begun, etags)
        self._check_condition(key, condition)
        if begun.is_outdated and condition is not None:
            raise NoSuchUpload(key, "the key changed while the upload ran")
        data = b"".join(part.data for part in parts)
        if whole is not None:
            _verify(key, data, whole.checksum)
        del self._uploads[upload]
        digest = _digest(b"".join(part.digest for part in parts))
        etag = ETag(f'"{digest.hex()}-{len(parts)}"')
        if not begun.is_outdated:
            self._store(key, data, etag, {}, mtime_s=begun.mtime_s, change=begun.began)
        return etag

    def abort_upload(self, key: Key, upload: UploadId) -> None:
        begun = self._uploads.get(upload)
        if begun is not None and begun.key == key:
            del self._uploads[upload]

    def _upload(self, key: Key, upload: UploadId) -> _Upload:
        begun = self._uploads.get(upload)
        if begun is None or begun.key != key:
            raise NoSuchUpload(key, upload)
        return begun

    def _check_condition(self, key: Key, condition: Condition) -> None:
        found = self._versions.get(key)
        present = found.info.etag if found else None
        if condition is None:
            return
        if isinstance(condition, Absent):
            if present is not None:
                raise ObjectChanged(key, f"expected no object, got {present}")
        elif present != condition:
            raise ObjectChanged(key, f"expected {condition}, got {present or 'no object'}")

    def _store(
        self,
        key: Key,
        data: bytes,
        etag: ETag,
        metadata: Mapping[str, str],
        *,
        mtime_s: int | None = None,
        change: int | None = None,
    ) -> ObjectInfo:
        if mtime_s is None:
            mtime_s = int(self._clock())
        self._note_change(key, self._next_change() if change is None else change)
        if key not in self._versions:
            insort(self._keys, key)
        info = ObjectInfo(key, len(data), etag, mtime_s)
        self._versions[key] = Version(info, data, dict(metadata))
        return info

    def _next_change(self) -> int:
        self._changes += 1
        return self._changes

    def _note_change(self, key: Key, change: int) -> None:
        for upload in self._uploads.values():
            if upload.key == key:
                upload.rival = max(upload.rival, change)

    def _first_index(
        self, prefix: str, delimited: bool, start_after: str | None, token: str | None
    ) -> int:
        """Return where a page begins. A token is after all that a page told, a whole group
        perhaps; `start_after` is after one key, whose group may go on."""
        first = bisect_left(self._keys, prefix)
        if token is not None:
            last = _last_told(token)
            return max(first, self._index_after(last, _group(last, prefix) if delimited else None))
        if start_after is not None:
            return max(first, bisect_right(self._keys, start_after))
        return first

    def _index_after(self, key: str, group: str | None) -> int:
        """Return where the keys after `key` begin, or those after its whole sub-directory."""
        if group is None:
            return bisect_right(self._keys, key)
        return bisect_left(self._keys, group[: -len(DIRECTORY_SUFFIX)] + AFTER_SUFFIX)


def _check_key(key: Key) -> None:
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        raise StoreRefused(key, "a key is UTF-8") from None
    if not 0 < size <= MAX_KEY_BYTES:
        raise StoreRefused(key, f"a key has 1 to {MAX_KEY_BYTES} bytes, this one {size}")


def _verify(key: Key, data: bytes, checksum: Checksum | None) -> None:
    if checksum is not None and checksum != checksum_of(data):
        raise CorruptData(key, "the bytes are not those that their checksum is of")


def _chosen_parts(upload: _Upload, etags: Sequence[ETag]) -> list[_Part]:
    parts = [upload.parts.get(number) for number in range(1, len(etags) + 1)]
    chosen = [part for part, etag in zip(parts, etags, strict=True) if part and part.etag == etag]
    if not etags:
        raise StoreRefused(upload.key, "an upload without parts")
    if len(chosen) != len(etags):
        raise NoSuchUpload(upload.key, f"{len(chosen)} of {len(etags)} named parts were sent")
    if any(len(part.data) < MIN_PART_BYTES for part in chosen[:-1]):
        raise StoreRefused(upload.key, f"a part but the last is under {MIN_PART_BYTES} bytes")
    return chosen


def _group(key: str, prefix: str) -> str | None:
    """Return the sub-directory of `prefix` that stands for the key in a listing, or None."""
    end = key.find(DIRECTORY_SUFFIX, len(prefix))
    return None if end < 0 else key[: end + len(DIRECTORY_SUFFIX)]


def _digest(data: bytes) -> bytes:
    return hashlib.md5(data, usedforsecurity=False).digest()


def _etag_of(data: bytes) -> ETag:
    return ETag(f'"{_digest(data).hex()}"')


def _token_after(last: str) -> str:
    return b64encode(last.encode()).decode()


def _last_told(token: str) -> str:
    try:
        return b64decode(token.encode(), validate=True).decode()
    except ValueError:
        raise StoreRefused(token, "not a token of this store") from None
