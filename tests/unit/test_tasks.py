"""Background work: its outcome reaches whoever waits, in time."""

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from ucfuse.errors import NotFound, StoreUnavailable
from ucfuse.tasks import Pending, deadline, end_waits, in_parallel
from ucfuse.volume import Key
from ucfuse.writing.patience import Patience

pytestmark = pytest.mark.timeout(20)


async def test_the_result_reaches_the_waiter(nursery: trio.Nursery) -> None:
    async def work() -> int:
        await trio.lowlevel.checkpoint()
        return 7

    pending = Pending(nursery, work)

    assert await pending.wait() == 7
    assert await pending.wait() == 7


@pytest.mark.parametrize("error", [NotFound("x"), ValueError("a bug")])
async def test_an_error_reaches_the_waiter_and_not_the_nursery(
    nursery: trio.Nursery, error: Exception
) -> None:
    async def work() -> None:
        raise error

    pending = Pending(nursery, work)

    with pytest.raises(type(error)):
        await pending.wait()


async def test_work_goes_on_when_its_waiter_gives_up(nursery: trio.Nursery) -> None:
    release, ended = trio.Event(), trio.Event()

    async def work() -> None:
        await release.wait()
        ended.set()

    pending = Pending(nursery, work)
    with trio.move_on_after(0):
        await pending.wait()
    release.set()

    await ended.wait()
    assert await pending.wait() is None


async def test_work_ends_with_the_deadline_that_its_waiter_had(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    with trio.move_on_after(10):  # noqa: ASYNC100 - the work inherits it
        pending = Pending(nursery, trio.sleep_forever)
    began = trio.current_time()

    with pytest.raises(StoreUnavailable):
        await pending.wait()

    assert trio.current_time() - began == pytest.approx(10)


async def test_a_nursery_that_ends_is_told_to_the_waiter() -> None:
    outcome: list[BaseException] = []

    async with trio.open_nursery() as outer, trio.open_nursery() as inner:
        pending = Pending(inner, trio.sleep_forever)

        async def wait() -> None:
            try:
                await pending.wait()
            except StoreUnavailable as error:
                outcome.append(error)

        outer.start_soon(wait)
        await wait_all_tasks_blocked()
        inner.cancel_scope.cancel()

    assert len(outcome) == 1


async def test_a_block_that_runs_out_of_time_is_no_answer(autojump_clock: MockClock) -> None:
    with pytest.raises(StoreUnavailable), deadline(5, "x"):
        await trio.sleep(6)
    with deadline(5, "x"):
        await trio.sleep(4)
    with pytest.raises(NotFound), deadline(5, "x"):
        raise NotFound("x")


async def test_parallel_work_is_as_wide_as_allowed_and_no_wider(nursery: trio.Nursery) -> None:
    running = widest = 0
    done: list[int] = []

    async def work(item: int) -> None:
        nonlocal running, widest
        running += 1
        widest = max(widest, running)
        for _ in range(10 + item % 3):
            await trio.lowlevel.checkpoint()
        running -= 1
        done.append(item)

    await in_parallel(nursery, work, range(50), 4)

    assert sorted(done) == list(range(50))
    assert widest == 4


async def test_after_a_failure_nothing_begins_and_all_that_began_has_ended(
    nursery: trio.Nursery,
) -> None:
    began: list[int] = []
    ended: list[int] = []

    async def work(item: int) -> None:
        began.append(item)
        try:
            await trio.lowlevel.checkpoint()
            if item == 3:
                raise NotFound(str(item))
            for _ in range(5):
                await trio.lowlevel.checkpoint()
        finally:
            ended.append(item)

    with pytest.raises(NotFound):
        await in_parallel(nursery, work, range(100), 4)

    assert sorted(began) == sorted(ended)
    assert len(began) < 20


async def test_all_waits_end_on_request_and_those_that_begin_later_do_not() -> None:
    """README, abort: as if all time limits were over."""
    reasons: list[str] = []

    async def wait(number: int) -> None:
        patience = Patience(100)
        bound = deadline(100, "a") if number % 2 else patience.bound(Key("a"))
        with pytest.raises(StoreUnavailable) as ended, bound:
            await trio.sleep_forever()
        reasons.append(ended.value.detail)

    end_waits()  # nothing waits yet
    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            for number in range(4):
                nursery.start_soon(wait, number)
            await wait_all_tasks_blocked()
            end_waits()
    assert len(reasons) == 4
    assert all("on request" in reason for reason in reasons)

    with deadline(100, "a"):
        await trio.lowlevel.checkpoint()


async def test_a_wait_that_ran_out_of_time_says_so(autojump_clock: MockClock) -> None:
    with pytest.raises(StoreUnavailable, match="no answer within 2 s"), deadline(2, "a"):
        await trio.sleep_forever()
