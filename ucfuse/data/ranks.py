"""Which rank this process is, of how many, and how many of them are on this node.

`dataset` asks when a pass begins, in the process that trains. DataLoader workers are told by that
process, since a spawned worker knows nothing of `torch.distributed`.

It never starts or joins a process group.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass

import torch.distributed as dist

__all__ = ["ALONE", "Placement", "find_placement", "placement_of"]


@dataclass(frozen=True, slots=True)
class Placement:
    """One rank of a job. Invariant: `0 <= rank < world` and `1 <= local_world <= world`."""

    rank: int
    world: int
    local_world: int
    """How many ranks run on this node."""

    def local_ranks(self) -> range:
        """Return the ranks of this node: launchers number the ranks of a node consecutively."""
        first = self.rank - self.rank % self.local_world
        return range(first, min(first + self.local_world, self.world))


ALONE = Placement(rank=0, world=1, local_world=1)


def find_placement() -> Placement:
    """Return the place in `torch.distributed` where it is initialised, else of the environment.

    Raises `ValueError`: the environment has only one of RANK and WORLD_SIZE, or nonsense in them.
    """
    if dist.is_available() and dist.is_initialized():
        return _placed(dist.get_rank(), dist.get_world_size(), os.environ)
    return placement_of(os.environ)


def placement_of(environment: Mapping[str, str]) -> Placement:
    """Return the place that RANK and WORLD_SIZE tell; without both: alone. Raises `ValueError`."""
    present = [name for name in ("RANK", "WORLD_SIZE") if name in environment]
    if not present:
        return ALONE
    if len(present) == 1:
        missing = "WORLD_SIZE" if present == ["RANK"] else "RANK"
        raise ValueError(
            f"{present[0]} is set in the environment and {missing} is not: set both, or neither,"
            " or initialise torch.distributed before the first pass"
        )
    return _placed(_number("RANK", environment), _number("WORLD_SIZE", environment), environment)


def _placed(rank: int, world: int, environment: Mapping[str, str]) -> Placement:
    if not 0 <= rank < world:
        raise ValueError(f"RANK is {rank}, which is not below WORLD_SIZE {world}")
    local_world = world
    if "LOCAL_WORLD_SIZE" in environment:
        local_world = _number("LOCAL_WORLD_SIZE", environment)
    return Placement(rank, world, max(1, min(local_world, world)))


def _number(name: str, environment: Mapping[str, str]) -> int:
    try:
        return int(environment[name])
    except ValueError:
        raise ValueError(f"{name} is {environment[name]!r}, which is not a number") from None
