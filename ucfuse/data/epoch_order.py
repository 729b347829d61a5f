"""What one epoch is: in which order the files come, and which rank and worker gets which.

The order is a function of seed, epoch and listing. Rank r of W takes every W-th file of what is
left of the epoch, worker w of K every K-th of its rank's rest. So no two share a file and none is
missing, except at the uneven end, where `Uneven` decides.

Pure: no I/O, no clock, no state. Places are numbers in the epoch's order, from 0.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from ucfuse.data.runs import flags_of, left_over, runs_of

__all__ = ["Course", "Position", "Uneven"]


class Uneven(StrEnum):
    """What happens where the files of an epoch do not divide by the number of ranks."""

    PAD = "pad"
    """Every rank gets equally many: the short ranks take one file from the beginning again."""
    DROP = "drop"
    """Every rank gets equally many: the last files, fewer than there are ranks, are left out."""
    STRICT = "strict"
    """Each file exactly once: some ranks get one file more than others."""


@dataclass(frozen=True, slots=True)
class Position:
    """How far one rank is in an epoch. The epoch's rest was split over `world` ranks."""

    epoch: int
    world: int
    base: tuple[int, ...] = ()
    """Runs of places that had been delivered before this split, by whichever rank."""
    done: tuple[int, ...] = ()
    """Runs of numbers in this rank's share that are delivered since."""


@dataclass(frozen=True, slots=True)
class Course:
    """All epochs of one listing of `count` files."""

    count: int
    shuffle: bool
    seed: int
    uneven: Uneven

    def order(self, epoch: int) -> Sequence[int]:
        """Return the numbers of the files in the order of this epoch."""
        if not self.shuffle:
            return range(self.count)
        numbers = list(range(self.count))
        # A generator of its own: the random numbers of the training script stay as they are.
        random.Random(f"{self.seed}:{epoch}").shuffle(numbers)
        return numbers

    def share(self, position: Position, rank: int) -> Sequence[int]:
        """Return the places that `rank` gets of the split of `position`."""
        rest = left_over(position.base, self.count)
        own = rest[rank :: position.world]
        each, odd = divmod(len(rest), position.world)
        match self.uneven:
            case Uneven.DROP:
                return own[:each]
            case Uneven.PAD if odd and rank >= odd:
                return [*own, rest[(rank + each * position.world) % len(rest)]]
            case _:
                return own

    def rest(self, position: Position, rank: int) -> Sequence[int]:
        """Return the places of the share of `rank` that are not delivered yet."""
        share = self.share(position, rank)
        if not position.done:
            return share
        return [share[number] for number in left_over(position.done, len(share))]

    def advance(self, position: Position, rank: int, counts: Sequence[int]) -> Position:
        """Return the position after worker w of `len(counts)` delivered `counts[w]` of its rest."""
        length = len(self.share(position, rank))
        flags = flags_of(position.done, length)
        rest = left_over(position.done, length)
        for worker, count in enumerate(counts):
            for number in rest[worker :: len(counts)][:count]:
                flags[number] = 1
        return replace(position, done=tuple(runs_of(flags)))
