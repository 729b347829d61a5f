"""list_page: order, sub-directories, pages and keys that are hard to send."""

import pytest
import trio

from tests.contract.conftest import MakeKey
from tests.contract.features import Features
from ucfuse.errors import ObjectMissing, StoreError
from ucfuse.store.api import Fetched, ListPage, ObjectStore
from ucfuse.volume import Key

ODD_NAMES = [
    "a b",
    " leading and trailing ",
    "a+b",
    "a#b",
    "a?b=c&d=e",
    "100%",
    "%41",
    "%2F",
    "a'b",
    'a"b',
    "a*b",
    "[ab]",
    "{a}",
    "<a>&amp;",
    "a:b;c,d=e",
    "$a@b!c~(d)^`|",
    "carriage\rreturn",
    "tab\there",
    "nfc-\u00e9",
    "nfd-e\u0301",
    "日本語",
    "emoji-😀",
    "\uff5e-before-the-astral-planes",
    "...",
    ".hidden",
    "ends-in-dot.",
    "n" * 255,
]


async def put_all(store: ObjectStore, keys: list[Key]) -> None:
    """Put many empty objects, 32 at once."""
    slots = trio.CapacityLimiter(32)

    async def put(key: Key) -> None:
        async with slots:
            await store.put(key, b"")

    async with trio.open_nursery() as nursery:
        for key in keys:
            nursery.start_soon(put, key)


async def all_pages(
    store: ObjectStore, prefix: str, *, delimited: bool, max_keys: int = 1000
) -> list[ListPage]:
    pages = [await store.list_page(prefix, delimited=delimited, max_keys=max_keys)]
    while (token := pages[-1].next_token) is not None:
        pages.append(
            await store.list_page(prefix, delimited=delimited, token=token, max_keys=max_keys)
        )
    return pages


def keys_of(*pages: ListPage) -> list[str]:
    return [info.key for page in pages for info in page.objects]


def prefixes_of(*pages: ListPage) -> list[str]:
    return [prefix for page in pages for prefix in page.prefixes]


async def test_nothing_below_a_prefix_is_an_empty_page(store: ObjectStore, key: MakeKey) -> None:
    for delimited in (False, True):
        page = await store.list_page(key(""), delimited=delimited)
        assert (keys_of(page), prefixes_of(page), page.next_token) == ([], [], None)


async def test_a_listing_tells_what_head_tells(store: ObjectStore, key: MakeKey) -> None:
    await store.put(key("empty"), b"")
    await store.put(key("full"), b"12345")

    page = await store.list_page(key(""), delimited=False)
    assert list(page.objects) == [(await store.head(key(name))).info for name in ("empty", "full")]


async def test_delimited_shows_children_and_sub_directories(
    store: ObjectStore, key: MakeKey
) -> None:
    await put_all(store, [key(name) for name in ("b", "d/x", "d/y/z", "e/", "f/g/h/i", "z")])

    page = await store.list_page(key(""), delimited=True)
    assert keys_of(page) == [key("b"), key("z")]
    assert prefixes_of(page) == [key("d/"), key("e/"), key("f/")]
    inner = await store.list_page(key("d/"), delimited=True)
    assert keys_of(inner) == [key("d/x")]
    assert prefixes_of(inner) == [key("d/y/")]


async def test_undelimited_shows_every_key_below(store: ObjectStore, key: MakeKey) -> None:
    names = ["b", "d/x", "d/y/z", "z"]
    await put_all(store, [key(name) for name in names])

    page = await store.list_page(key(""), delimited=False)
    assert keys_of(page) == [key(name) for name in names]
    assert prefixes_of(page) == []
    assert keys_of(await store.list_page(key("d/"), delimited=False)) == [
        key("d/x"),
        key("d/y/z"),
    ]


