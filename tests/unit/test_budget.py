"""The memory budget: who gets bytes, in which order, and that all of them come back."""

import random

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from ucfuse.budget import GrowingBudget, MemoryBudget, Reservation, divided


def test_a_reservation_counts_until_it_is_released() -> None:
    budget = MemoryBudget(100)

    reservation = budget.reserve_nowait(60)

    assert reservation is not None
    assert budget.reserved_bytes == 60
    assert budget.reserve_nowait(41) is None
    reservation.release()
    assert budget.reserved_bytes == 0


def test_releasing_twice_returns_the_bytes_once() -> None:
    budget = MemoryBudget(100)
    first, second = budget.reserve_nowait(30), budget.reserve_nowait(30)
    assert first is not None
    assert second is not None

    first.release()
    first.release()

    assert budget.reserved_bytes == 30


def test_shrinking_returns_the_surplus_and_never_grows() -> None:
    budget = MemoryBudget(100)
    reservation = budget.reserve_nowait(60)
    assert reservation is not None

    reservation.shrink_to(20)
    reservation.shrink_to(50)

    assert budget.reserved_bytes == reservation.size_bytes == 20
    reservation.release()
    assert budget.reserved_bytes == 0


def test_a_request_above_the_limit_runs_alone() -> None:
    budget = MemoryBudget(100)

    large = budget.reserve_nowait(500)

    assert large is not None
    assert budget.reserve_nowait(1) is None
    large.release()
    assert budget.reserve_nowait(1) is not None


async def test_waiting_is_first_come_first_served() -> None:
    """A small request does not overtake a large one that came before it."""
    budget = MemoryBudget(100)
    held = await budget.reserve(60)
    order: list[int] = []

    async def take(size: int) -> None:
        reservation = await budget.reserve(size)
        order.append(size)
        reservation.release()

    async with trio.open_nursery() as nursery:
        for size in (90, 20, 10):
            nursery.start_soon(take, size)
            await wait_all_tasks_blocked()
        assert order == []
        assert budget.is_contended
        assert budget.reserve_nowait(1) is None
        held.release()

    assert order[0] == 90
    assert budget.reserved_bytes == 0
    assert not budget.is_contended


async def test_a_waiter_that_gives_up_lets_the_next_one_in() -> None:
    budget = MemoryBudget(100)
    held = await budget.reserve(60)
    granted: list[Reservation] = []

    async def take_small() -> None:
        granted.append(await budget.reserve(40))

    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as patience:
            async with trio.open_nursery() as inner:
                inner.start_soon(budget.reserve, 90)
                await wait_all_tasks_blocked()
                nursery.start_soon(take_small)
                await wait_all_tasks_blocked()
                assert granted == []
                patience.cancel()

    assert [reservation.size_bytes for reservation in granted] == [40]
    granted[0].release()
    held.release()
    assert budget.reserved_bytes == 0


async def test_a_waiter_cancelled_in_the_moment_of_its_grant_loses_no_bytes() -> None:
    budget = MemoryBudget(100)
    held = await budget.reserve(100)
    granted: list[Reservation] = []

    async def take() -> None:
        granted.append(await budget.reserve(50))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take)
        await wait_all_tasks_blocked()
        held.release()
        nursery.cancel_scope.cancel()

    assert sum(reservation.size_bytes for reservation in granted) == budget.reserved_bytes == 50
    granted[0].release()
    assert budget.reserved_bytes == 0


async def test_reclaimers_are_asked_before_anybody_waits_and_only_as_far_as_needed() -> None:
    budget = MemoryBudget(100)
    idle = [await budget.reserve(25) for _ in range(4)]
    asked: list[int] = []

    def give_back(wanted_bytes: int) -> None:
        asked.append(wanted_bytes)
        while idle and wanted_bytes > 0:
            wanted_bytes -= idle[0].size_bytes
            idle.pop(0).release()

    budget.add_reclaimer(give_back)
    budget.add_reclaimer(lambda wanted_bytes: pytest.fail("there was enough already"))

    reservation = await budget.reserve(40)

    assert asked == [40]
    assert len(idle) == 2
    assert budget.reserved_bytes == 90
    reservation.release()


async def test_a_request_above_the_limit_makes_reclaimers_give_all() -> None:
    budget = MemoryBudget(100)
    idle = await budget.reserve(30)
    budget.add_reclaimer(lambda wanted_bytes: idle.release())

    large = await budget.reserve(1000)

    assert budget.reserved_bytes == 1000
    large.release()


def test_optional_bytes_take_a_quarter_at_most() -> None:
    """Whatever holds them up leaves the rest to those whom programs wait for."""
    budget = MemoryBudget(100)
    first = budget.reserve_optional(20)
    assert first is not None
    assert budget.reserve_optional(6) is None
    second = budget.reserve_optional(5)
    assert second is not None
    assert budget.reserve_nowait(75) is not None

    first.release()
    first.release()

    assert budget.reserve_optional(21) is None
    assert budget.reserve_optional(20) is not None
    assert budget.reserved_bytes == 100


