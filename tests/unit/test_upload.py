"""Commits: the right bytes, the right number of requests, and nothing left behind."""

from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.unit.uploads import KEY, Bench, NewBench, make_bench
from ucfuse.errors import (
    AccessDenied,
    FileTooLarge,
    NoSuchUpload,
    ObjectChanged,
    StoreUnavailable,
)
from ucfuse.store.api import ABSENT
from ucfuse.volume import ETag, Key, MiB
from ucfuse.writing.parts import MAX_OBJECT_BYTES, SMALLEST_PART_BYTES, PartGrid


def part_plan(size: int) -> list[tuple[int, int]]:
    return [(part.start, part.stop) for part in PartGrid().plan(size)]


@pytest.fixture
async def new_bench(nursery: trio.Nursery, tmp_path: Path) -> NewBench:
    def make(budget_bytes: int = 512 * MiB, services: trio.Nursery | None = None) -> Bench:
        return make_bench(tmp_path, services or nursery, budget_bytes)

    return make


@pytest.fixture
async def bench(new_bench: NewBench) -> Bench:
    return new_bench()


async def fail_with(error: Exception) -> None:
    raise error


# The plan of parts


def test_a_plan_covers_the_file_without_gaps() -> None:
    for size in (1, 8 * MiB, 8 * MiB + 1, 20 * MiB, 9000 * MiB + 5, MAX_OBJECT_BYTES):
        plan = part_plan(size)

        assert plan[0][0] == 0
        assert plan[-1][1] == size
        assert all(left[1] == right[0] for left, right in pairwise(plan))


def test_the_largest_object_has_parts_that_every_store_takes() -> None:
    plan = part_plan(MAX_OBJECT_BYTES)

    assert len(plan) <= 10_000
    assert max(stop - start for start, stop in plan) <= 5 * 1024 * MiB
    assert min(stop - start for start, stop in plan[:-1]) == SMALLEST_PART_BYTES


def test_parts_double_at_every_thousand() -> None:
    sizes = [stop - start for start, stop in part_plan(100_000 * MiB)]

    assert (sizes[0], sizes[999], sizes[1000], sizes[2000]) == (
        8 * MiB, 8 * MiB, 16 * MiB, 32 * MiB,
    )  # fmt: skip


def test_an_empty_file_has_no_parts() -> None:
    assert part_plan(0) == []


def test_more_than_an_object_can_be_is_refused() -> None:
    with pytest.raises(FileTooLarge):
        part_plan(MAX_OBJECT_BYTES + 1)


# Small files


@pytest.mark.parametrize("size", [0, 5, 8 * MiB])
async def test_a_file_up_to_8_mib_is_one_put(bench: Bench, size: int) -> None:
    staging, data = await bench.staged(size)

    info = await bench.commit(KEY, staging, ABSENT)

    assert await bench.stored() == data
    assert bench.store.requests == {"PUT": 1}
    assert info.etag == (await bench.other.head(KEY)).info.etag
    assert (info.key, info.size, info.mtime_s) == (KEY, size, None)
    assert bench.budget.reserved_bytes == 0


async def test_extended_parts_of_a_file_are_stored_as_zeros(bench: Bench) -> None:
    staging, data = await bench.staged(5)
    await staging.truncate(100_000)

    await bench.commit(KEY, staging, None)

    assert await bench.stored() == data + bytes(100_000 - 5)


@pytest.mark.parametrize("size", [5, 20 * MiB])
async def test_a_failed_condition_leaves_the_other_version(bench: Bench, size: int) -> None:
    await bench.other.put(KEY, b"theirs")
    staging, _ = await bench.staged(size)

    for condition in (ABSENT, ETag('"other"')):
        with pytest.raises(ObjectChanged):
            await bench.commit(KEY, staging, condition)

    assert await bench.stored() == b"theirs"
    await bench.assert_nothing_left()


async def test_a_file_with_bytes_of_the_base_only_is_a_bug(bench: Bench) -> None:
    staging = bench.area.new(KEY, 10)

    with pytest.raises(AssertionError):
        await bench.commit(KEY, staging, None)

    assert not bench.store.requests


# Large files


