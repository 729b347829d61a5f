"""Recognising streams by position, and the growth of their windows. No I/O."""

import random

import pytest

from ucfuse.reading.window import Stream, StreamTracker, align_down, align_up
from ucfuse.volume import GiB, KiB, MiB

PART = 8 * MiB


def observe_all(
    tracker: StreamTracker, reads: list[tuple[int, int]], cursor: int = 1
) -> list[Stream | None]:
    return [tracker.observe(start, stop, cursor, 0.0) for start, stop in reads]


def slices(start: int, stop: int, size: int) -> list[tuple[int, int]]:
    return [(at, min(at + size, stop)) for at in range(start, stop, size)]


@pytest.mark.parametrize(("offset", "down", "up"), [(0, 0, 0), (1, 0, 8), (8, 8, 8), (15, 8, 16)])
def test_aligning_keeps_multiples(offset: int, down: int, up: int) -> None:
    assert (align_down(offset, 8), align_up(offset, 8)) == (down, up)


def test_a_reader_from_the_front_is_a_stream_after_half_a_mebibyte() -> None:
    tracker = StreamTracker(PART)

    answers = observe_all(tracker, slices(0, MiB, 128 * KiB))

    assert answers[:3] == [None] * 3
    assert answers[3] is not None
    assert set(answers[3:]) == {answers[3]}


def test_a_header_and_its_read_ahead_are_no_stream() -> None:
    assert observe_all(StreamTracker(PART), [(0, 64 * KiB), (64 * KiB, 192 * KiB)]) == [None, None]


def test_one_random_mebibyte_is_no_stream_however_the_kernel_cuts_it() -> None:
    """The kernel may ask for it in pieces of 128 KiB, with one more of read-ahead."""
    start = 40 * MiB
    answers = observe_all(StreamTracker(PART), slices(start, start + MiB, 128 * KiB))
    assert answers == [None] * 8


def test_a_second_mebibyte_makes_a_stream_that_is_trusted_with_as_much_again() -> None:
    tracker = StreamTracker(PART)

    first, second = observe_all(tracker, slices(40 * MiB, 42 * MiB, MiB))

    assert first is None
    assert second is not None
    assert second.head == 42 * MiB
    assert second.window_bytes == 2 * MiB


def test_reads_that_arrive_in_any_order_make_one_stream() -> None:
    reads = slices(40 * MiB, 48 * MiB, 128 * KiB)
    chance = random.Random(7)
    shuffled: list[tuple[int, int]] = []
    for at in range(0, len(reads), 8):
        window = reads[at : at + 8]
        chance.shuffle(window)
        shuffled += window
    tracker = StreamTracker(PART)

    answers = observe_all(tracker, shuffled)

    assert len(tracker.streams) == 1
    assert all(answer is tracker.streams[0] for answer in answers[24:])
    assert tracker.streams[0].head == 48 * MiB


def test_eight_readers_through_one_handle_are_eight_streams() -> None:
    tracker = StreamTracker(PART)
    starts = [at * 32 * MiB for at in range(8)]

    for step in range(8):
        for start in starts:
            tracker.observe(start + step * MiB, start + (step + 1) * MiB, 1, 0.0)

    assert sorted(stream.head for stream in tracker.streams) == [at + 8 * MiB for at in starts]


def test_readers_that_take_turns_through_their_own_handles_are_one_stream() -> None:
    tracker = StreamTracker(PART)
    observe_all(tracker, [(0, MiB)], cursor=1)

    answers = [tracker.observe(at * MiB, (at + 1) * MiB, at % 3, 0.0) for at in range(1, 12)]

    assert set(answers) == {tracker.streams[0]}


def test_a_reader_prefers_its_own_stream_where_two_are_near() -> None:
    tracker = StreamTracker(PART)
    near = Stream(1, 0, 10 * MiB, 0.0, PART, PART)
    own = Stream(2, 0, 11 * MiB, 0.0, PART, PART)
    tracker.streams += [near, own]

    assert tracker.observe(10 * MiB, 11 * MiB, 2, 0.0) is own


def test_a_jump_leaves_the_stream_where_it_is() -> None:
    tracker = StreamTracker(PART)
    [stream] = observe_all(tracker, [(0, MiB)])
    assert stream is not None

    assert observe_all(tracker, [(100 * MiB, 101 * MiB)]) == [None]
    assert stream.head == MiB
    assert observe_all(tracker, [(MiB, 2 * MiB)]) == [stream]


def test_pages_that_the_kernel_had_already_do_not_end_a_stream() -> None:
    tracker = StreamTracker(PART)
    [stream] = observe_all(tracker, [(0, MiB)])
    assert observe_all(tracker, [(MiB + 512 * KiB, 2 * MiB)]) == [stream]


def test_random_reads_of_a_large_file_hardly_ever_look_sequential() -> None:
    chance = random.Random(3)
    tracker = StreamTracker(PART)
    hits = 0
    for _ in range(5000):
        start = align_down(chance.randrange(GiB), 4 * KiB)
        stop = start + 4 * KiB * chance.randint(1, 256)
        hits += tracker.observe(start, stop, 1, 0.0) is not None
    assert hits < 50