async def test_a_marker_is_an_object_of_its_own_directory(
    store: ObjectStore, key: MakeKey, features: Features
) -> None:
    await store.put(key("d/"), b"")
    assert (await store.head(key("d/"))).info.size == 0

    page = await store.list_page(key("d/"), delimited=True)
    assert keys_of(page) == [key("d/")]
    await store.put(key("d/x"), b"")
    page = await store.list_page(key("d/"), delimited=True)
    assert keys_of(page) == [key("d/"), key("d/x")]
    assert prefixes_of(await store.list_page(key(""), delimited=True)) == [key("d/")]

    await store.delete(key("d/"))
    if features.directories_are_no_objects:
        with pytest.raises(ObjectMissing):
            await store.head(key("d/"))
    assert keys_of(await store.list_page(key("d/"), delimited=True)) == [key("d/x")]


async def test_a_prefix_need_not_end_at_a_slash(store: ObjectStore, key: MakeKey) -> None:
    await put_all(store, [key(name) for name in ("run", "run-1/a", "run-2", "ru", "walk")])

    page = await store.list_page(key("run"), delimited=True)
    assert keys_of(page) == [key("run"), key("run-2")]
    assert prefixes_of(page) == [key("run-1/")]


async def test_keys_come_in_the_order_of_their_utf8_bytes(store: ObjectStore, key: MakeKey) -> None:
    names = ["B", "a", "a!", "a-b", "a0", "aa", "b", "Ä", "ä", "\uff5e", "😀"]
    await put_all(store, [key(name) for name in names])

    page = await store.list_page(key(""), delimited=False)
    assert keys_of(page) == sorted(map(key, names), key=lambda k: k.encode())


async def test_a_file_beside_a_directory_of_its_name(store: ObjectStore, key: MakeKey) -> None:
    await store.put(key("a"), b"file")
    await store.put(key("a/b"), b"child")

    page = await store.list_page(key(""), delimited=True)
    assert prefixes_of(page) == [key("a/")]
    assert keys_of(page) == [key("a")]
    answer = await store.get(key("a/b"), 0, 10)
    assert isinstance(answer, Fetched)
    assert answer.data == b"child"


async def test_pages_follow_each_other_without_gap_or_repeat(
    store: ObjectStore, key: MakeKey
) -> None:
    names = ["a", "b/1", "b/2", "b/3", "c", "d/1", "e", "f/1", "f/2"]
    await put_all(store, [key(name) for name in names])

    for max_keys in (1, 2, 3, 4, 100):
        flat = await all_pages(store, key(""), delimited=False, max_keys=max_keys)
        assert keys_of(*flat) == [key(name) for name in names]
        assert all(len(page.objects) <= max_keys for page in flat)
        pages = await all_pages(store, key(""), delimited=True, max_keys=max_keys)
        assert keys_of(*pages) == [key("a"), key("c"), key("e")]
        assert prefixes_of(*pages) == [key("b/"), key("d/"), key("f/")]
        assert all(len(page.objects) + len(page.prefixes) <= max_keys for page in pages)


async def test_a_listing_starts_after_a_key(store: ObjectStore, key: MakeKey) -> None:
    names = ["a", "b", "c", "d/1", "e"]
    await put_all(store, [key(name) for name in names])

    for delimited in (False, True):
        page = await store.list_page(key(""), delimited=delimited, start_after=key("b"))
        assert keys_of(page)[0] == key("c")
        assert keys_of(page)[-1] == key("e")
        page = await store.list_page(key(""), delimited=delimited, start_after=key("bb"))
        assert keys_of(page)[0] == key("c")
        page = await store.list_page(key(""), delimited=delimited, start_after=key("e"))
        assert (keys_of(page), prefixes_of(page), page.next_token) == ([], [], None)


async def test_pages_after_a_key_go_on_by_token(store: ObjectStore, key: MakeKey) -> None:
    names = [f"{i}" for i in range(1, 8)]
    await put_all(store, [key(name) for name in names])

    first = await store.list_page(key(""), delimited=True, start_after=key("2"), max_keys=2)
    assert keys_of(first) == [key("3"), key("4")]
    assert first.next_token is not None
    rest = await store.list_page(
        key(""), delimited=True, start_after=key("2"), token=first.next_token
    )
    assert keys_of(rest) == [key("5"), key("6"), key("7")]
    assert rest.next_token is None


