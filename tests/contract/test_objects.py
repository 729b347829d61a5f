"""head, get, put and delete: whole objects, ranges and conditions."""

import hashlib
from itertools import pairwise

import pytest
import trio

from tests.contract.conftest import MakeKey
from tests.contract.features import Features
from ucfuse.errors import ObjectChanged, ObjectMissing, StoreRefused
from ucfuse.store.api import ABSENT, Fetched, NotModified, ObjectStore
from ucfuse.volume import ETag, Key, MiB

OTHER = ETag('"00000000000000000000000000000000"')


def pattern(size: int, seed: int = 0) -> bytes:
    """Bytes of which no two blocks are alike."""
    block = b"".join(hashlib.sha256(b"%d %d" % (seed, i)).digest() for i in range(1024))
    return (block * (size // len(block) + 1))[:size]


async def fetch(store: ObjectStore, key: Key, start: int, stop: int) -> Fetched:
    answer = await store.get(key, start, stop)
    assert isinstance(answer, Fetched)
    return answer


@pytest.mark.parametrize("size", [0, 1, 1 * MiB, 9 * MiB])
async def test_what_was_put_comes_back(store: ObjectStore, key: MakeKey, size: int) -> None:
    body = pattern(size)
    etag = await store.put(key("a"), body)

    head = await store.head(key("a"))
    assert (head.info.key, head.info.size, head.info.etag) == (key("a"), size, etag)
    assert head.metadata == {}
    fetched = await fetch(store, key("a"), 0, max(size, 1))
    assert fetched.data == body
    assert fetched.info == head.info
    assert fetched.start == 0


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
async def test_any_buffer_can_be_put(store: ObjectStore, key: MakeKey, kind: type) -> None:
    await store.put(key("a"), kind(b"buffer"))
    assert (await fetch(store, key("a"), 0, 6)).data == b"buffer"


async def test_a_buffer_is_free_once_put_returned(store: ObjectStore, key: MakeKey) -> None:
    body = bytearray(b"old")
    await store.put(key("a"), body)
    body[:] = b"new"
    assert (await fetch(store, key("a"), 0, 3)).data == b"old"


async def test_an_etag_is_the_quoted_md5(store: ObjectStore, key: MakeKey) -> None:
    etag = await store.put(key("a"), b"hello")
    assert etag == f'"{hashlib.md5(b"hello").hexdigest()}"'


async def test_the_same_bytes_have_the_same_etag(store: ObjectStore, key: MakeKey) -> None:
    first = await store.put(key("a"), b"same")
    assert await store.put(key("a"), b"same") == first
    assert await store.put(key("a"), b"other") != first


async def test_mtime_is_in_whole_seconds_and_the_same_everywhere(
    store: ObjectStore, key: MakeKey
) -> None:
    await store.put(key("a"), b"x")

    told = (await store.head(key("a"))).info
    assert isinstance(told.mtime_s, int)
    assert (await fetch(store, key("a"), 0, 1)).info == told
    page = await store.list_page(key(""), delimited=True)
    assert list(page.objects) == [told]


async def test_metadata_comes_back_in_lower_case(store: ObjectStore, key: MakeKey) -> None:
    await store.put(key("a"), b"", metadata={"ucfuse-create": "Nonce-1"})
    assert (await store.head(key("a"))).metadata == {"ucfuse-create": "Nonce-1"}

    await store.put(key("a"), b"")
    assert (await store.head(key("a"))).metadata == {}


@pytest.mark.parametrize(
    ("start", "stop"), [(0, 1), (0, 10), (3, 7), (9, 10), (0, 100), (5, 100), (9, 11)]
)
async def test_a_range_is_cut_at_the_end_only(
    store: ObjectStore, key: MakeKey, start: int, stop: int
) -> None:
    body = b"0123456789"
    etag = await store.put(key("a"), body)

    fetched = await fetch(store, key("a"), start, stop)
    assert fetched.data == body[start:stop]
    assert fetched.start == start
    assert (fetched.info.size, fetched.info.etag) == (10, etag)


@pytest.mark.parametrize("size", [0, 10])
@pytest.mark.parametrize("past", [0, 1, 5 * MiB])
async def test_a_range_past_the_end_has_no_bytes_but_tells_the_version(
    store: ObjectStore, key: MakeKey, size: int, past: int
) -> None:
    etag = await store.put(key("a"), bytes(size))

    fetched = await fetch(store, key("a"), size + past, size + past + 10)
    assert fetched.data == b""
    assert (fetched.info.size, fetched.info.etag) == (size, etag)


async def test_an_empty_range_tells_the_version(store: ObjectStore, key: MakeKey) -> None:
    etag = await store.put(key("a"), b"abc")

    fetched = await fetch(store, key("a"), 1, 1)
    assert (fetched.data, fetched.info.size, fetched.info.etag) == (b"", 3, etag)
    with pytest.raises(ObjectChanged):
        await store.get(key("a"), 1, 1, if_match=OTHER)


async def test_ranges_of_a_large_object_fit_together(store: ObjectStore, key: MakeKey) -> None:
    body = pattern(9 * MiB)
    etag = await store.put(key("a"), body)

    cuts = [0, 1, 4096, MiB, MiB + 1, 8 * MiB, 9 * MiB]
    read = []
    for start, stop in pairwise(cuts):
        answer = await store.get(key("a"), start, stop, if_match=etag)
        assert isinstance(answer, Fetched)
        read.append(answer.data)
    assert b"".join(read) == body


@pytest.mark.parametrize("stop", [3, 100])
async def test_get_if_match_never_gives_another_version(
    store: ObjectStore, key: MakeKey, stop: int
) -> None:
    old = await store.put(key("a"), b"old")
    answer = await store.get(key("a"), 0, stop, if_match=old)
    assert isinstance(answer, Fetched)
    assert answer.data == b"old"

    await store.put(key("a"), b"new")
    with pytest.raises(ObjectChanged):
        await store.get(key("a"), 0, stop, if_match=old)
    with pytest.raises(ObjectChanged):
        await store.get(key("a"), 50, 60, if_match=old)
    await store.delete(key("a"))
    with pytest.raises(ObjectChanged):
        await store.get(key("a"), 0, stop, if_match=old)


async def test_get_if_none_match_sends_only_what_is_new(store: ObjectStore, key: MakeKey) -> None:
    old = await store.put(key("a"), b"old")
    assert await store.get(key("a"), 0, 3, if_none_match=old) == NotModified(old)

    new = await store.put(key("a"), b"new")
    answer = await store.get(key("a"), 0, 3, if_none_match=old)
    assert isinstance(answer, Fetched)
    assert (answer.data, answer.info.etag) == (b"new", new)
    await store.delete(key("a"))
    with pytest.raises(ObjectMissing):
        await store.get(key("a"), 0, 3, if_none_match=new)


async def test_get_if_none_match_of_an_empty_object(store: ObjectStore, key: MakeKey) -> None:
    etag = await store.put(key("a"), b"")
    assert await store.get(key("a"), 0, 10, if_none_match=etag) == NotModified(etag)

    answer = await store.get(key("a"), 0, 10, if_none_match=OTHER)
    assert isinstance(answer, Fetched)
    assert (answer.data, answer.info.etag) == (b"", etag)


async def test_put_if_absent_creates_once(store: ObjectStore, key: MakeKey) -> None:
    await store.put(key("a"), b"first", condition=ABSENT)
    with pytest.raises(ObjectChanged):
        await store.put(key("a"), b"second", condition=ABSENT)
    assert (await fetch(store, key("a"), 0, 10)).data == b"first"

    await store.delete(key("a"))
    await store.put(key("a"), b"third", condition=ABSENT)
    assert (await fetch(store, key("a"), 0, 10)).data == b"third"


async def test_put_if_match_replaces_exactly_this_version(store: ObjectStore, key: MakeKey) -> None:
    first = await store.put(key("a"), b"first")
    second = await store.put(key("a"), b"second", condition=first)
    with pytest.raises(ObjectChanged):
        await store.put(key("a"), b"third", condition=first)
    assert (await store.head(key("a"))).info.etag == second

    await store.delete(key("a"))
    with pytest.raises(ObjectChanged):
        await store.put(key("a"), b"fourth", condition=second)
    with pytest.raises(ObjectMissing):
        await store.head(key("a"))


async def test_of_many_creators_one_wins(store: ObjectStore, key: MakeKey) -> None:
    winners: list[int] = []

    async def create(number: int) -> None:
        try:
            await store.put(key("a"), b"%d" % number, condition=ABSENT)
        except ObjectChanged:
            return
        winners.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(8):
            nursery.start_soon(create, number)

    assert len(winners) == 1
    assert (await fetch(store, key("a"), 0, 10)).data == b"%d" % winners[0]


async def test_delete_removes_and_an_absent_key_is_success(
    store: ObjectStore, key: MakeKey
) -> None:
    await store.put(key("a"), b"x")
    await store.delete(key("a"))
    with pytest.raises(ObjectMissing):
        await store.head(key("a"))
    await store.delete(key("a"))
    await store.delete(key("never"))
    assert (await store.list_page(key(""), delimited=False)).objects == []


async def test_delete_if_match_removes_exactly_this_version(
    store: ObjectStore, key: MakeKey
) -> None:
    old = await store.put(key("a"), b"old")
    new = await store.put(key("a"), b"new")
    with pytest.raises(ObjectChanged):
        await store.delete(key("a"), if_match=old)
    assert (await store.head(key("a"))).info.etag == new

    await store.delete(key("a"), if_match=new)
    with pytest.raises(ObjectMissing):
        await store.head(key("a"))
    with pytest.raises(ObjectChanged):
        await store.delete(key("a"), if_match=new)


@pytest.mark.parametrize("name", ["never", "a", "a/", "a/b/", "a/b/c"])
async def test_a_missing_key_is_missing_everywhere(
    store: ObjectStore, key: MakeKey, features: Features, name: str
) -> None:
    await store.put(key("a/b"), b"x")
    if name == "a/" and not features.directories_are_no_objects:
        assert (await store.head(key(name))).info.size == 0
        return
    with pytest.raises(ObjectMissing):
        await store.head(key(name))
    with pytest.raises(ObjectMissing):
        await store.get(key(name), 0, 10)


async def test_a_key_over_1024_bytes_is_refused(
    store: ObjectStore, key: MakeKey, features: Features
) -> None:
    long = key("ä" * 1024)
    if not features.limits_key_length:
        await store.put(long, b"x")
        return
    with pytest.raises(StoreRefused):
        await store.put(long, b"x")
