"""When each copy is needed next by this node, as far as the training can be foreseen.

Time is counted in files that each rank has consumed of the current pass. What this pass still needs
comes first, then the next pass; what neither needs here, or what belongs to another dataset, last.

Concurrency: `now` is written by the consumer and read by the fetching threads; any value between
the old and the new one is good enough.
"""

from collections.abc import Mapping, Sequence

from ucfuse.data.epoch_order import Course, Position
from ucfuse.data.ranks import Placement

__all__ = ["NEVER", "Schedule", "steps"]

NEVER = 1 << 62


class Schedule:
    """The next uses of the copies of one dataset, for one pass."""

    def __init__(self, this_pass: Mapping[str, int], next_pass: Mapping[str, int]) -> None:
        self.now = 0
        self._this_pass = this_pass
        self._next_pass = next_pass
        self.length = 1 + max(this_pass.values(), default=0)

    def next_use(self, copy: str) -> int:
        """Return when the copy at this path below `files` is needed next."""
        step = self._this_pass.get(copy, -1)
        if step >= self.now:
            return step
        step = self._next_pass.get(copy, -1)
        return NEVER if step < 0 else self.length + step


def steps(
    course: Course, position: Position, placement: Placement, names: Sequence[str], label: str
) -> dict[str, int]:
    """Return when ranks of this node need each copy (path below `files`) in one pass."""
    order = course.order(position.epoch)
    needed: dict[str, int] = {}
    for rank in placement.local_ranks():
        for step, place in enumerate(course.share(position, rank)):
            needed[f"{label}/{names[order[place]]}"] = step
    return needed
