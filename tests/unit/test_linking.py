"""How a store makes a conditional copy: found out at the mount, with nothing left behind."""

from collections.abc import Sequence

import pytest

from tests.fs.kernel import keys_in
from tests.fs.stores import Denying
from ucfuse.errors import AccessDenied, NotPermitted, StoreRefused
from ucfuse.metrics import Metrics
from ucfuse.store.api import Condition, UploadId, Whole
from ucfuse.store.conditions import HeadFirst
from ucfuse.store.linking import CopyCondition
from ucfuse.store.memory import MemoryStore
from ucfuse.store.metered import MeteredStore
from ucfuse.volume import ETag, Key, ObjectInfo


class CopiesOver(MemoryStore):
    """A store that honours every condition but that of a copy."""

    async def copy(
        self, source: Key, source_etag: ETag, target: Key, *, condition: Condition = None
    ) -> ObjectInfo:
        return await super().copy(source, source_etag, target)


class RefusesSuchCopies(MemoryStore):
    async def copy(
        self, source: Key, source_etag: ETag, target: Key, *, condition: Condition = None
    ) -> ObjectInfo:
        raise StoreRefused(source, "not implemented")


class CompletesOver(CopiesOver):
    """A store that honours the conditions of PUT alone."""

    async def complete_upload(
        self,
        key: Key,
        upload: UploadId,
        parts: Sequence[ETag],
        *,
        condition: Condition = None,
        whole: Whole | None = None,
    ) -> ETag:
        return await super().complete_upload(key, upload, parts, whole=whole)


@pytest.mark.parametrize(
    ("kind", "is_ignored"), [(MemoryStore, False), (CopiesOver, True), (RefusesSuchCopies, True)]
)
async def test_the_way_of_a_store_is_found_once_and_nothing_is_left_in_it(
    kind: type[MemoryStore], is_ignored: bool
) -> None:
    metrics = Metrics()
    store = kind()
    condition = CopyCondition(MeteredStore(store, metrics), "some/prefix/")

    assert [await condition.is_ignored() for _ in range(3)] == [is_ignored] * 3
    assert metrics.store_requests["PUT"] == 2
    assert await keys_in(store) == []


async def test_a_store_that_lets_two_win_makes_no_links() -> None:
    store = CompletesOver()

    with pytest.raises(NotPermitted, match="two programs could both get one name"):
        await CopyCondition(store, "").is_ignored()
    assert await keys_in(store) == []


async def test_a_store_that_is_asked_before_each_change_makes_no_links() -> None:
    with pytest.raises(NotPermitted):
        await CopyCondition(HeadFirst(MemoryStore()), "").is_ignored()
    assert not await CopyCondition(HeadFirst(MemoryStore(), is_needed=False), "").is_ignored()


async def test_what_fails_a_request_is_told_and_asked_again() -> None:
    condition = CopyCondition(Denying(), "")
    for _ in range(2):
        with pytest.raises(AccessDenied):
            await condition.is_ignored()
