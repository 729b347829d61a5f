"""Stores that ignore conditions: found out without a trace, and made up for."""

from collections.abc import Mapping

import pytest

from tests.fs.kernel import keys_in
from tests.fs.stores import Denying
from ucfuse.errors import ObjectChanged
from ucfuse.store.api import ABSENT, Buffer, Checksum, Condition, Fetched, NotModified
from ucfuse.store.conditions import HeadFirst, fit
from ucfuse.store.memory import MemoryStore
from ucfuse.volume import ETag, Key, MiB, ObjectInfo

A, B = Key("a"), Key("b")
OTHER = ETag('"other"')


class Lax(MemoryStore):
    """A store that takes conditions for decoration."""

    async def put(
        self,
        key: Key,
        body: Buffer,
        *,
        condition: Condition = None,
        metadata: Mapping[str, str] | None = None,
        checksum: Checksum | None = None,
    ) -> ETag:
        return await super().put(key, body, metadata=metadata)

    async def delete(self, key: Key, *, if_match: ETag | None = None) -> None:
        await super().delete(key)

    async def copy(
        self, source: Key, source_etag: ETag, target: Key, *, condition: Condition = None
    ) -> ObjectInfo:
        return await super().copy(source, (await self.head(source)).info.etag, target)


async def test_a_store_with_conditions_is_used_as_it_is_and_nothing_is_left_in_it() -> None:
    store = MemoryStore()

    assert await fit(store, "some/prefix/") == (store, None)
    assert await keys_in(store) == []


@pytest.mark.promise("P22")
async def test_a_store_without_conditions_is_told_of_and_nothing_is_left_in_it() -> None:
    store, warning = await fit(Lax(), "")

    assert warning is not None
    assert isinstance(store, HeadFirst)
    assert await keys_in(store) == []


async def test_a_store_that_lets_nobody_write_is_used_as_it_is() -> None:
    store = Denying()

    assert await fit(store, "") == (store, None)


@pytest.mark.promise("P22")
async def test_asking_first_keeps_other_versions() -> None:
    lax = Lax()
    store = HeadFirst(lax)
    etag = await store.put(A, b"first", condition=ABSENT)

    for condition in (ABSENT, OTHER):
        with pytest.raises(ObjectChanged):
            await store.put(A, b"second", condition=condition)
    with pytest.raises(ObjectChanged):
        await store.put(B, b"second", condition=etag)
    with pytest.raises(ObjectChanged):
        await store.delete(A, if_match=OTHER)
    with pytest.raises(ObjectChanged):
        await store.copy(A, OTHER, B)
    with pytest.raises(ObjectChanged):
        await store.copy(A, etag, A, condition=ABSENT)
    assert await keys_in(store) == ["a"]

    await store.put(A, b"third", condition=etag)
    answer = await store.get(A, 0, 10)
    assert isinstance(answer, Fetched)
    assert answer.data == b"third"
    assert await store.get(A, 0, 10, if_none_match=answer.info.etag) == NotModified(
        answer.info.etag
    )
    await store.delete(A, if_match=answer.info.etag)
    assert await keys_in(store) == []


async def test_asking_first_holds_for_uploads_too() -> None:
    store = HeadFirst(Lax())
    data = b"x" * 6 * MiB
    etag = await store.put(A, data)
    upload = await store.create_upload(B)
    with pytest.raises(ObjectChanged):
        await store.upload_part_copy(B, upload, 1, A, OTHER, 0, 5 * MiB)
    parts = [
        await store.upload_part_copy(B, upload, 1, A, etag, 0, 5 * MiB),
        await store.upload_part(B, upload, 2, b"tail"),
    ]
    with pytest.raises(ObjectChanged):
        await store.complete_upload(B, upload, parts, condition=OTHER)
    await store.complete_upload(B, upload, parts, condition=ABSENT)
    assert (await store.head(B)).info.size == 5 * MiB + 4
    gone = await store.create_upload(B)
    await store.abort_upload(B, gone)
    await store.aclose()
