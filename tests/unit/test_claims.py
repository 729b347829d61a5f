"""Claims: all changes of one key run one after another, in the order of arrival."""

import random

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from ucfuse.names.claims import Claims

pytestmark = pytest.mark.timeout(20)


class Journal:
    """Tasks that hold claims until they are told to end, and the order in which they began."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.claims = Claims()
        self.began: list[str] = []
        self._nursery = nursery
        self._ends: dict[str, trio.Event] = {}
        self._scopes: dict[str, trio.CancelScope] = {}

    async def start(self, label: str, *keys: str) -> None:
        self._ends[label] = trio.Event()
        self._scopes[label] = trio.CancelScope()
        self._nursery.start_soon(self._hold, label, keys)
        await wait_all_tasks_blocked()

    async def end(self, label: str) -> None:
        self._ends[label].set()
        await wait_all_tasks_blocked()

    async def cancel(self, label: str) -> None:
        self._scopes[label].cancel()
        await wait_all_tasks_blocked()

    async def _hold(self, label: str, keys: tuple[str, ...]) -> None:
        with self._scopes[label]:
            async with self.claims.hold(*keys):
                self.began.append(label)
                await self._ends[label].wait()


async def test_claims_of_one_key_follow_each_other_in_the_order_of_arrival() -> None:
    async with trio.open_nursery() as nursery:
        journal = Journal(nursery)
        for label in ("one", "two", "three"):
            await journal.start(label, "a")
        assert journal.began == ["one"]
        await journal.end("one")
        assert journal.began == ["one", "two"]
        await journal.end("two")
        await journal.end("three")
        assert journal.began == ["one", "two", "three"]


async def test_claims_of_different_keys_do_not_wait() -> None:
    async with trio.open_nursery() as nursery:
        journal = Journal(nursery)
        for key in ("a", "b", "a/b", "ab"):
            await journal.start(key, key)
        assert journal.began == ["a", "b", "a/b", "ab"]
        for key in ("a", "b", "a/b", "ab"):
            await journal.end(key)


@pytest.mark.parametrize("first", ["d/", "d/x", "d/sub/", "d/sub/x"])
async def test_a_tree_is_claimed_with_all_below_it(first: str) -> None:
    async with trio.open_nursery() as nursery:
        journal = Journal(nursery)
        second = "d/sub/x" if first == "d/" else "d/"
        await journal.start("first", first)
        await journal.start("second", second)
        await journal.start("beside", "dx")
        assert journal.began == ["first", "beside"]
        await journal.end("first")
        assert journal.began == ["first", "beside", "second"]
        await journal.end("second")
        await journal.end("beside")


async def test_an_operation_with_two_keys_waits_for_both() -> None:
    async with trio.open_nursery() as nursery:
        journal = Journal(nursery)
        await journal.start("a", "a")
        await journal.start("b", "b")
        await journal.start("both", "a", "b")
        await journal.end("a")
        assert "both" not in journal.began
        await journal.end("b")
        assert journal.began == ["a", "b", "both"]
        await journal.end("both")


async def test_crossing_operations_do_not_wait_for_each_other_for_ever() -> None:
    async with trio.open_nursery() as nursery:
        journal = Journal(nursery)
        await journal.start("there", "a", "b")
        await journal.start("back", "b", "a")
        await journal.end("there")
        assert journal.began == ["there", "back"]
        await journal.end("back")


async def test_one_operation_may_name_a_key_and_the_tree_of_that_name() -> None:
    async with trio.open_nursery() as nursery:
        journal = Journal(nursery)
        await journal.start("one", "d", "d/", "d", "e")
        assert journal.began == ["one"]
        await journal.end("one")


async def test_who_gives_up_waiting_is_not_waited_for() -> None:
    async with trio.open_nursery() as nursery:
        journal = Journal(nursery)
        await journal.start("one", "a")
        await journal.start("two", "a")
        await journal.start("three", "a")
        await journal.cancel("two")
        assert journal.began == ["one"]
        await journal.end("one")
        assert journal.began == ["one", "three"]
        await journal.end("three")


async def test_a_holder_that_fails_or_is_cancelled_lets_the_next_begin() -> None:
    async with trio.open_nursery() as nursery:
        journal = Journal(nursery)
        with pytest.raises(ValueError, match="inside"):
            async with journal.claims.hold("a"):
                raise ValueError("inside")
        await journal.start("one", "a")
        await journal.start("two", "a/", "a")
        await journal.cancel("one")
        assert journal.began == ["one", "two"]
        await journal.end("two")


async def test_random_claims_never_overlap_and_all_end() -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)  # noqa: T201
    rng = random.Random(seed)
    keys = ["a", "b", "d/", "d/a", "d/b", "d/e/", "d/e/a"]
    held: list[tuple[str, ...]] = []
    claims, ended = Claims(), 0

    def overlap(one: str, other: str) -> bool:
        return (
            one == other
            or (one.endswith("/") and other.startswith(one))
            or (other.endswith("/") and one.startswith(other))
        )

    async def work(mine: tuple[str, ...]) -> None:
        nonlocal ended
        async with claims.hold(*mine):
            assert not any(overlap(a, b) for a in mine for theirs in held for b in theirs)
            held.append(mine)
            for _ in range(rng.randrange(4)):
                await trio.lowlevel.checkpoint()
            held.remove(mine)
        ended += 1

    async with trio.open_nursery() as nursery:
        for _ in range(300):
            nursery.start_soon(work, tuple(rng.sample(keys, rng.randint(1, 3))))
            if rng.random() < 0.3:
                await trio.lowlevel.checkpoint()

    assert ended == 300
