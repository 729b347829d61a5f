"""What `state_dict` returns, and how states of all ranks become the position on another grid.

A state says what one rank delivered of one epoch, independent of its workers. On as many ranks as
before, a rank needs only its own state. On another number of ranks it takes the states of all; of a
single one it assumes that all ranks were at the same step, as they are in synchronous training.

Pure: no I/O. It never guesses: a state of another listing, seed or order is refused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ucfuse.data.epoch_order import Course, Position
from ucfuse.data.runs import flags_of, runs_of

__all__ = ["Identity", "RankState", "read_states", "resolve"]

VERSION = 1


@dataclass(frozen=True, slots=True)
class Identity:
    """What must be equal for a state to mean the same files."""

    files: int
    digest: str
    shuffle: bool
    seed: int
    uneven: str


@dataclass(frozen=True, slots=True)
class RankState:
    """One rank's part of a checkpoint."""

    rank: int
    position: Position

    def as_dict(self, identity: Identity) -> dict[str, Any]:
        """Return it as what `json` and `torch.save` take."""
        return {
            "version": VERSION,
            "files": identity.files,
            "digest": identity.digest,
            "shuffle": identity.shuffle,
            "seed": identity.seed,
            "uneven": identity.uneven,
            "rank": self.rank,
            "world": self.position.world,
            "epoch": self.position.epoch,
            "base": list(self.position.base),
            "done": list(self.position.done),
        }


def read_states(
    given: Mapping[str, Any] | Sequence[Mapping[str, Any]], identity: Identity
) -> list[RankState]:
    """Return the states in order of rank, checked. Raises `ValueError`: they do not fit."""
    dicts = [given] if isinstance(given, Mapping) else list(given)
    if not dicts:
        raise ValueError("there is no state in the list of states")
    for state in dicts:
        _check_identity(state, identity)
    states = sorted((_rank_state(state) for state in dicts), key=lambda state: state.rank)
    if len(states) > 1:
        _check_complete(states)
    return states


def _rank_state(state: Mapping[str, Any]) -> RankState:
    position = Position(
        epoch=int(state["epoch"]),
        world=int(state["world"]),
        base=tuple(int(number) for number in state["base"]),
        done=tuple(int(number) for number in state["done"]),
    )
    return RankState(int(state["rank"]), position)


def _check_identity(state: Mapping[str, Any], identity: Identity) -> None:
    if state.get("version") != VERSION:
        raise ValueError(
            f"not a state of this dataset, or of another release: version {state.get('version')!r}"
        )
    wanted = {
        "shuffle": identity.shuffle,
        "seed": identity.seed,
        "uneven": identity.uneven,
        "files": identity.files,
        "digest": identity.digest,
    }
    for name, value in wanted.items():
        if state[name] != value:
            what = "the names of the files differ" if name == "digest" else f"{name} differs"
            raise ValueError(
                f"the state is of another dataset: {what} ({state[name]!r} then, {value!r} now)"
            )


def _check_complete(states: Sequence[RankState]) -> None:
    """Raise `ValueError` unless these are all ranks of one moment of one job."""
    worlds = {state.position.world for state in states}
    ranks = [state.rank for state in states]
    if worlds != {len(states)} or ranks != list(range(len(states))):
        raise ValueError(
            f"states of ranks {ranks} of a job of {sorted(worlds)} ranks:"
            " give one state, or exactly one of each rank"
        )
    behind = _behind(states)
    if len({state.position.base for state in behind}) > 1:
        raise ValueError("the states of the ranks are from different moments")
    epoch = behind[0].position.epoch
    for state in states:
        ahead = state.position.epoch - epoch
        if ahead > 1 or (ahead == 1 and (state.position.done or state.position.base)):
            raise ValueError(
                f"the states of the ranks are from different moments: one is in epoch {epoch},"
                f" rank {state.rank} already in epoch {state.position.epoch}"
            )


def _behind(states: Sequence[RankState]) -> list[RankState]:
    """Return the states of the earliest epoch; ranks in the next one have finished it."""
    epoch = min(state.position.epoch for state in states)
    return [state for state in states if state.position.epoch == epoch]


def resolve(states: Sequence[RankState], course: Course, rank: int, world: int) -> Position:
    """Return where `rank` of `world` goes on. The states are those of `read_states`."""
    behind = _behind(states)
    then = behind[0].position
    everything = (0, course.count)
    done = {state.rank: everything for state in states} | {
        state.rank: state.position.done for state in behind
    }
    if len(states) == 1:
        done = dict.fromkeys(range(max(then.world, world)), then.done)
    if then.world == world:
        return Position(then.epoch, world, then.base, done[rank])
    flags = flags_of(then.base, course.count)
    for old_rank in range(then.world):
        share = course.share(then, old_rank)
        delivered = flags_of(done[old_rank], len(share))
        for number, place in enumerate(share):
            flags[place] |= delivered[number]
    return Position(then.epoch, world, tuple(runs_of(flags)))
