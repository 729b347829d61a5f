"""Plans of multipart uploads: what is sent, what is copied, within the limits of S3."""

from itertools import pairwise
from random import Random

import pytest

from ucfuse.errors import FileTooLarge
from ucfuse.volume import GiB, MiB
from ucfuse.writing.parts import (
    MAX_OBJECT_BYTES,
    MAX_PART_COUNT,
    MIN_PART_BYTES,
    Part,
    PartGrid,
    update_plan,
)

Range = tuple[int, int]


def assert_possible(plan: list[Part], size: int, changed: list[Range]) -> None:
    """What S3 takes, and what leaves no changed byte to a copy."""
    assert plan[0].start == 0
    assert plan[-1].stop == size
    assert all(left.stop == right.start for left, right in pairwise(plan))
    assert [part.number for part in plan] == list(range(1, len(plan) + 1))
    assert len(plan) <= MAX_PART_COUNT
    assert all(MIN_PART_BYTES <= part.size <= 5 * GiB for part in plan[:-1])
    assert 0 < plan[-1].size <= 5 * GiB
    for part in plan:
        if part.is_copy:
            assert not any(start < part.stop and part.start < stop for start, stop in changed)


def sent(plan: list[Part]) -> int:
    return sum(part.size for part in plan if not part.is_copy)


@pytest.mark.parametrize("size", [1, 8 * MiB, 8 * MiB + 1, 9000 * MiB + 5, MAX_OBJECT_BYTES])
def test_every_offset_is_in_the_part_that_the_plan_gives_it(size: int) -> None:
    grid = PartGrid()
    plan = grid.plan(size)

    assert_possible(plan, size, [])
    for part in plan[:: max(1, len(plan) // 50)]:
        for offset in (part.start, part.stop - 1):
            assert (grid.at(offset).number, grid.at(offset).start) == (part.number, part.start)


def test_parts_of_a_size_asked_for_are_equal() -> None:
    plan = PartGrid(10 * MiB).plan(35 * MiB)

    assert [part.size for part in plan] == [10 * MiB, 10 * MiB, 10 * MiB, 5 * MiB]
    with pytest.raises(FileTooLarge):
        PartGrid(5 * MiB).plan(50_001 * MiB)


def test_an_appended_line_is_all_that_is_sent() -> None:
    size = 128 * MiB + 100
    plan = update_plan(size, [(128 * MiB, size)])

    assert [(part.is_copy, part.size) for part in plan] == [(True, 128 * MiB), (False, 100)]


def test_a_change_in_the_middle_sends_one_least_part() -> None:
    plan = update_plan(GiB, [(500 * MiB, 500 * MiB + 1)])

    assert_possible(plan, GiB, [(500 * MiB, 500 * MiB + 1)])
    assert sent(plan) == MIN_PART_BYTES


def test_a_change_near_the_beginning_sends_from_there() -> None:
    plan = update_plan(100 * MiB, [(3 * MiB, 3 * MiB + 1)])

    assert [part.is_copy for part in plan] == [False, True]
    assert plan[0].size == 8 * MiB


def test_changes_close_to_each_other_are_sent_as_one() -> None:
    plan = update_plan(100 * MiB, [(20 * MiB, 21 * MiB), (29 * MiB, 30 * MiB)])

    assert [part.is_copy for part in plan] == [True, False, False, True]
    assert sent(plan) == 14 * MiB


def test_a_file_that_was_cut_is_copied_alone() -> None:
    plan = update_plan(2 * GiB + 1, [])

    assert [part.size for part in plan] == [GiB, GiB, 1]
    assert sent(plan) == 0


def test_ten_thousand_scattered_changes_still_fit() -> None:
    size = 1000 * GiB
    changed = [(start, start + 1) for start in range(50 * MiB, size, 60 * MiB)]

    assert_possible(update_plan(size, changed), size, changed)


def test_equal_parts_are_sent_where_anything_in_them_changed() -> None:
    plan = PartGrid(10 * MiB).update_plan(45 * MiB, [(19 * MiB, 21 * MiB), (44 * MiB, 45 * MiB)])

    assert [part.is_copy for part in plan] == [True, False, False, True, False]


@pytest.mark.parametrize("seed", range(100))
def test_any_changes_make_a_plan_that_s3_takes(seed: int) -> None:
    rng = Random(seed)
    size = rng.randrange(6 * MiB, 3000 * MiB)
    cuts = sorted(rng.sample(range(size + 1), 2 * rng.randrange(1, 20)))
    changed = list(zip(cuts[::2], cuts[1::2], strict=True))

    plan = update_plan(size, changed)

    assert_possible(plan, size, changed)
    needless = sent(plan) - sum(stop - start for start, stop in changed)
    assert needless <= (len(changed) + 1) * 2 * MIN_PART_BYTES + MIN_PART_BYTES


@pytest.mark.parametrize("part_bytes", [None, 6 * MiB])
@pytest.mark.parametrize("base_size", [5 * MiB + 1, 20 * MiB, 1 * GiB, 3 * GiB + 7, 3 * GiB - 7])
@pytest.mark.parametrize("grown", [1, 8 * MiB, 8 * MiB + 1, 100 * MiB - 1])
def test_what_streams_of_an_append_is_what_its_plan_sends(
    part_bytes: int | None, base_size: int, grown: int
) -> None:
    grid, size = PartGrid(part_bytes), base_size + grown
    plan = grid.update_plan(size, [(base_size, size)])
    sent = [part for part in plan if not part.is_copy]
    streamed = [part for part in grid.appended(base_size, base_size, size) if part.stop <= size]

    assert [part for part in sent if part in streamed] == streamed
    assert len(sent) - len(streamed) <= 1 + (part_bytes is not None)


def test_no_part_of_an_append_streams_that_no_store_takes() -> None:
    parts = list(PartGrid().appended(1 * GiB, 1 * GiB, 200 * GiB))
    assert parts[-1].number == 10_000
