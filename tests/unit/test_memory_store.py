"""The store in memory: what AWS S3 does and the other servers of the contract suite do not."""

import random
from bisect import bisect_right

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from ucfuse.errors import NoSuchUpload, ObjectChanged, ObjectMissing, StoreRefused
from ucfuse.store.api import ABSENT, ListPage, ObjectStore
from ucfuse.store.memory import MemoryStore
from ucfuse.store.memory_bucket import MIN_PART_BYTES, MemoryBucket
from ucfuse.volume import Key

KEY = Key("a")


class WallClock:
    """A wall clock that a test sets."""

    def __init__(self) -> None:
        self.now_s = 1000.9

    def __call__(self) -> float:
        return self.now_s


async def test_mtime_is_the_wall_clock_cut_to_seconds() -> None:
    clock = WallClock()
    store: ObjectStore = MemoryStore(MemoryBucket(clock))
    etag = await store.put(KEY, b"x")
    assert (await store.head(KEY)).info.mtime_s == 1000

    clock.now_s = 1007.2
    assert (await store.copy(KEY, etag, Key("b"))).mtime_s == 1007
    assert await store.put(KEY, b"x") == etag
    assert (await store.head(KEY)).info.mtime_s == 1007


async def test_a_multipart_object_is_as_old_as_its_upload() -> None:
    clock = WallClock()
    store = MemoryStore(MemoryBucket(clock))
    upload = await store.create_upload(KEY)
    clock.now_s = 2000.0
    part = await store.upload_part(KEY, upload, 1, b"x")
    clock.now_s = 3000.0
    await store.complete_upload(KEY, upload, [part])
    assert (await store.head(KEY)).info.mtime_s == 1000


async def test_two_stores_of_one_bucket_see_each_other() -> None:
    bucket = MemoryBucket()
    ours, theirs = MemoryStore(bucket), MemoryStore(bucket)
    etag = await ours.put(KEY, b"x")
    assert (await theirs.head(KEY)).info.etag == etag


async def test_of_two_uploads_the_one_begun_last_wins() -> None:
    store = MemoryStore()
    older, newer = await store.create_upload(KEY), await store.create_upload(KEY)
    old_part = await store.upload_part(KEY, older, 1, b"older")
    new_part = await store.upload_part(KEY, newer, 1, b"newer")

    newest = await store.complete_upload(KEY, newer, [new_part])
    assert await store.complete_upload(KEY, older, [old_part]) != newest
    assert (await store.head(KEY)).info.etag == newest


async def test_a_later_upload_replaces_an_earlier_one_that_completed_before() -> None:
    store = MemoryStore()
    older, newer = await store.create_upload(KEY), await store.create_upload(KEY)
    await store.complete_upload(KEY, older, [await store.upload_part(KEY, older, 1, b"older")])
    newest = await store.complete_upload(
        KEY, newer, [await store.upload_part(KEY, newer, 1, b"newer")]
    )
    assert (await store.head(KEY)).info.etag == newest


async def test_a_change_of_another_key_does_not_outdate_an_upload() -> None:
    store = MemoryStore()
    upload = await store.create_upload(KEY)
    part = await store.upload_part(KEY, upload, 1, b"x")
    await store.put(Key("b"), b"")
    await store.delete(Key("b"))
    await store.complete_upload(KEY, upload, [part], condition=ABSENT)
    assert (await store.head(KEY)).info.size == 1


async def test_a_conflict_keeps_the_upload_until_it_is_aborted() -> None:
    store = MemoryStore()
    base = await store.put(KEY, b"base")
    upload = await store.create_upload(KEY)
    part = await store.upload_part(KEY, upload, 1, b"x")
    await store.put(KEY, b"other")
    with pytest.raises(ObjectChanged):
        await store.complete_upload(KEY, upload, [part], condition=base)
    await store.put(KEY, b"base")
    with pytest.raises(NoSuchUpload):
        await store.complete_upload(KEY, upload, [part], condition=base)

    await store.upload_part(KEY, upload, 2, b"still there")
    await store.abort_upload(KEY, upload)
    with pytest.raises(NoSuchUpload):
        await store.upload_part(KEY, upload, 3, b"gone")


async def test_an_upload_belongs_to_its_key() -> None:
    store = MemoryStore()
    upload = await store.create_upload(KEY)
    with pytest.raises(NoSuchUpload):
        await store.upload_part(Key("b"), upload, 1, b"x")
    await store.abort_upload(Key("b"), upload)
    await store.upload_part(KEY, upload, 1, b"x")


async def test_parts_that_are_not_named_are_left_out() -> None:
    store = MemoryStore()
    upload = await store.create_upload(KEY)
    first = await store.upload_part(KEY, upload, 1, bytes(MIN_PART_BYTES))
    await store.upload_part(KEY, upload, 2, b"left out")
    await store.complete_upload(KEY, upload, [first])
    assert (await store.head(KEY)).info.size == MIN_PART_BYTES


async def test_an_upload_without_parts_is_refused() -> None:
    store = MemoryStore()
    with pytest.raises(StoreRefused):
        await store.complete_upload(KEY, await store.create_upload(KEY), [])


async def test_a_copy_onto_itself_is_refused() -> None:
    store = MemoryStore()
    etag = await store.put(KEY, b"x")
    with pytest.raises(StoreRefused):
        await store.copy(KEY, etag, KEY)