@pytest.mark.parametrize(
    ("start", "expected"),
    [(0, [(8, 2), (32, 8), (64, 8)]), (8 * MiB, [(8, 2), (16, 4), (32, 8), (64, 8)])],
)
def test_a_window_widens_with_each_step_read_up_to_the_limit(
    start: int, expected: list[tuple[int, int]]
) -> None:
    stream = Stream(1, start, start, 0.0, PART, PART)
    windows = []
    while stream.head < start + 64 * MiB:
        if stream.is_due:
            stream.resize(64 * MiB)
            windows.append((stream.window_bytes // MiB, stream.step_bytes // MiB))
        stream.advance(stream.head + MiB, 0.0)
    assert windows[: len(expected)] == expected
    assert set(windows[len(expected) :]) == {(64, 8)}


def test_a_window_shrinks_when_its_share_does() -> None:
    stream = Stream(1, 0, 0, 0.0, PART, PART)
    stream.resize(64 * MiB)
    stream.resize(64 * MiB)
    stream.resize(4 * MiB)
    assert (stream.window_bytes, stream.step_bytes) == (4 * MiB, MiB)


def test_without_a_share_worth_a_request_nothing_is_wanted() -> None:
    stream = Stream(1, 0, 10 * MiB, 0.0, PART, PART)
    stream.resize(MiB - 1)
    start, stop = stream.wanted()
    assert start >= stop
    assert stream.step_bytes == 0
    assert not stream.is_due


def test_what_was_planned_is_wanted_again_only_if_it_got_lost() -> None:
    stream = Stream(1, 0, MiB, 0.0, PART, PART)
    stream.resize(64 * MiB)
    assert stream.wanted() == (MiB, 8 * MiB)

    stream.planned = 8 * MiB
    assert stream.wanted() == (8 * MiB, 8 * MiB)

    stream.lost(3 * MiB)
    assert stream.wanted() == (3 * MiB, 4 * MiB)


def test_parts_given_up_halve_the_window_and_those_passed_do_not() -> None:
    stream = Stream(1, 0, 20 * MiB, 0.0, PART, PART)
    stream.resize(64 * MiB)

    stream.lost(10 * MiB)
    assert stream.window_bytes == PART

    stream.lost(24 * MiB)
    assert stream.window_bytes == PART // 2
    assert not stream.is_due


def test_a_window_recovers_after_all_its_parts_were_lost() -> None:
    stream = Stream(1, 0, 20 * MiB, 0.0, PART, PART)
    stream.resize(64 * MiB)
    for _ in range(40):
        stream.lost(24 * MiB)
    while stream.head < 60 * MiB:
        if stream.is_due:
            stream.resize(64 * MiB)
        stream.advance(stream.head + MiB, 0.0)
    assert stream.window_bytes == 64 * MiB


def test_only_the_stream_that_was_read_longest_ago_is_forgotten() -> None:
    tracker = StreamTracker(PART)
    for at in range(70):
        tracker.observe(at * 16 * MiB, at * 16 * MiB + 2 * MiB, 1, float(at))
    assert [stream.last_read_at for stream in tracker.streams] == [float(at) for at in range(6, 70)]


def test_a_window_ends_where_another_stream_began() -> None:
    tracker = StreamTracker(PART)
    [first] = observe_all(tracker, [(0, MiB)])
    [second] = observe_all(tracker, [(4 * MiB, 6 * MiB)])
    assert first is not None
    assert second is not None

    assert tracker.territory_stop(first, 8 * MiB) == 4 * MiB
    assert tracker.territory_stop(second, 16 * MiB) == 16 * MiB


def test_what_another_stream_read_long_ago_is_not_spared() -> None:
    tracker = StreamTracker(PART)
    observe_all(tracker, [(4 * MiB, 6 * MiB)])
    first = tracker.observe(0, MiB, 1, 1000.0)
    assert first is not None
    assert tracker.territory_stop(first, 8 * MiB) == 8 * MiB


def test_a_stream_that_reads_into_the_bytes_of_another_is_not_held_up() -> None:
    tracker = StreamTracker(PART)
    [first] = observe_all(tracker, [(0, MiB)])
    observe_all(tracker, [(4 * MiB, 6 * MiB)])
    assert first is not None

    first.advance(5 * MiB, 0.0)

    assert tracker.territory_stop(first, 16 * MiB) == 16 * MiB


def test_a_young_stream_does_not_gather_random_reads_near_it() -> None:
    tracker = StreamTracker(PART)
    observe_all(tracker, [(40 * MiB, 41 * MiB), (41 * MiB, 42 * MiB)])
    assert observe_all(tracker, [(43 * MiB, 44 * MiB)]) == [None]


def test_a_read_that_came_too_early_is_taken_in_when_the_stream_gets_there() -> None:
    tracker = StreamTracker(PART)
    observe_all(tracker, [(40 * MiB, 41 * MiB), (41 * MiB, 42 * MiB), (43 * MiB, 44 * MiB)])

    [stream] = observe_all(tracker, [(42 * MiB, 43 * MiB)])

    assert stream is not None
    assert stream.head == 44 * MiB
