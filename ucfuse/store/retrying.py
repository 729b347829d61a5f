"""The one layer that repeats requests, around any store: which of them, and after what.

What can be repeated without harm is repeated after a failure that may pass. A change that depends
on a condition is first asked about: the store may have carried it out although we never heard, and
a blind repeat would then fail its own condition. How either is done is `repeating`'s.

It never repeats what the store decided (denied, missing, refused) and never begins a repeat that
the caller's deadline leaves no time for.

Concurrency: stateless between calls; any number at once.
"""

import math
import random
from collections.abc import Awaitable, Mapping, MutableMapping, Sequence

from ucfuse.errors import OutcomeUnclear
from ucfuse.metrics import Metrics
from ucfuse.store.api import (
    Buffer,
    Checksum,
    Condition,
    Fetched,
    ListPage,
    NotModified,
    ObjectHead,
    ObjectStore,
    UploadId,
    Whole,
)
from ucfuse.store.outcomes import (
    etag_of_parts,
    holds,
    is_made_of,
    is_ours,
    require_unchanged,
)
from ucfuse.store.presence import Presence
from ucfuse.store.repeating import METADATA_TIMEOUT_S, Done, Repeater
from ucfuse.volume import ETag, Key, ObjectInfo

__all__ = ["RetryingStore"]

BODY_TIMEOUT_S = 15.0
# Before it answers, the store moves up to 5 GiB, or makes an object of 10,000 parts.
SERVER_SIDE_TIMEOUT_S = 60.0


class RetryingStore:
    """Implements `ObjectStore` around another one, which it owns.

    `troubles` shows what is being repeated, and why, while it is: by key (or prefix). While
    `presence` says that the store is away, nothing new begins; what goes on with an upload, a
    rename or a removal is still sent.
    """

    def __init__(
        self,
        store: ObjectStore,
        rng: random.Random,
        troubles: MutableMapping[str, str] | None = None,
        presence: Presence | None = None,
    ) -> None:
        self._store = store
        self._presence = presence or Presence("", math.inf, Metrics())
        self._repeater = Repeater(store, rng, {} if troubles is None else troubles, self._presence)

    async def head(self, key: Key) -> ObjectHead:
        await self._presence.require(key)
        return await self._repeater.head(key)

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
        await self._presence.require(key)

        def fetch() -> Awaitable[Fetched | NotModified]:
            return self._store.get(
                key,
                start,
                stop,
                if_match=if_match,
                if_none_match=if_none_match,
                is_whole=is_whole,
            )

        return await self._repeater.once_more_if_corrupt(
            lambda: self._repeater.repeat(key, BODY_TIMEOUT_S, fetch)
        )

    async def put(
        self,
        key: Key,
        body: Buffer,
        *,
        condition: Condition = None,
        metadata: Mapping[str, str] | None = None,
        checksum: Checksum | None = None,
    ) -> ETag:
        await self._presence.require(key)

        def send() -> Awaitable[ETag]:
            return self._store.put(
                key, body, condition=condition, metadata=metadata, checksum=checksum
            )

        def judge(present: ObjectHead | None) -> Done[ETag] | None:
            if present is not None and is_ours(present, body, metadata, checksum):
                return Done(present.info.etag)
            require_unchanged(key, condition, present)
            return None

        def put() -> Awaitable[ETag]:
            if condition is None:
                return self._repeater.repeat(key, BODY_TIMEOUT_S, send, silence=OutcomeUnclear)
            return self._repeater.settle(key, BODY_TIMEOUT_S, send, judge)

        return await self._repeater.once_more_if_corrupt(put)

    async def delete(self, key: Key, *, if_match: ETag | None = None) -> None:
        def send() -> Awaitable[None]:
            return self._store.delete(key, if_match=if_match)

        def judge(present: ObjectHead | None) -> Done[None] | None:
            if present is None:
                return Done(None)
            require_unchanged(key, if_match, present)
            return None

        if if_match is None:
            await self._repeater.repeat(key, METADATA_TIMEOUT_S, send, silence=OutcomeUnclear)
        else:
            await self._repeater.settle(key, METADATA_TIMEOUT_S, send, judge)

    async def copy(
        self, source: Key, source_etag: ETag, target: Key, *, condition: Condition = None
    ) -> ObjectInfo:
        def send() -> Awaitable[ObjectInfo]:
            return self._store.copy(source, source_etag, target, condition=condition)

        def judge(present: ObjectHead | None) -> Done[ObjectInfo] | None:
            if present is not None and present.info.etag == source_etag:
                return Done(present.info)
            if holds(condition, present):
                return None
            # A copy of a multipart object may have an ETag of its own: ours or another's?
            raise OutcomeUnclear(target, "it changed while it was copied to")

        return await self._repeater.settle(target, SERVER_SIDE_TIMEOUT_S, send, judge)

    async def list_page(
        self,
        prefix: str,
        *,
        delimited: bool,
        start_after: str | None = None,
        token: str | None = None,
        max_keys: int = 1000,
    ) -> ListPage:
        await self._presence.require(prefix)

        def ask() -> Awaitable[ListPage]:
            return self._store.list_page(
                prefix,
                delimited=delimited,
                start_after=start_after,
                token=token,
                max_keys=max_keys,
            )

        return await self._repeater.repeat(prefix, METADATA_TIMEOUT_S, ask)

    async def create_upload(self, key: Key) -> UploadId:
        await self._presence.require(key)
        return await self._repeater.repeat(
            key,
            METADATA_TIMEOUT_S,
            lambda: self._store.create_upload(key),
            silence=OutcomeUnclear,
        )

    async def upload_part(
        self,
        key: Key,
        upload: UploadId,
        number: int,
        body: Buffer,
        *,
        checksum: Checksum | None = None,
    ) -> ETag:
        def send() -> Awaitable[ETag]:
            return self._store.upload_part(key, upload, number, body, checksum=checksum)

        return await self._repeater.once_more_if_corrupt(
            lambda: self._repeater.repeat(key, BODY_TIMEOUT_S, send, silence=OutcomeUnclear)
        )

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
        return await self._repeater.repeat(
            key,
            SERVER_SIDE_TIMEOUT_S,
            lambda: self._store.upload_part_copy(
                key, upload, number, source, source_etag, start, stop
            ),
            silence=OutcomeUnclear,
        )

    async def complete_upload(
        self,
        key: Key,
        upload: UploadId,
        parts: Sequence[ETag],
        *,
        condition: Condition = None,
        whole: Whole | None = None,
    ) -> ETag:
        expected = etag_of_parts(parts)

        def send() -> Awaitable[ETag]:
            return self._store.complete_upload(key, upload, parts, condition=condition, whole=whole)

        def judge(present: ObjectHead | None) -> Done[ETag] | None:
            if present is not None and is_made_of(present, expected, whole):
                return Done(present.info.etag)
            if expected is None and not holds(condition, present):
                raise OutcomeUnclear(key, "the store's ETags do not tell whose version it is")
            require_unchanged(key, condition, present)
            return None

        return await self._repeater.settle(key, SERVER_SIDE_TIMEOUT_S, send, judge)

    async def abort_upload(self, key: Key, upload: UploadId) -> None:
        await self._repeater.repeat(
            key,
            METADATA_TIMEOUT_S,
            lambda: self._store.abort_upload(key, upload),
            silence=OutcomeUnclear,
        )

    async def aclose(self) -> None:
        await self._store.aclose()