def test_optional_bytes_need_room_like_all_others() -> None:
    budget = MemoryBudget(100)
    rest = budget.reserve_nowait(90)
    assert rest is not None
    assert budget.reserve_optional(20) is None

    rest.release()

    assert budget.reserve_optional(20) is not None


def test_random_traffic_never_exceeds_the_limit_and_leaves_nothing() -> None:
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)

    async def one(budget: MemoryBudget) -> None:
        with trio.move_on_after(chance.uniform(0, 5)):
            reservation = await budget.reserve(chance.randint(1, 100))
            try:
                assert budget.reserved_bytes <= budget.limit_bytes
                await trio.sleep(chance.uniform(0, 1))
            finally:
                reservation.release()

    async def main() -> None:
        budget = MemoryBudget(100)
        async with trio.open_nursery() as nursery:
            for _ in range(300):
                nursery.start_soon(one, budget)
        assert budget.reserved_bytes == 0, f"seed {seed}"
        assert not budget.is_contended

    trio.run(main, clock=MockClock(autojump_threshold=0))


async def test_a_divided_budget_is_one_limit() -> None:
    """README, One memory limit: for all volumes together."""
    one, two = divided(400, 2)  # 100 for each, 200 in common

    held = [await one.reserve(300)]
    assert one.reserve_nowait(1) is None
    held.append(await two.reserve(100))
    assert two.reserve_nowait(1) is None
    assert one.reserved_bytes + two.reserved_bytes == 400

    for reservation in held:
        reservation.release()
    assert (await two.reserve(300)).size_bytes == 300


async def test_a_member_that_holds_all_it_can_leaves_others_their_own_part() -> None:
    """A volume that stalls with full hands holds no other volume up."""
    stalled, other = divided(400, 2)
    await stalled.reserve(300)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stalled.reserve, 50)
        await wait_all_tasks_blocked()
        held = other.reserve_nowait(100)
        assert held is not None
        nursery.start_soon(other.reserve, 60)
        await wait_all_tasks_blocked()
        assert other.reserved_bytes == 100
        held.release()
        await wait_all_tasks_blocked()
        assert other.reserved_bytes == 60
        nursery.cancel_scope.cancel()


async def test_what_one_member_returns_lets_the_first_that_waits_in() -> None:
    one, two = divided(400, 2)
    held = await one.reserve(300)
    order: list[str] = []

    async def take(budget: MemoryBudget, name: str) -> None:
        await budget.reserve(250)
        order.append(name)

    async with trio.open_nursery() as nursery:
        for name, budget in (("two", two), ("one", one)):
            nursery.start_soon(take, budget, name)
            await wait_all_tasks_blocked()
        assert one.is_contended
        assert two.is_contended
        held.release()
        await wait_all_tasks_blocked()
        assert order == ["two"]
        nursery.cancel_scope.cancel()


async def test_idle_bytes_of_one_member_are_asked_back_for_another() -> None:
    one, two = divided(400, 2)
    idle = await one.reserve(300)
    one.add_reclaimer(lambda wanted_bytes: idle.shrink_to(idle.size_bytes - wanted_bytes))

    with trio.fail_after(1):
        await two.reserve(150)

    assert idle.size_bytes == 250


async def test_a_member_may_take_more_than_the_limit_only_when_nobody_else_has_of_it() -> None:
    one, two = divided(400, 2)
    small = await two.reserve(50)  # its own part
    huge = one.reserve_nowait(1000)
    assert huge is not None
    assert two.reserve_nowait(100) is None
    huge.release()
    small.release()
    assert one.reserved_bytes == two.reserved_bytes == 0


async def test_what_can_be_done_without_takes_a_quarter_of_all_members_together() -> None:
    one, two = divided(800, 2)

    for member in (one, two):
        assert member.reserve_optional(100) is not None
        assert member.reserve_optional(1) is None


async def test_budgets_of_volumes_that_come_later_are_one_limit_all_the_time() -> None:
    """README, Promises: --memory-limit holds, however many volumes are opened."""
    growing = GrowingBudget(1600, parts=2)  # 400 for each, 800 in common
    first = growing.join()
    held = [await first.reserve(100) for _ in range(12)]
    assert first.reserve_nowait(100) is None  # the part of the second stays free

    others = [growing.join() for _ in range(3)]  # now 200 for each
    taken = [one for other in others for _ in range(4) if (one := other.reserve_nowait(100))]

    assert first.reserved_bytes + sum(other.reserved_bytes for other in others) == 1600
    assert len(taken) == 4
    async with trio.open_nursery() as nursery:
        nursery.start_soon(others[2].reserve, 200)
        await wait_all_tasks_blocked()
        for reservation in held:
            reservation.release()
    assert sum(member.reserved_bytes for member in growing.members) == 600