async def test_a_copy_of_a_multipart_object_has_a_plain_etag_and_the_metadata() -> None:
    store = MemoryStore()
    plain = await store.put(Key("plain"), b"x", metadata={"name": "value"})
    upload = await store.create_upload(KEY)
    etag = await store.complete_upload(KEY, upload, [await store.upload_part(KEY, upload, 1, b"x")])
    assert etag != plain
    assert (await store.copy(KEY, etag, Key("b"))).etag == plain
    await store.copy(Key("plain"), plain, Key("c"))
    assert (await store.head(Key("c"))).metadata == {"name": "value"}


@pytest.mark.parametrize("key", ["", "\udcff", "é" * 513])
async def test_what_cannot_be_a_key_is_refused(key: str) -> None:
    store = MemoryStore()
    with pytest.raises(StoreRefused):
        await store.put(Key(key), b"x")
    with pytest.raises(StoreRefused):
        await store.create_upload(Key(key))


@pytest.mark.parametrize("token", ["!", "_w==", "é"])
async def test_a_token_of_nobody_is_refused(token: str) -> None:
    with pytest.raises(StoreRefused):
        await MemoryStore().list_page("", delimited=True, token=token)


async def test_a_page_of_no_keys_is_refused() -> None:
    with pytest.raises(StoreRefused):
        await MemoryStore().list_page("", delimited=True, max_keys=0)


async def test_an_answer_may_be_outdated_when_it_arrives() -> None:
    """Between what the bucket did and the return of the method other tasks run."""
    store = MemoryStore()
    old = await store.put(KEY, b"old")
    told: list[bool] = []

    async def ask() -> None:
        etag = (await store.head(KEY)).info.etag
        told.append(etag == (await store.head(KEY)).info.etag)

    for body in (b"new", b"newer") * 50:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            nursery.start_soon(store.put, KEY, body)
    assert (await store.head(KEY)).info.etag != old
    assert set(told) == {True, False}


async def test_a_request_cancelled_before_it_left_changes_nothing() -> None:
    store = MemoryStore()
    with trio.CancelScope() as scope:
        scope.cancel()
        await store.put(KEY, b"x")
    assert scope.cancelled_caught
    with pytest.raises(ObjectMissing):
        await store.head(KEY)


def listing_by_scan(
    keys: list[str], prefix: str, start_after: str | None, *, delimited: bool
) -> list[str]:
    """The plain way: look at every key."""
    entries: list[str] = []
    for key in keys[bisect_right(keys, start_after) if start_after is not None else 0 :]:
        if not key.startswith(prefix):
            continue
        head, slash, _ = key[len(prefix) :].partition("/")
        entry = prefix + head + slash if delimited and slash else key
        if entry not in entries:
            entries.append(entry)
    return entries


async def all_entries(
    store: MemoryStore, prefix: str, start_after: str | None, max_keys: int, *, delimited: bool
) -> list[str]:
    entries: list[str] = []
    token: str | None = None
    while True:
        page: ListPage = await store.list_page(
            prefix, delimited=delimited, start_after=start_after, token=token, max_keys=max_keys
        )
        told = sorted([*(info.key for info in page.objects), *page.prefixes])
        assert len(told) <= max_keys
        entries += told
        token = page.next_token
        if token is None:
            return entries


SHORT_KEYS = st.text(alphabet="a/-0é😀", min_size=1, max_size=6)


@given(
    keys=st.lists(SHORT_KEYS, max_size=20),
    removed=st.lists(st.integers(0, 19), max_size=5),
    prefix=st.text(alphabet="a/-", max_size=3),
    start_after=st.none() | SHORT_KEYS,
    max_keys=st.integers(1, 5),
    delimited=st.booleans(),
)
def test_a_listing_equals_a_look_at_every_key(
    keys: list[str],
    removed: list[int],
    prefix: str,
    start_after: str | None,
    max_keys: int,
    delimited: bool,
) -> None:
    async def run() -> list[str]:
        store = MemoryStore()
        for key in keys:
            await store.put(Key(key), b"")
        for number in removed:
            if number < len(keys):
                await store.delete(Key(keys[number]))
        return await all_entries(store, prefix, start_after, max_keys, delimited=delimited)

    left = set(keys) - {keys[number] for number in removed if number < len(keys)}
    expected = listing_by_scan(
        sorted(left, key=str.encode), prefix, start_after, delimited=delimited
    )
    assert trio.run(run) == expected


def test_a_large_directory_is_skipped_not_scanned() -> None:
    """A delimited page costs the same beside 10 keys and beside 20,000 of a sub-directory."""

    class CountingKeys(list[Key]):
        looked_at = 0

        def __getitem__(self, index):  # type: ignore[no-untyped-def]
            CountingKeys.looked_at += 1
            return super().__getitem__(index)

    bucket = MemoryBucket()
    numbers = random.Random(1).sample(range(20_000), 20_000)
    for number in numbers:
        bucket.put(Key(f"d/{number:05d}"), b"", None, {})
    bucket.put(Key("e"), b"", None, {})
    bucket._keys = CountingKeys(bucket._keys)

    page = bucket.list_page("", delimited=True, start_after=None, token=None, max_keys=1000)
    assert (list(page.prefixes), [info.key for info in page.objects]) == (["d/"], ["e"])
    assert CountingKeys.looked_at < 100