async def test_a_larger_file_is_sent_in_parts_and_confirmed(bench: Bench) -> None:
    staging, data = await bench.staged(20 * MiB)

    info = await bench.commit(KEY, staging, ABSENT)

    assert await bench.stored() == data
    assert bench.store.requests == {"CREATE": 1, "PART": 3, "COMPLETE": 1, "HEAD": 1}
    assert info == (await bench.other.head(KEY)).info
    assert info.mtime_s == 1_700_000_000
    assert bench.budget.reserved_bytes == 0


async def test_parts_are_sent_side_by_side(bench: Bench) -> None:
    staging, _ = await bench.staged(20 * MiB)
    all_begun = trio.Event()

    async def wait_for_the_others() -> None:
        if bench.store.requests["PART"] == 3:
            all_begun.set()
        await all_begun.wait()

    bench.store.before["PART"] = wait_for_the_others
    await bench.commit(KEY, staging, None)

    assert bench.store.most_parts_at_once == 3


@pytest.mark.parametrize(("part_mib", "at_once"), [(5, 16), (8, 16), (16, 8), (32, 8)])
async def test_larger_parts_are_fewer_at_once(
    nursery: trio.Nursery, tmp_path: Path, part_mib: int, at_once: int
) -> None:
    bench = make_bench(tmp_path, nursery, 2048 * MiB, part_mib * MiB)
    staging, _ = await bench.staged(1)
    await staging.truncate(20 * part_mib * MiB)
    bench.store.before["PART"] = trio.sleep_forever

    async with trio.open_nursery() as committing:
        committing.start_soon(bench.commit, KEY, staging, None)
        await wait_all_tasks_blocked()
        assert bench.budget.reserved_bytes == at_once * part_mib * MiB
        committing.cancel_scope.cancel()

    await bench.assert_nothing_left()


