"""What is repeated, when, and what an unclear outcome becomes. On a virtual clock."""

import hashlib
import random
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from ucfuse.errors import (
    AccessDenied,
    CorruptData,
    NoSuchUpload,
    ObjectChanged,
    ObjectMissing,
    OutcomeUnclear,
    StoreError,
    StoreRefused,
    StoreUnavailable,
    Throttled,
)
from ucfuse.store.api import ABSENT, Fetched
from ucfuse.store.memory import MemoryStore
from ucfuse.store.retrying import RetryingStore
from ucfuse.volume import ETag, Key

KEY = Key("a.bin")
OTHER_KEY = Key("b.bin")
WRONG = ETag('"00000000000000000000000000000000"')


@dataclass(frozen=True)
class Dropped:
    """The request fails and the store did not carry it out."""

    cause: type[StoreError]


@dataclass(frozen=True)
class Lost:
    """The store carries the request out, and only the answer fails."""

    cause: type[StoreError]
    then: Callable[[], Awaitable[Any]] | None = None
    """What another client does right after."""


@dataclass(frozen=True)
class Stalled:
    """No answer ever comes; the store did not carry the request out."""


@dataclass
class FaultyStore:
    """A memory store whose next requests go wrong as the script of their method says."""

    inner: MemoryStore = field(default_factory=MemoryStore)
    script: dict[str, deque[Any]] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    begun_at: list[float] = field(default_factory=list)

    def plan(self, method: str, *faults: Any) -> None:
        self.script[method] = deque(faults)

    def __getattr__(self, method: str) -> Callable[..., Awaitable[Any]]:
        async def call(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(method)
            self.begun_at.append(trio.current_time())
            faults = self.script.get(method)
            fault = faults.popleft() if faults else None
            match fault:
                case Dropped(cause):
                    raise cause(KEY)
                case Stalled():
                    await trio.sleep_forever()
            result = await getattr(self.inner, method)(*args, **kwargs)
            if isinstance(fault, Lost):
                if fault.then is not None:
                    await fault.then()
                raise fault.cause(KEY)
            return result

        return call

    async def content(self, key: Key = KEY) -> bytes:
        answer = await self.inner.get(key, 0, 1 << 20)
        assert isinstance(answer, Fetched)
        return answer.data


class Endless(deque[Any]):
    """A script that never ends."""

    def __init__(self, fault: Any) -> None:
        super().__init__([fault])

    def popleft(self) -> Any:
        return self[0]


@pytest.fixture
def faulty() -> FaultyStore:
    return FaultyStore()


@pytest.fixture
def store(faulty: FaultyStore) -> RetryingStore:
    return RetryingStore(faulty, random.Random(1))


UNCLEAR = [Throttled, StoreUnavailable, OutcomeUnclear]


# Requests that do no harm


@pytest.mark.parametrize("cause", UNCLEAR)
async def test_a_failure_that_may_pass_is_tried_again(
    store: RetryingStore, faulty: FaultyStore, cause: type[StoreError]
) -> None:
    etag = await faulty.inner.put(KEY, b"x")
    faulty.plan("head", Dropped(cause), Dropped(cause))
    assert (await store.head(KEY)).info.etag == etag
    assert faulty.calls == ["head"] * 3


@pytest.mark.parametrize("cause", [AccessDenied, ObjectMissing, ObjectChanged, StoreRefused])
async def test_what_the_store_decided_is_not_asked_twice(
    store: RetryingStore, faulty: FaultyStore, cause: type[StoreError]
) -> None:
    faulty.plan("get", Dropped(cause))
    with pytest.raises(cause):
        await store.get(KEY, 0, 1)
    assert faulty.calls == ["get"]


async def test_corrupt_bytes_are_fetched_once_more(
    store: RetryingStore, faulty: FaultyStore
) -> None:
    await faulty.inner.put(KEY, b"x")
    faulty.plan("get", Dropped(CorruptData))
    answer = await store.get(KEY, 0, 1)
    assert isinstance(answer, Fetched)
    assert answer.data == b"x"


async def test_bytes_that_stay_corrupt_are_an_error(
    store: RetryingStore, faulty: FaultyStore
) -> None:
    faulty.plan("get", Dropped(CorruptData), Dropped(CorruptData))
    with pytest.raises(CorruptData):
        await store.get(KEY, 0, 1)
    assert faulty.calls == ["get", "get"]


async def test_a_stalled_request_is_given_up_and_tried_again(
    store: RetryingStore, faulty: FaultyStore, autojump_clock: MockClock
) -> None:
    await faulty.inner.put(KEY, b"x")
    faulty.plan("head", Stalled(), Stalled())
    await store.head(KEY)
    # 5 s, a pause of up to 0.05 s, 10 s, a pause of up to 0.1 s.
    assert trio.current_time() == pytest.approx(15.0, abs=0.15)


async def test_a_slow_link_gets_twice_the_time_at_each_attempt(
    store: RetryingStore, faulty: FaultyStore, autojump_clock: MockClock
) -> None:
    faulty.plan("get", Stalled(), Stalled(), Dropped(ObjectMissing))
    with trio.fail_after(1000), pytest.raises(ObjectMissing):
        await store.get(KEY, 0, 1)
    first, second, third = faulty.begun_at
    assert second - first == pytest.approx(15.0, abs=0.1)
    assert third - second == pytest.approx(30.0, abs=0.1)


async def test_pauses_grow_and_are_never_longer_than_five_seconds(
    store: RetryingStore, faulty: FaultyStore, autojump_clock: MockClock
) -> None:
    faulty.script["head"] = Endless(Dropped(Throttled))
    with trio.CancelScope(deadline=600), pytest.raises(Throttled):
        await store.head(KEY)
    pauses = [b - a for a, b in zip(faulty.begun_at, faulty.begun_at[1:], strict=False)]
    assert all(p <= min(5.0, 0.05 * 2**i) + 1e-9 for i, p in enumerate(pauses))
    assert max(pauses) > 4.0
    assert len(pauses) > 100


async def test_without_a_deadline_it_gives_up_after_a_minute(
    store: RetryingStore, faulty: FaultyStore, autojump_clock: MockClock
) -> None:
    faulty.script["head"] = Endless(Dropped(Throttled))
    with pytest.raises(Throttled):
        await store.head(KEY)
    assert 50.0 < trio.current_time() <= 60.0


async def test_without_a_deadline_a_store_that_is_silent_ends_too(
    store: RetryingStore, faulty: FaultyStore, autojump_clock: MockClock
) -> None:
    faulty.script["get"] = Endless(Stalled())
    with pytest.raises(StoreUnavailable):
        await store.get(KEY, 0, 1)
    assert trio.current_time() == pytest.approx(60.0, abs=0.5)


async def test_a_repeat_that_could_not_begin_in_time_raises_the_cause_at_once(
    store: RetryingStore, faulty: FaultyStore, autojump_clock: MockClock
) -> None:
    faulty.script["head"] = Endless(Dropped(Throttled))
    with trio.CancelScope(deadline=3.0) as scope, pytest.raises(Throttled):
        await store.head(KEY)
    assert not scope.cancelled_caught
    assert trio.current_time() < 3.0


@pytest.mark.parametrize("method", ["put", "delete", "create_upload", "upload_part"])
async def test_silence_to_a_change_leaves_it_unclear(
    store: RetryingStore, faulty: FaultyStore, autojump_clock: MockClock, method: str
) -> None:
    arguments: dict[str, tuple[Any, ...]] = {
        "put": (KEY, b"x"),
        "upload_part": (KEY, "u", 1, b"x"),
    }
    faulty.script[method] = Endless(Stalled())
    with pytest.raises(OutcomeUnclear):
        await getattr(store, method)(*arguments.get(method, (KEY,)))


# Conditional PUT


async def test_the_first_refusal_of_a_put_costs_no_question(
    store: RetryingStore, faulty: FaultyStore
) -> None:
    await faulty.inner.put(KEY, b"theirs")
    with pytest.raises(ObjectChanged):
        await store.put(KEY, b"ours", condition=ABSENT)
    assert faulty.calls == ["put"]


@pytest.mark.parametrize("cause", UNCLEAR)
async def test_a_put_whose_answer_was_lost_is_ours(
    store: RetryingStore, faulty: FaultyStore, cause: type[StoreError]
) -> None:
    faulty.plan("put", Lost(cause))
    etag = await store.put(KEY, b"ours", condition=ABSENT)
    assert etag == f'"{hashlib.md5(b"ours").hexdigest()}"'
    assert faulty.calls == ["put", "head"]


@pytest.mark.parametrize("cause", UNCLEAR)
async def test_a_put_that_never_arrived_is_sent_again(
    store: RetryingStore, faulty: FaultyStore, cause: type[StoreError]
) -> None:
    base = await faulty.inner.put(KEY, b"base")
    faulty.plan("put", Dropped(cause))
    await store.put(KEY, b"ours", condition=base)
    assert faulty.calls == ["put", "head", "put"]
    assert await faulty.content() == b"ours"


async def test_a_put_that_another_version_overtook_is_a_conflict(
    store: RetryingStore, faulty: FaultyStore
) -> None:
    faulty.plan("put", Lost(OutcomeUnclear, lambda: faulty.inner.put(KEY, b"theirs")))
    with pytest.raises(ObjectChanged):
        await store.put(KEY, b"ours", condition=ABSENT)
    assert await faulty.content() == b"theirs"


async def test_a_put_that_lands_after_we_asked_is_still_ours(
    store: RetryingStore, faulty: FaultyStore
) -> None:
    """HEAD finds nothing yet, the repeat fails its own condition, the second HEAD explains it."""
    faulty.plan("put", Dropped(OutcomeUnclear), Dropped(ObjectChanged))
    real_head = faulty.inner.head
    seen: list[bool] = []

    async def head(key: Key) -> Any:
        if seen:
            await faulty.inner.put(KEY, b"ours")
        seen.append(True)
        return await real_head(key)

    faulty.inner.head = head  # type: ignore[method-assign]
    etag = await store.put(KEY, b"ours", condition=ABSENT)
    assert etag == f'"{hashlib.md5(b"ours").hexdigest()}"'
    assert faulty.calls == ["put", "head", "put", "head"]


async def test_metadata_tells_our_empty_object_from_anothers(
    store: RetryingStore, faulty: FaultyStore
) -> None:
    def theirs() -> Awaitable[ETag]:
        return faulty.inner.put(KEY, b"", metadata={"nonce": "theirs"})

    faulty.plan("put", Lost(OutcomeUnclear, theirs))
    with pytest.raises(ObjectChanged):
        await store.put(KEY, b"", condition=ABSENT, metadata={"nonce": "ours"})


async def test_metadata_proves_our_object(store: RetryingStore, faulty: FaultyStore) -> None:
    faulty.plan("put", Lost(OutcomeUnclear))
    await store.put(KEY, b"", condition=ABSENT, metadata={"nonce": "ours"})
    assert faulty.calls == ["put", "head"]


async def test_a_put_that_cannot_be_asked_about_stays_unclear(
    store: RetryingStore, faulty: FaultyStore, autojump_clock: MockClock
) -> None:
    faulty.plan("put", Dropped(OutcomeUnclear))
    faulty.script["head"] = Endless(Dropped(StoreUnavailable))
    with trio.CancelScope(deadline=20), pytest.raises(OutcomeUnclear):
        await store.put(KEY, b"ours", condition=ABSENT)


async def test_one_unclear_attempt_leaves_the_whole_unclear(
    store: RetryingStore, faulty: FaultyStore, autojump_clock: MockClock
) -> None:
    faulty.plan("put", Dropped(OutcomeUnclear), *[Dropped(StoreUnavailable)] * 200)
    with pytest.raises(OutcomeUnclear):
        await store.put(KEY, b"ours", condition=ABSENT)


async def test_an_unconditional_put_is_simply_sent_again(
    store: RetryingStore, faulty: FaultyStore
) -> None:
    faulty.plan("put", Lost(OutcomeUnclear), Dropped(Throttled))
    await store.put(KEY, b"ours")
    assert faulty.calls == ["put", "put", "put"]


# Conditional DELETE


async def test_a_delete_whose_answer_was_lost_is_done(
    store: RetryingStore, faulty: FaultyStore
) -> None:
    etag = await faulty.inner.put(KEY, b"x")
    faulty.plan("delete", Lost(OutcomeUnclear))
    await store.delete(KEY, if_match=etag)
    assert faulty.calls == ["delete", "head"]


async def test_a_delete_that_never_arrived_is_sent_again(
    store: RetryingStore, faulty: FaultyStore
) -> None:
    etag = await faulty.inner.put(KEY, b"x")
    faulty.plan("delete", Dropped(Throttled))
    await store.delete(KEY, if_match=etag)
    with pytest.raises(ObjectMissing):
        await faulty.inner.head(KEY)


async def test_a_delete_never_takes_anothers_version(
    store: RetryingStore, faulty: FaultyStore
) -> None:
    etag = await faulty.inner.put(KEY, b"x")
    faulty.plan("delete", Lost(OutcomeUnclear, lambda: faulty.inner.put(KEY, b"theirs")))
    with pytest.raises(ObjectChanged):
        await store.delete(KEY, if_match=etag)
    assert await faulty.content() == b"theirs"


# Copy


async def test_a_copy_whose_answer_was_lost_is_done(
    store: RetryingStore, faulty: FaultyStore
) -> None:
    etag = await faulty.inner.put(KEY, b"x")
    faulty.plan("copy", Lost(OutcomeUnclear))
    info = await store.copy(KEY, etag, OTHER_KEY, condition=ABSENT)
    assert (info.key, info.etag) == (OTHER_KEY, etag)
    assert faulty.calls == ["copy", "head"]


async def test_a_copy_that_never_arrived_is_sent_again(
    store: RetryingStore, faulty: FaultyStore
) -> None:
    etag = await faulty.inner.put(KEY, b"x")
    faulty.plan("copy", Dropped(StoreUnavailable))
    await store.copy(KEY, etag, OTHER_KEY, condition=ABSENT)
    assert await faulty.content(OTHER_KEY) == b"x"


async def test_a_copy_beside_a_strange_version_is_unclear(
    store: RetryingStore, faulty: FaultyStore
) -> None:
    etag = await faulty.inner.put(KEY, b"x")
    faulty.plan("copy", Lost(OutcomeUnclear, lambda: faulty.inner.put(OTHER_KEY, b"theirs")))
    with pytest.raises(OutcomeUnclear):
        await store.copy(KEY, etag, OTHER_KEY, condition=ABSENT)


# Complete


async def test_a_completion_whose_answer_was_lost_is_done(
    store: RetryingStore, faulty: FaultyStore
) -> None:
    upload = await store.create_upload(KEY)
    part = await store.upload_part(KEY, upload, 1, b"only")
    faulty.plan("complete_upload", Lost(OutcomeUnclear))
    etag = await store.complete_upload(KEY, upload, [part], condition=ABSENT)
    assert etag == (await faulty.inner.head(KEY)).info.etag
    assert faulty.calls.count("complete_upload") == 1


async def test_a_completion_that_never_arrived_is_sent_again(
    store: RetryingStore, faulty: FaultyStore
) -> None:
    upload = await store.create_upload(KEY)
    part = await store.upload_part(KEY, upload, 1, b"only")
    faulty.plan("complete_upload", Dropped(Throttled))
    await store.complete_upload(KEY, upload, [part], condition=ABSENT)
    assert await faulty.content() == b"only"


async def test_an_upload_that_is_gone_at_the_repeat_needs_all_parts_anew(
    store: RetryingStore, faulty: FaultyStore
) -> None:
    upload = await store.create_upload(KEY)
    part = await store.upload_part(KEY, upload, 1, b"only")
    faulty.plan("complete_upload", Dropped(OutcomeUnclear), Dropped(NoSuchUpload))
    with pytest.raises(NoSuchUpload):
        await store.complete_upload(KEY, upload, [part])
    assert faulty.calls.count("complete_upload") == 2


async def test_the_first_answer_that_an_upload_is_gone_is_final(
    store: RetryingStore, faulty: FaultyStore
) -> None:
    with pytest.raises(NoSuchUpload):
        await store.complete_upload(KEY, "gone", [WRONG], condition=ABSENT)  # type: ignore[arg-type]
    assert faulty.calls == ["complete_upload"]


async def test_etags_that_are_no_md5_leave_a_completion_unclear(
    store: RetryingStore, faulty: FaultyStore
) -> None:
    await faulty.inner.put(KEY, b"ours or theirs")
    faulty.plan("complete_upload", Dropped(OutcomeUnclear))
    with pytest.raises(OutcomeUnclear):
        await store.complete_upload(KEY, "u", [ETag('"opaque"')], condition=ABSENT)  # type: ignore[arg-type]
