"""Multipart uploads: parts, completion, conditions, and what happens meanwhile."""

import hashlib

import pytest
import trio

from tests.contract.conftest import MakeKey
from tests.contract.features import Features
from ucfuse.errors import NoSuchUpload, ObjectChanged, ObjectMissing, StoreRefused
from ucfuse.store.api import ABSENT, Fetched, ObjectStore, UploadId
from ucfuse.volume import ETag, Key, MiB

PART = 5 * MiB


async def begin(store: ObjectStore, key: Key, *parts: bytes) -> tuple[UploadId, list[ETag]]:
    upload = await store.create_upload(key)
    etags = [
        await store.upload_part(key, upload, number, body) for number, body in enumerate(parts, 1)
    ]
    return upload, etags


async def content(store: ObjectStore, key: Key) -> bytes:
    answer = await store.get(key, 0, 100 * MiB)
    assert isinstance(answer, Fetched)
    return answer.data


async def test_parts_become_one_object(store: ObjectStore, key: MakeKey) -> None:
    first, second, last = b"1" * PART, b"2" * PART, b"3"
    upload, etags = await begin(store, key("a"), first, second, last)
    with pytest.raises(ObjectMissing):
        await store.head(key("a"))

    etag = await store.complete_upload(key("a"), upload, etags)
    info = (await store.head(key("a"))).info
    assert (info.size, info.etag) == (2 * PART + 1, etag)
    assert await content(store, key("a")) == first + second + last
    assert list((await store.list_page(key(""), delimited=False)).objects) == [info]


async def test_the_etag_counts_the_parts(store: ObjectStore, key: MakeKey) -> None:
    bodies = [b"1" * PART, b"2"]
    upload, etags = await begin(store, key("a"), *bodies)
    etag = await store.complete_upload(key("a"), upload, etags)

    digests = b"".join(hashlib.md5(body).digest() for body in bodies)
    assert etag == f'"{hashlib.md5(digests).hexdigest()}-2"'
    assert etags == [ETag(f'"{hashlib.md5(body).hexdigest()}"') for body in bodies]


@pytest.mark.parametrize("body", [b"", b"tiny"])
async def test_the_only_part_may_be_small(store: ObjectStore, key: MakeKey, body: bytes) -> None:
    upload, etags = await begin(store, key("a"), body)
    await store.complete_upload(key("a"), upload, etags)
    assert await content(store, key("a")) == body


async def test_parts_may_come_together_and_out_of_order(store: ObjectStore, key: MakeKey) -> None:
    upload = await store.create_upload(key("a"))
    etags: dict[int, ETag] = {}

    async def send(number: int) -> None:
        body = b"%d" % number * (PART if number < 3 else 1)
        etags[number] = await store.upload_part(key("a"), upload, number, body)

    async with trio.open_nursery() as nursery:
        for number in (3, 1, 2):
            nursery.start_soon(send, number)
    await store.complete_upload(key("a"), upload, [etags[number] for number in (1, 2, 3)])
    assert await content(store, key("a")) == b"1" * PART + b"2" * PART + b"3"


async def test_a_part_sent_again_replaces_the_first(store: ObjectStore, key: MakeKey) -> None:
    upload, (old, last) = await begin(store, key("a"), b"o" * PART, b"z")
    new = await store.upload_part(key("a"), upload, 1, b"n" * PART)
    assert new != old

    await store.complete_upload(key("a"), upload, [new, last])
    assert await content(store, key("a")) == b"n" * PART + b"z"


async def test_a_part_below_the_least_size_is_refused(store: ObjectStore, key: MakeKey) -> None:
    upload, etags = await begin(store, key("a"), b"1" * (PART - 1), b"2")
    with pytest.raises(StoreRefused):
        await store.complete_upload(key("a"), upload, etags)
    with pytest.raises(ObjectMissing):
        await store.head(key("a"))


async def test_a_part_that_is_not_there_asks_for_all_parts_anew(
    store: ObjectStore, key: MakeKey
) -> None:
    upload, etags = await begin(store, key("a"), b"1" * PART)
    wrong = ETag('"00000000000000000000000000000000"')
    with pytest.raises(NoSuchUpload):
        await store.complete_upload(key("a"), upload, [*etags, wrong])
    with pytest.raises(ObjectMissing):
        await store.head(key("a"))


@pytest.mark.parametrize("number", [0, 10_001])
async def test_part_numbers_have_bounds(store: ObjectStore, key: MakeKey, number: int) -> None:
    upload = await store.create_upload(key("a"))
    with pytest.raises((StoreRefused, NoSuchUpload)):
        await store.upload_part(key("a"), upload, number, b"x")