@pytest.mark.parametrize("budget_mib", [1, 8, 17])
async def test_any_budget_suffices(new_bench: NewBench, budget_mib: int) -> None:
    bench = new_bench(budget_mib * MiB)
    staging, data = await bench.staged(40 * MiB)

    async with trio.open_nursery() as both:
        both.start_soon(bench.commit, KEY, staging, None)
        both.start_soon(bench.commit, Key("second"), staging, None)

    assert await bench.stored() == data
    assert bench.store.most_parts_at_once <= max(1, budget_mib // 8)
    assert bench.budget.reserved_bytes == 0


async def test_an_overwrite_elsewhere_during_the_upload_is_a_conflict(bench: Bench) -> None:
    """The completion answers success, but the version of the other client is what is there."""
    staging, _ = await bench.staged(20 * MiB)

    async def overwrite() -> None:
        await bench.other.put(KEY, b"theirs")

    bench.store.before["COMPLETE"] = overwrite
    with pytest.raises(ObjectChanged):
        await bench.commit(KEY, staging, None)

    assert await bench.stored() == b"theirs"


async def test_a_removal_elsewhere_during_the_upload_is_a_conflict(bench: Bench) -> None:
    staging, _ = await bench.staged(20 * MiB)

    async def remove() -> None:
        await bench.other.delete(KEY)

    bench.store.before["COMPLETE"] = remove
    with pytest.raises(ObjectChanged):
        await bench.commit(KEY, staging, None)


@pytest.mark.parametrize("request_kind", ["PART", "COMPLETE"])
async def test_an_upload_that_vanishes_is_sent_again_whole(bench: Bench, request_kind: str) -> None:
    staging, data = await bench.staged(20 * MiB)

    async def vanish_once() -> None:
        del bench.store.before[request_kind]
        raise NoSuchUpload(KEY)

    bench.store.before[request_kind] = vanish_once
    await bench.commit(KEY, staging, ABSENT)

    assert await bench.stored() == data
    assert bench.store.requests["CREATE"] == 2
    assert bench.store.requests["PART"] >= 3 + 1
    assert bench.budget.reserved_bytes == 0


async def test_an_upload_that_always_vanishes_is_given_up(bench: Bench) -> None:
    staging, _ = await bench.staged(20 * MiB)
    bench.store.before["COMPLETE"] = partial(fail_with, NoSuchUpload(KEY))

    with pytest.raises(NoSuchUpload):
        await bench.commit(KEY, staging, None)

    assert bench.store.requests["CREATE"] == bench.store.requests["ABORT"] == 3


async def test_a_part_refused_for_good_aborts_the_upload(bench: Bench) -> None:
    """The other parts end at once, also those that would never be answered."""
    staging, _ = await bench.staged(40 * MiB)

    async def deny_third() -> None:
        if bench.store.requests["PART"] == 3:
            raise AccessDenied(KEY)
        await trio.sleep_forever()

    bench.store.before["PART"] = deny_third
    with pytest.raises(AccessDenied):
        await bench.commit(KEY, staging, None)

    assert bench.store.requests["ABORT"] == 1
    assert bench.store.requests["COMPLETE"] == 0
    await bench.assert_nothing_left()


async def test_a_bug_while_sending_reaches_the_one_who_commits(bench: Bench) -> None:
    staging, _ = await bench.staged(20 * MiB)
    bench.store.before["PART"] = partial(fail_with, ZeroDivisionError())

    with pytest.raises(ZeroDivisionError):
        await bench.commit(KEY, staging, None)

    assert bench.store.requests["ABORT"] == 1


@pytest.mark.parametrize("request_kind", ["PART", "COMPLETE"])
async def test_a_cancelled_commit_aborts_its_upload(bench: Bench, request_kind: str) -> None:
    staging, _ = await bench.staged(40 * MiB)
    bench.store.before[request_kind] = trio.sleep_forever

    async with trio.open_nursery() as committing:
        committing.start_soon(bench.commit, KEY, staging, None)
        await reached(bench, request_kind)
        committing.cancel_scope.cancel()

    assert bench.store.requests["ABORT"] == 1
    await bench.assert_nothing_left()


async def test_when_the_nursery_ends_so_does_the_commit(new_bench: NewBench) -> None:
    async with trio.open_nursery() as services:
        bench = new_bench(services=services)
        staging, _ = await bench.staged(20 * MiB)

        async def end_services() -> None:
            services.cancel_scope.cancel()
            await trio.sleep_forever()

        bench.store.before["PART"] = end_services
        async with trio.open_nursery() as committing:
            committing.cancel_scope.shield = True
            with pytest.RaisesGroup(StoreUnavailable):
                async with trio.open_nursery() as group:
                    group.start_soon(bench.commit, KEY, staging, None)

    assert bench.store.requests["ABORT"] == 1
    await bench.assert_nothing_left()


# Patience


async def reached(bench: Bench, request_kind: str, count: int = 1) -> None:
    """Wait until that many requests of the kind have begun and everything waits."""
    while bench.store.requests[request_kind] < count:
        await wait_all_tasks_blocked()


@pytest.mark.parametrize("request_kind", ["PUT", "CREATE", "PART", "COMPLETE", "HEAD"])
async def test_a_commit_that_nothing_answers_ends(
    bench: Bench, mock_clock: MockClock, request_kind: str
) -> None:
    staging, _ = await bench.staged(5 if request_kind == "PUT" else 20 * MiB)
    bench.store.before[request_kind] = trio.sleep_forever

    with pytest.RaisesGroup(pytest.RaisesExc(StoreUnavailable, match="model.pt")):
        async with trio.open_nursery() as committing:
            committing.start_soon(bench.commit, KEY, staging, None)
            await reached(bench, request_kind)
            mock_clock.jump(301)

    await bench.assert_nothing_left()


async def test_every_finished_part_gives_new_patience(
    new_bench: NewBench, mock_clock: MockClock
) -> None:
    bench = new_bench(8 * MiB)  # one part at a time
    staging, data = await bench.staged(40 * MiB)
    bench.store.before["PART"] = partial(trio.sleep, 200)

    async with trio.open_nursery() as committing:
        committing.start_soon(bench.commit, KEY, staging, None)
        for number in range(1, 6):
            await reached(bench, "PART", number)
            mock_clock.jump(200)

    assert await bench.stored() == data
    assert trio.current_time() >= 1000


async def test_an_upload_that_cannot_be_aborted_is_named_in_the_log(
    bench: Bench, mock_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    staging, _ = await bench.staged(20 * MiB)
    bench.store.before["COMPLETE"] = partial(fail_with, AccessDenied(KEY))
    bench.store.before["ABORT"] = trio.sleep_forever

    with pytest.RaisesGroup(AccessDenied):
        async with trio.open_nursery() as committing:
            committing.start_soon(bench.commit, KEY, staging, None)
            await reached(bench, "ABORT")
            mock_clock.jump(10)

    assert KEY in caplog.text
    assert bench.store.uploads[0] in caplog.text
