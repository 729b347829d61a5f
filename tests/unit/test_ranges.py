"""A `RangeSet` behaves like a set of the numbers in its ranges."""

from hypothesis import given
from hypothesis import strategies as st

from ucfuse.writing.ranges import RangeSet

LIMIT = 40
bounds = st.tuples(st.integers(0, LIMIT), st.integers(0, LIMIT))
changes = st.lists(st.tuples(st.booleans(), bounds), max_size=30)


def apply(steps: list[tuple[bool, tuple[int, int]]]) -> tuple[RangeSet, set[int]]:
    ranges, numbers = RangeSet(), set[int]()
    for is_addition, (start, stop) in steps:
        if is_addition:
            ranges.add(start, stop)
            numbers |= set(range(start, stop))
        else:
            ranges.remove(start, stop)
            numbers -= set(range(start, stop))
    return ranges, numbers


@given(steps=changes)
def test_ranges_hold_the_numbers_added_and_not_removed(
    steps: list[tuple[bool, tuple[int, int]]],
) -> None:
    ranges, numbers = apply(steps)

    assert [n for start, stop in ranges for n in range(start, stop)] == sorted(numbers)
    assert ranges.byte_count == len(numbers)


@given(steps=changes)
def test_ranges_neither_overlap_nor_touch_nor_are_empty(
    steps: list[tuple[bool, tuple[int, int]]],
) -> None:
    ranges, _ = apply(steps)

    flat = [bound for pair in ranges for bound in pair]

    assert flat == sorted(set(flat))
    assert len(ranges) == len(flat) // 2


@given(steps=changes, asked=bounds)
def test_missing_is_what_a_range_lacks(
    steps: list[tuple[bool, tuple[int, int]]], asked: tuple[int, int]
) -> None:
    ranges, numbers = apply(steps)

    missing = ranges.missing(*asked)

    assert [n for start, stop in missing for n in range(start, stop)] == sorted(
        set(range(*asked)) - numbers
    )
    assert all(start < stop for start, stop in missing)


@given(steps=changes, asked=bounds)
def test_contains_says_whether_nothing_is_missing(
    steps: list[tuple[bool, tuple[int, int]]], asked: tuple[int, int]
) -> None:
    ranges, numbers = apply(steps)

    assert ranges.contains(*asked) == (set(range(*asked)) <= numbers)


def test_a_file_written_in_order_is_one_range() -> None:
    ranges = RangeSet()

    for number in range(10_000):
        ranges.add(number * 10, number * 10 + 10)

    assert list(ranges) == [(0, 100_000)]