async def test_an_aborted_upload_is_gone(
    store: ObjectStore, key: MakeKey, features: Features
) -> None:
    upload, etags = await begin(store, key("a"), b"x")
    await store.abort_upload(key("a"), upload)
    await store.abort_upload(key("a"), upload)

    if features.refuses_gone_upload:
        with pytest.raises(NoSuchUpload):
            await store.upload_part(key("a"), upload, 2, b"y")
        with pytest.raises(NoSuchUpload):
            await store.complete_upload(key("a"), upload, etags)
    with pytest.raises(ObjectMissing):
        await store.head(key("a"))


async def test_a_completed_upload_takes_no_parts(
    store: ObjectStore, key: MakeKey, features: Features
) -> None:
    upload, etags = await begin(store, key("a"), b"x")
    await store.complete_upload(key("a"), upload, etags)

    if features.refuses_gone_upload:
        with pytest.raises(NoSuchUpload):
            await store.upload_part(key("a"), upload, 2, b"y")
    await store.abort_upload(key("a"), upload)
    assert await content(store, key("a")) == b"x"


async def test_a_completion_repeated(store: ObjectStore, key: MakeKey, features: Features) -> None:
    upload, etags = await begin(store, key("a"), b"x")
    etag = await store.complete_upload(key("a"), upload, etags)

    if features.completes_once:
        with pytest.raises(NoSuchUpload):
            await store.complete_upload(key("a"), upload, etags)
    else:
        assert await store.complete_upload(key("a"), upload, etags) == etag


async def test_an_upload_replaces_what_was_there_before(store: ObjectStore, key: MakeKey) -> None:
    await store.put(key("a"), b"old")
    upload, etags = await begin(store, key("a"), b"new")
    assert await content(store, key("a")) == b"old"
    await store.complete_upload(key("a"), upload, etags)
    assert await content(store, key("a")) == b"new"


async def test_completion_if_absent_creates_once(store: ObjectStore, key: MakeKey) -> None:
    upload, etags = await begin(store, key("a"), b"x")
    await store.complete_upload(key("a"), upload, etags, condition=ABSENT)

    again, etags = await begin(store, key("a"), b"y")
    with pytest.raises(ObjectChanged):
        await store.complete_upload(key("a"), again, etags, condition=ABSENT)
    assert await content(store, key("a")) == b"x"


async def test_completion_if_match_replaces_exactly_this_version(
    store: ObjectStore, key: MakeKey, features: Features
) -> None:
    old = await store.put(key("a"), b"old")
    present = await store.put(key("a"), b"present")
    upload, etags = await begin(store, key("a"), b"new")

    if features.complete_honours_if_match:
        with pytest.raises(ObjectChanged):
            await store.complete_upload(key("a"), upload, etags, condition=old)
        assert await content(store, key("a")) == b"present"
    await store.complete_upload(key("a"), upload, etags, condition=present)
    assert await content(store, key("a")) == b"new"


async def test_completion_if_match_of_a_key_that_is_gone(
    store: ObjectStore, key: MakeKey, features: Features
) -> None:
    old = await store.put(key("a"), b"old")
    upload, etags = await begin(store, key("a"), b"new")
    await store.delete(key("a"))

    if not features.complete_honours_if_match:
        await store.complete_upload(key("a"), upload, etags, condition=old)
        return
    with pytest.raises(ObjectChanged):
        await store.complete_upload(key("a"), upload, etags, condition=old)


async def test_a_put_while_the_upload_ran_wins(
    store: ObjectStore, key: MakeKey, features: Features
) -> None:
    """AWS orders by the creation of the upload, though the completion answers success."""
    upload, etags = await begin(store, key("a"), b"upload")
    await store.put(key("a"), b"put")
    await store.complete_upload(key("a"), upload, etags)

    wins = b"put" if features.upload_is_ordered_by_its_creation else b"upload"
    assert await content(store, key("a")) == wins


async def test_a_delete_while_the_upload_ran_wins(
    store: ObjectStore, key: MakeKey, features: Features
) -> None:
    await store.put(key("a"), b"old")
    upload, etags = await begin(store, key("a"), b"upload")
    await store.delete(key("a"))
    await store.complete_upload(key("a"), upload, etags)

    if features.upload_is_ordered_by_its_creation:
        with pytest.raises(ObjectMissing):
            await store.head(key("a"))
    else:
        assert await content(store, key("a")) == b"upload"


async def test_a_condition_that_holds_again_after_a_change_is_a_conflict(
    store: ObjectStore, key: MakeKey, features: Features
) -> None:
    upload, etags = await begin(store, key("a"), b"upload")
    await store.put(key("a"), b"put")
    await store.delete(key("a"))

    if not features.upload_is_ordered_by_its_creation:
        await store.complete_upload(key("a"), upload, etags, condition=ABSENT)
        return
    with pytest.raises(NoSuchUpload):
        await store.complete_upload(key("a"), upload, etags, condition=ABSENT)
    with pytest.raises(ObjectMissing):
        await store.head(key("a"))