async def test_a_page_has_at_most_1000_keys(store: ObjectStore, key: MakeKey) -> None:
    keys = [key(f"{i:05d}") for i in range(1005)]
    await put_all(store, keys)

    for delimited in (False, True):
        pages = await all_pages(store, key(""), delimited=delimited)
        assert [len(page.objects) for page in pages] == [1000, 5]
        assert keys_of(*pages) == keys


async def use_in_every_way(store: ObjectStore, key: MakeKey, name: str) -> None:
    """Use a name for a file and for a directory, in every kind of request."""
    body = name.encode()
    etag = await store.put(key(name), body)
    await store.put(key(f"dir/{name}/file"), body)

    assert (await store.head(key(name))).info.key == key(name)
    answer = await store.get(key(name), 0, 1000, if_match=etag)
    assert isinstance(answer, Fetched)
    assert answer.data == body
    assert keys_of(await store.list_page(key(""), delimited=True)) == [key(name)]
    assert prefixes_of(await store.list_page(key("dir/"), delimited=True)) == [key(f"dir/{name}/")]
    inner = await store.list_page(key(f"dir/{name}/"), delimited=True)
    assert keys_of(inner) == [key(f"dir/{name}/file")]
    after = await store.list_page(key(""), delimited=False, start_after=key(name), max_keys=1)
    assert key(name) not in keys_of(after)

    assert (await store.copy(key(name), etag, key(f"{name[:200]}2"))).size == len(body)
    upload = await store.create_upload(key(name))
    part = await store.upload_part(key(name), upload, 1, b"by parts")
    await store.complete_upload(key(name), upload, [part])
    assert (await store.head(key(name))).info.size == 8
    await store.delete(key(name))
    with pytest.raises(ObjectMissing):
        await store.head(key(name))


@pytest.mark.parametrize("name", ODD_NAMES)
async def test_odd_keys_are_kept_to_the_letter(store: ObjectStore, key: MakeKey, name: str) -> None:
    await use_in_every_way(store, key, name)


async def test_a_newline_is_kept(store: ObjectStore, key: MakeKey, features: Features) -> None:
    if features.keeps_newlines:
        await use_in_every_way(store, key, "line\nbreak")
        return
    with pytest.raises(StoreError):
        await store.put(key("line\nbreak"), b"")


async def test_pages_of_odd_keys(store: ObjectStore, key: MakeKey) -> None:
    keys = [key(name) for name in ODD_NAMES]
    await put_all(store, keys)

    pages = await all_pages(store, key(""), delimited=True, max_keys=5)
    assert keys_of(*pages) == sorted(keys, key=lambda k: k.encode())


async def test_normal_forms_are_two_names(store: ObjectStore, key: MakeKey) -> None:
    await store.put(key("\u00e9"), b"composed")
    await store.put(key("e\u0301"), b"de")
    assert (await store.head(key("\u00e9"))).info.size == 8
    assert (await store.head(key("e\u0301"))).info.size == 2


async def test_empty_segments_are_kept(
    store: ObjectStore, key: MakeKey, features: Features
) -> None:
    await store.put(key("a//b"), b"x")

    kept = key("a//b") if features.keeps_empty_segments else key("a/b")
    assert keys_of(await store.list_page(key(""), delimited=False)) == [kept]
    prefixes = prefixes_of(await store.list_page(key("a/"), delimited=True))
    assert prefixes == ([key("a//")] if features.keeps_empty_segments else [])


async def test_a_listing_shows_each_change_at_once(store: ObjectStore, key: MakeKey) -> None:
    for i in range(5):
        await store.put(key(f"d{i}/x"), b"")
        page = await store.list_page(key(""), delimited=True)
        assert prefixes_of(page) == [key(f"d{n}/") for n in range(i + 1)]
    for i in range(5):
        await store.delete(key(f"d{i}/x"))
        page = await store.list_page(key(""), delimited=False)
        assert keys_of(page) == [key(f"d{n}/x") for n in range(i + 1, 5)]
