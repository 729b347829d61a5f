"""A store that a test holds up or lets fail, request by request, so that races have one order."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import trio

from ucfuse.errors import AccessDenied, VolumeError
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
from ucfuse.store.memory import MemoryStore
from ucfuse.volume import ETag, Key, ObjectInfo

__all__ = ["Denying", "Gate", "ScriptedStore"]

T = TypeVar("T")


class Denying(MemoryStore):
    """A bucket that may be read, and not written to."""

    async def put(self, key: Key, body: Buffer, **_: object) -> ETag:
        raise AccessDenied(key)


@dataclass(eq=False)
class Gate:
    """One request that waits: `reached` when it is here, until `open` or `fail`."""

    reached: trio.Event = field(default_factory=trio.Event)
    ended: trio.Event = field(default_factory=trio.Event)
    cause: VolumeError | None = None

    @asynccontextmanager
    async def met_by(
        self, work: Callable[..., Awaitable[object]], *arguments: object
    ) -> AsyncIterator[trio.Nursery]:
        """Run the block while the request waits that `work` makes; then let that go on and end."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(work, *arguments)
            await self.reached.wait()
            yield nursery
            self.open()

    def open(self) -> None:
        self.ended.set()

    def fail(self, cause: VolumeError) -> None:
        self.cause = cause
        self.ended.set()


@dataclass(eq=False)
class _Rule:
    """What happens to the request that comes after `skip` others of its kind and key."""

    kind: str
    key: str | None
    skip: int
    gate: Gate | None = None
    cause: VolumeError | None = None
    is_carried_out: bool = False

    def applies(self, kind: str, key: str) -> bool:
        if kind != self.kind or self.key not in (None, key):
            return False
        self.skip -= 1
        return self.skip < 0


class ScriptedStore:
    """Implements `ObjectStore` around another one; each rule is for one request."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._rules: list[_Rule] = []

    def hold(
        self, kind: str, key: str | None = None, *, skip: int = 0, answered: bool = False
    ) -> Gate:
        """Hold up a request: before it reaches the bucket, or its answer with `answered`."""
        gate = Gate()
        self._rules.append(_Rule(kind, key, skip, gate=gate, is_carried_out=answered))
        return gate

    def fail(
        self,
        kind: str,
        cause: VolumeError,
        key: str | None = None,
        *,
        skip: int = 0,
        carried_out: bool = False,
    ) -> None:
        """Let a request fail: before it reaches the bucket, or after it was carried out."""
        self._rules.append(_Rule(kind, key, skip, cause=cause, is_carried_out=carried_out))

    async def _play(self, kind: str, key: str, request: Callable[[], Awaitable[T]]) -> T:
        rule = next((rule for rule in self._rules if rule.applies(kind, key)), None)
        if rule is None:
            return await request()
        self._rules.remove(rule)
        if not rule.is_carried_out:
            await self._apply(rule)
            return await request()
        try:
            return await request()
        finally:  # an answer that says no is under way as long as any other
            await self._apply(rule)

    async def _apply(self, rule: _Rule) -> None:
        if rule.gate is not None:
            rule.gate.reached.set()
            await rule.gate.ended.wait()
        cause = rule.gate.cause if rule.gate is not None else rule.cause
        if cause is not None:
            raise cause

    async def head(self, key: Key) -> ObjectHead:
        return await self._play("HEAD", key, partial(self._store.head, key))

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
        request = partial(
            self._store.get,
            key,
            start,
            stop,
            if_match=if_match,
            if_none_match=if_none_match,
            is_whole=is_whole,
        )
        return await self._play("GET", key, request)

    async def put(
        self,
        key: Key,
        body: Buffer,
        *,
        condition: Condition = None,
        metadata: Mapping[str, str] | None = None,
        checksum: Checksum | None = None,
    ) -> ETag:
        request = partial(
            self._store.put, key, body, condition=condition, metadata=metadata, checksum=checksum
        )
        return await self._play("PUT", key, request)

    async def delete(self, key: Key, *, if_match: ETag | None = None) -> None:
        await self._play("DELETE", key, partial(self._store.delete, key, if_match=if_match))

    async def copy(
        self, source: Key, source_etag: ETag, target: Key, *, condition: Condition = None
    ) -> ObjectInfo:
        request = partial(self._store.copy, source, source_etag, target, condition=condition)
        return await self._play("COPY", source, request)

    async def list_page(
        self,
        prefix: str,
        *,
        delimited: bool,
        start_after: str | None = None,
        token: str | None = None,
        max_keys: int = 1000,
    ) -> ListPage:
        request = partial(
            self._store.list_page,
            prefix,
            delimited=delimited,
            start_after=start_after,
            token=token,
            max_keys=max_keys,
        )
        return await self._play("LIST", prefix, request)

    async def create_upload(self, key: Key) -> UploadId:
        return await self._play("CREATE", key, partial(self._store.create_upload, key))

    async def upload_part(
        self,
        key: Key,
        upload: UploadId,
        number: int,
        body: Buffer,
        *,
        checksum: Checksum | None = None,
    ) -> ETag:
        request = partial(self._store.upload_part, key, upload, number, body, checksum=checksum)
        return await self._play("PART", key, request)

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
        request = partial(
            self._store.upload_part_copy, key, upload, number, source, source_etag, start, stop
        )
        return await self._play("PARTCOPY", key, request)

    async def complete_upload(
        self,
        key: Key,
        upload: UploadId,
        parts: Sequence[ETag],
        *,
        condition: Condition = None,
        whole: Whole | None = None,
    ) -> ETag:
        request = partial(
            self._store.complete_upload, key, upload, parts, condition=condition, whole=whole
        )
        return await self._play("COMPLETE", key, request)

    async def abort_upload(self, key: Key, upload: UploadId) -> None:
        await self._play("ABORT", key, partial(self._store.abort_upload, key, upload))

    async def aclose(self) -> None:
        await self._store.aclose()
