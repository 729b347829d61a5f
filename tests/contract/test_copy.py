"""copy: exactly one version, inside the store."""

import pytest

from tests.contract.conftest import MakeKey
from tests.contract.features import Features
from ucfuse.errors import ObjectChanged, ObjectMissing
from ucfuse.store.api import ABSENT, Fetched, ObjectStore
from ucfuse.volume import MiB


async def test_a_copy_has_the_bytes_and_the_source_stays(store: ObjectStore, key: MakeKey) -> None:
    etag = await store.put(key("from"), b"bytes")

    info = await store.copy(key("from"), etag, key("to"))
    assert (info.key, info.size) == (key("to"), 5)
    assert info == (await store.head(key("to"))).info
    answer = await store.get(key("to"), 0, 10, if_match=info.etag)
    assert isinstance(answer, Fetched)
    assert answer.data == b"bytes"
    assert (await store.head(key("from"))).info.etag == etag


@pytest.mark.parametrize("size", [0, 9 * MiB])
async def test_a_copy_of_any_size(store: ObjectStore, key: MakeKey, size: int) -> None:
    etag = await store.put(key("from"), bytes(size))
    assert (await store.copy(key("from"), etag, key("to"))).size == size


async def test_a_copy_replaces_what_is_there(store: ObjectStore, key: MakeKey) -> None:
    etag = await store.put(key("from"), b"new")
    await store.put(key("to"), b"old and longer")

    info = await store.copy(key("from"), etag, key("to"))
    assert info.size == 3


async def test_a_missing_source_is_missing(store: ObjectStore, key: MakeKey) -> None:
    etag = await store.put(key("from"), b"x")
    await store.delete(key("from"))

    with pytest.raises(ObjectMissing):
        await store.copy(key("from"), etag, key("to"))
    with pytest.raises(ObjectMissing):
        await store.head(key("to"))


async def test_another_version_of_the_source_is_not_copied(
    store: ObjectStore, key: MakeKey, features: Features
) -> None:
    old = await store.put(key("from"), b"old")
    await store.put(key("from"), b"new")

    if not features.copy_checks_source:
        assert (await store.copy(key("from"), old, key("to"))).size == 3
        return
    with pytest.raises(ObjectChanged):
        await store.copy(key("from"), old, key("to"))
    with pytest.raises(ObjectMissing):
        await store.head(key("to"))


async def test_a_copy_if_absent_replaces_nothing(
    store: ObjectStore, key: MakeKey, features: Features
) -> None:
    etag = await store.put(key("from"), b"new")
    old = await store.put(key("to"), b"old")

    if not features.copy_honours_condition:
        assert (await store.copy(key("from"), etag, key("to"), condition=ABSENT)).etag == etag
        return
    with pytest.raises(ObjectChanged):
        await store.copy(key("from"), etag, key("to"), condition=ABSENT)
    assert (await store.head(key("to"))).info.etag == old
    await store.copy(key("from"), etag, key("free"), condition=ABSENT)
    assert (await store.head(key("free"))).info.etag == etag


async def test_a_copy_if_match_replaces_exactly_this_version(
    store: ObjectStore, key: MakeKey, features: Features
) -> None:
    etag = await store.put(key("from"), b"new")
    old = await store.put(key("to"), b"old")
    present = await store.put(key("to"), b"present")

    if features.copy_honours_condition:
        with pytest.raises(ObjectChanged):
            await store.copy(key("from"), etag, key("to"), condition=old)
        assert (await store.head(key("to"))).info.etag == present
    info = await store.copy(key("from"), etag, key("to"), condition=present)
    assert info.etag == etag
