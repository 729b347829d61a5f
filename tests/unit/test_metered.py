"""Requests and bytes are counted, by kind, as they are made."""

from ucfuse.metrics import STORE_REQUEST_KINDS, Metrics
from ucfuse.store.api import ABSENT, NotModified
from ucfuse.store.memory import MemoryStore
from ucfuse.store.metered import MeteredStore
from ucfuse.volume import Key

KEY = Key("a")


async def test_each_kind_of_request_is_counted_once() -> None:
    metrics = Metrics()
    store = MeteredStore(MemoryStore(), metrics)
    etag = await store.put(KEY, b"12345", condition=ABSENT)
    await store.head(KEY)
    await store.get(KEY, 1, 3)
    await store.list_page("", delimited=True)
    await store.copy(KEY, etag, Key("b"))
    await store.delete(Key("b"))
    upload = await store.create_upload(KEY)
    part = await store.upload_part(KEY, upload, 1, memoryview(b"1234567"))
    await store.complete_upload(KEY, upload, [part])
    await store.abort_upload(KEY, await store.create_upload(KEY))

    expected = dict.fromkeys(STORE_REQUEST_KINDS, 1) | {"CREATE": 2, "PARTCOPY": 0}
    assert metrics.store_requests == expected
    assert metrics.store_bytes_sent == 12
    assert metrics.store_bytes_received == 2


async def test_an_unchanged_object_is_a_get_without_bytes() -> None:
    metrics = Metrics()
    store = MeteredStore(MemoryStore(), metrics)
    etag = await store.put(KEY, b"12345")
    assert await store.get(KEY, 0, 5, if_none_match=etag) == NotModified(etag)
    assert metrics.store_requests["GET"] == 1
    assert metrics.store_bytes_received == 0
