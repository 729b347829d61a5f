"""upload_part_copy: a range of exactly one version becomes a part, without its bytes being sent."""

from random import Random

import pytest

from tests.contract.conftest import MakeKey
from tests.contract.features import Features
from ucfuse.errors import ObjectChanged, ObjectMissing, StoreError
from ucfuse.store.api import Fetched, ObjectStore
from ucfuse.volume import ETag, MiB

PART = 5 * MiB


async def test_an_object_is_made_of_copied_and_sent_parts(store: ObjectStore, key: MakeKey) -> None:
    old = Random(1).randbytes(12 * MiB)
    etag = await store.put(key("a"), old)
    upload = await store.create_upload(key("a"))
    new = b"n" * PART
    parts = [
        await store.upload_part_copy(key("a"), upload, 1, key("a"), etag, 0, PART),
        await store.upload_part(key("a"), upload, 2, new),
        await store.upload_part_copy(key("a"), upload, 3, key("a"), etag, 2 * PART, len(old)),
    ]

    changed = await store.complete_upload(key("a"), upload, parts, condition=etag)

    info = (await store.head(key("a"))).info
    assert (info.etag, info.size) == (changed, len(old))
    answer = await store.get(key("a"), 0, len(old))
    assert isinstance(answer, Fetched)
    assert answer.data == old[:PART] + new + old[2 * PART :]


async def test_a_small_last_part_may_be_a_copy(store: ObjectStore, key: MakeKey) -> None:
    etag = await store.put(key("a"), b"x" * (PART + 10))
    upload = await store.create_upload(key("b"))
    parts = [
        await store.upload_part(key("b"), upload, 1, b"y" * PART),
        await store.upload_part_copy(key("b"), upload, 2, key("a"), etag, PART, PART + 10),
    ]
    await store.complete_upload(key("b"), upload, parts)
    assert (await store.head(key("b"))).info.size == PART + 10


async def test_another_version_of_the_source_is_not_copied(
    store: ObjectStore, key: MakeKey, features: Features
) -> None:
    old = await store.put(key("a"), b"o" * (PART + 1))
    new = await store.put(key("a"), b"n" * (PART + 1))
    upload = await store.create_upload(key("b"))

    if features.copy_checks_source:
        with pytest.raises(ObjectChanged):
            await store.upload_part_copy(key("b"), upload, 1, key("a"), old, 0, PART)
    assert await store.upload_part_copy(key("b"), upload, 1, key("a"), new, 0, PART)


async def test_a_source_that_is_gone_is_an_error(store: ObjectStore, key: MakeKey) -> None:
    upload = await store.create_upload(key("b"))
    gone = ETag('"00000000000000000000000000000000"')
    with pytest.raises((ObjectMissing, ObjectChanged)):
        await store.upload_part_copy(key("b"), upload, 1, key("a"), gone, 0, PART)


async def test_a_range_past_the_end_is_refused(
    store: ObjectStore, key: MakeKey, features: Features
) -> None:
    if not features.checks_copied_range:
        return
    etag = await store.put(key("a"), b"x" * (PART + 1))
    upload = await store.create_upload(key("b"))
    with pytest.raises(StoreError):
        await store.upload_part_copy(key("b"), upload, 1, key("a"), etag, PART + 1, 2 * PART)
