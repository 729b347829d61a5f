"""What one walk hands out, in order, and when each of it is needed.

Pure, but for the size of its answers: it goes through the whole epoch once per pass.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ucfuse.data.epoch_order import Course, Position
from ucfuse.data.listing import Version
from ucfuse.data.passes import Walk
from ucfuse.data.runs import left_over
from ucfuse.data.schedule import Schedule, steps

__all__ = ["AHEAD_FILES", "Plan", "plan_walk"]

# Far enough to ride out a pause of the volume, and bounded for who looks at one batch and leaves.
AHEAD_FILES = 1024


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be handed out, in order."""

    names: Sequence[str]
    uses: Sequence[int]
    """When each of `names` is needed."""
    upcoming: Sequence[str]
    """What the next pass begins with."""
    upcoming_uses: Sequence[int]
    list_versions: Callable[[], Mapping[str, Version]]
    schedule: Schedule
    processes: int
    """How many processes of this node share the cache's limit."""
    hold: int


def plan_walk(
    walk: Walk,
    course: Course,
    names: Sequence[str],
    list_versions: Callable[[], Mapping[str, Version]],
    label: str | None,
) -> Plan:
    """Return the plan of one walk; `label` is that of the copies in a cache with a limit."""
    place, own = walk.placement, slice(walk.worker, None, walk.workers)
    following = Position(walk.position.epoch + 1, place.world)
    # Without a limit nothing is evicted, so nobody asks when something is needed.
    schedule = Schedule({}, {})
    if label is not None:
        schedule = Schedule(
            steps(course, walk.position, place, names, label),
            steps(course, following, place, names, label),
        )
    length = len(course.share(walk.position, place.rank))
    numbers = left_over(walk.position.done, length)[own]
    length = len(course.share(following, place.rank))
    upcoming = range(length)[own][:AHEAD_FILES]
    return Plan(
        names=_names(course, walk.position, place.rank, numbers, names),
        uses=numbers,
        upcoming=_names(course, following, place.rank, upcoming, names),
        upcoming_uses=[schedule.length + number for number in upcoming],
        list_versions=list_versions,
        schedule=schedule,
        processes=place.local_world * walk.workers,
        hold=walk.hold,
    )


def _names(
    course: Course, position: Position, rank: int, numbers: Sequence[int], names: Sequence[str]
) -> list[str]:
    share, order = course.share(position, rank), course.order(position.epoch)
    return [names[order[share[number]]] for number in numbers]
