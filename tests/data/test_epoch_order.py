"""Who gets which file, and how states of one grid become positions of another: without any I/O."""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ucfuse.data.epoch_order import Course, Position, Uneven
from ucfuse.data.runs import flags_of, left_over, runs_of
from ucfuse.data.states import Identity, RankState, read_states, resolve

counts = st.integers(0, 60)
worlds = st.integers(1, 5)
workers = st.integers(1, 4)


def identity_of(course: Course) -> Identity:
    return Identity(course.count, "digest", course.shuffle, course.seed, str(course.uneven))


def deliver(
    course: Course, position: Position, rank: int, progress: Sequence[int]
) -> tuple[list[int], Position]:
    """Let each worker deliver up to so many of its files; return them and the position after."""
    rest = course.rest(position, rank)
    done = [min(n, len(rest[w :: len(progress)])) for w, n in enumerate(progress)]
    places = [place for w, n in enumerate(done) for place in rest[w :: len(done)][:n]]
    order = course.order(position.epoch)
    return [order[place] for place in places], course.advance(position, rank, done)


@given(st.lists(st.booleans()))
def test_runs_mean_the_numbers_they_were_made_of(wanted: list[bool]) -> None:
    flags = bytearray(wanted)
    runs = runs_of(flags)
    assert flags_of(runs, len(flags)) == flags
    assert list(left_over(runs, len(flags))) == [n for n, flag in enumerate(wanted) if not flag]


@given(counts, worlds, st.booleans(), st.integers(0, 3))
def test_strict_gives_each_file_once_over_all_ranks(
    count: int, world: int, shuffle: bool, epoch: int
) -> None:
    course = Course(count, shuffle, 7, Uneven.STRICT)
    order = course.order(epoch)
    shares = [course.share(Position(epoch, world), rank) for rank in range(world)]
    assert sorted(order[place] for share in shares for place in share) == list(range(count))


@given(counts, worlds)
def test_pad_and_drop_give_all_ranks_equally_many(count: int, world: int) -> None:
    """Padding repeats as few files as it can; dropping leaves out as few as it can."""
    for uneven, each in ((Uneven.PAD, -(-count // world)), (Uneven.DROP, count // world)):
        course = Course(count, False, 0, uneven)
        shares = [course.share(Position(0, world), rank) for rank in range(world)]
        assert [len(share) for share in shares] == [each] * world
        places = Counter(place for share in shares for place in share)
        if uneven is Uneven.PAD:
            assert set(places) == set(range(count))
            if count >= world:
                assert max(places.values(), default=0) <= 2
        else:
            assert max(places.values(), default=0) <= 1


def test_the_order_is_a_function_of_seed_and_epoch() -> None:
    orders = {
        (seed, epoch): tuple(Course(50, True, seed, Uneven.PAD).order(epoch))
        for seed in (0, 1)
        for epoch in (0, 1)
    }
    assert len(set(orders.values())) == 4
    assert orders[0, 0] == tuple(Course(50, True, 0, Uneven.PAD).order(0))


@st.composite
def stages(draw: st.DrawFn) -> list[list[list[int]]]:
    """Three grids, each a list of ranks, each a list of how much every worker delivers."""
    grids = []
    for _ in range(3):
        world, each = draw(worlds), draw(workers)
        progress = st.lists(st.integers(0, 20), min_size=each, max_size=each)
        grids.append(draw(st.lists(progress, min_size=world, max_size=world)))
    return grids


def stored(state: dict[str, Any]) -> dict[str, Any]:
    """Return the state as it comes back from a checkpoint file."""
    loaded: dict[str, Any] = json.loads(json.dumps(state))
    return loaded


@given(counts, st.booleans(), stages(), st.sampled_from(Uneven))
def test_stopped_twice_and_resumed_on_other_grids_nothing_is_lost_or_repeated(
    count: int, shuffle: bool, grids: list[list[list[int]]], uneven: Uneven
) -> None:
    """Each file exactly once with `strict`; `pad` only adds, `drop` only leaves out."""
    course = Course(count, shuffle, 3, uneven)
    identity = identity_of(course)
    fresh = RankState(0, Position(2, 1)).as_dict(identity)
    states, seen = [fresh], Counter[int]()
    for number, grid in enumerate(grids):
        world, before = len(grid), read_states(states, identity)
        last, states = number == len(grids) - 1, []
        for rank, progress in enumerate(grid):
            position = resolve(before, course, rank, world)
            amount = [count] * len(progress) if last else progress
            files, position = deliver(course, position, rank, amount)
            seen.update(files)
            states.append(stored(RankState(rank, position).as_dict(identity)))
    repeats = sum(seen.values()) - len(seen)
    left_out = count - len(seen)
    longest = sum(len(grid) - 1 for grid in grids)
    assert left_out == 0 or (uneven is Uneven.DROP and left_out < len(grids[-1]))
    assert repeats == 0 or (uneven is Uneven.PAD and repeats <= longest)


@given(st.integers(1, 60), worlds, worlds, workers, st.integers(0, 20))
def test_one_state_stands_for_all_ranks_that_were_at_the_same_step(
    count: int, world: int, new_world: int, each: int, steps: int
) -> None:
    course = Course(count, True, 3, Uneven.STRICT)
    identity = identity_of(course)
    all_states, seen = [], Counter[int]()
    for rank in range(world):
        files, position = deliver(course, Position(0, world), rank, [steps] * each)
        seen.update(files)
        all_states.append(RankState(rank, position).as_dict(identity))
    # Rank 0 has the longest share, so its state covers whatever the others could have delivered.
    one = read_states(all_states[0], identity)
    for rank in range(new_world):
        position = resolve(one, course, rank, new_world)
        seen.update(deliver(course, position, rank, [count] * each)[0])
    assert seen == Counter(range(count))


def test_a_rank_that_has_finished_the_epoch_counts_as_done() -> None:
    course = Course(10, False, 0, Uneven.STRICT)
    identity = identity_of(course)
    _, half = deliver(course, Position(0, 2), 0, [2])
    states = [RankState(0, half), RankState(1, Position(1, 2))]
    read = read_states([state.as_dict(identity) for state in states], identity)
    assert list(course.rest(resolve(read, course, 0, 1), 0)) == [4, 6, 8]


@pytest.mark.parametrize(
    "change",
    [{"files": 11}, {"digest": "x"}, {"seed": 1}, {"shuffle": True}, {"version": 9}],
    ids=lambda change: next(iter(change)),
)
def test_a_state_of_something_else_is_refused(change: dict[str, Any]) -> None:
    identity = identity_of(Course(10, False, 0, Uneven.PAD))
    state = RankState(0, Position(0, 1)).as_dict(identity) | change
    with pytest.raises(ValueError, match="state"):
        read_states(state, identity)


def test_an_incomplete_or_mixed_list_of_states_is_refused() -> None:
    identity = identity_of(Course(10, False, 0, Uneven.PAD))

    def state(rank: int, **position: Any) -> dict[str, Any]:
        where = Position(**{"epoch": 0, "world": 3} | position)
        return RankState(rank, where).as_dict(identity)

    for states in (
        [],
        [state(0), state(1)],
        [state(0), state(1), state(1)],
        [state(0), state(1), state(2, base=(0, 2))],
        [state(0), state(1), state(2, epoch=2)],
        [state(0), state(1), state(2, epoch=1, done=(0, 1))],
    ):
        with pytest.raises(ValueError, match="state"):
            read_states(states, identity)
