"""A store that does not answer at all: when it counts as away, and how it comes back."""

import random

import pytest
import trio
from trio.testing import MockClock

from tests.fs.stores import ScriptedStore
from ucfuse.errors import ObjectMissing, StoreUnavailable, Throttled
from ucfuse.metrics import Metrics
from ucfuse.store.memory import MemoryStore
from ucfuse.store.presence import Presence
from ucfuse.store.retrying import RetryingStore
from ucfuse.volume import Key

A = Key("a")


@pytest.fixture
def presence(metrics: Metrics) -> Presence:
    return Presence("s3://bucket/", 60.0, metrics)


async def wait(presence: Presence, seconds: float) -> None:
    """Somebody waits this long, in vain."""
    began = trio.current_time()
    await trio.sleep(seconds)
    presence.unheard(began)


async def test_a_store_that_keeps_silent_for_the_limit_is_away(
    presence: Presence, metrics: Metrics, autojump_clock: MockClock
) -> None:
    """README, Many volumes: a store without any answer is not waited for any more."""
    await wait(presence, 30)
    await wait(presence, 29)
    await presence.require("a")
    await wait(presence, 2)

    assert metrics.is_away
    with pytest.raises(StoreUnavailable):
        await presence.require("a")


async def test_any_answer_in_between_counts(
    presence: Presence, metrics: Metrics, autojump_clock: MockClock
) -> None:
    await wait(presence, 59)
    presence.heard()
    await wait(presence, 59)

    assert not metrics.is_away


async def test_waiting_side_by_side_counts_once(
    presence: Presence, metrics: Metrics, autojump_clock: MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(wait, presence, 30)

    assert not metrics.is_away


async def test_time_in_which_nobody_asks_counts_for_nothing(
    presence: Presence, metrics: Metrics, autojump_clock: MockClock
) -> None:
    for _ in range(5):
        await wait(presence, 5)
        await trio.sleep(3600)

    assert not metrics.is_away


async def test_it_is_probed_until_it_answers(
    presence: Presence, metrics: Metrics, autojump_clock: MockClock
) -> None:
    """It is used again soon after it is back."""
    is_back = False

    async def probe() -> None:
        if not is_back:
            await trio.sleep_forever()
        presence.heard()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(presence.serve, probe, nursery)
        await wait(presence, 61)
        await trio.sleep(7)
        assert metrics.is_away
        is_back = True
        await trio.sleep(2)
        assert not metrics.is_away
        await presence.require("a")
        nursery.cancel_scope.cancel()


async def test_a_store_that_is_back_is_found_by_the_first_who_asks(
    presence: Presence, metrics: Metrics, autojump_clock: MockClock
) -> None:
    """README, Many volumes: it is used again as soon as it answers, though probes still stall."""
    probes = 0

    async def probe() -> None:
        nonlocal probes
        probes += 1
        if probes < 3:
            await trio.sleep_forever()
        presence.heard()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(presence.serve, probe, nursery)
        await wait(presence, 61)
        await trio.sleep(1.01)
        assert probes == 2
        await presence.require("a")
        assert probes == 3
        nursery.cancel_scope.cancel()


async def test_never_more_than_a_few_probes_wait(
    presence: Presence, metrics: Metrics, autojump_clock: MockClock
) -> None:
    waiting = most = 0

    async def probe() -> None:
        nonlocal waiting, most
        waiting += 1
        most = max(most, waiting)
        try:
            await trio.sleep_forever()
        finally:
            waiting -= 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(presence.serve, probe, nursery)
        await wait(presence, 61)
        for _ in range(100):
            with pytest.raises(StoreUnavailable):
                await presence.require("a")
        assert 4 < most <= 8
        nursery.cancel_scope.cancel()


async def test_a_request_begins_only_where_the_store_is_present(
    presence: Presence, metrics: Metrics, autojump_clock: MockClock
) -> None:
    """What is refused is refused at once, and nothing is sent."""
    bucket = ScriptedStore(MemoryStore())
    store = RetryingStore(bucket, random.Random(1), presence=presence)
    for _ in range(4):  # attempts within the minute: each takes twice as long as the one before
        bucket.hold("HEAD")
    with trio.move_on_after(61):
        await store.head(A)
    assert metrics.is_away
    began = trio.current_time()

    for request in (
        lambda: store.head(A),
        lambda: store.get(A, 0, 1),
        lambda: store.put(A, b""),
        lambda: store.list_page("", delimited=True),
        lambda: store.create_upload(A),
    ):
        with pytest.raises(StoreUnavailable):
            await request()  # type: ignore[no-untyped-call]
    assert trio.current_time() - began < 2  # a short grace for each
    await store.delete(A)  # the end of what has begun

    presence.heard()
    with pytest.raises(ObjectMissing):
        await store.head(A)


async def test_a_refusal_is_an_answer(
    presence: Presence, metrics: Metrics, autojump_clock: MockClock
) -> None:
    """A store that throttles for minutes is there."""
    bucket = ScriptedStore(MemoryStore())

    class Answers(ScriptedStore):
        async def head(self, key: Key) -> None:  # type: ignore[override]
            raise Throttled(key)

    store = RetryingStore(Answers(bucket), random.Random(1), presence=presence)
    with pytest.raises(Throttled), trio.fail_after(200):
        await store.head(A)

    assert not metrics.is_away
