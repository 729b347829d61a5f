"""What programs did on a mount that Databricks' own mount refuses: noted, or refused here too.

The file system tells a `Portability` of each such operation before it does it. In posix mode that
is noted and the operation goes on; in the strict modes it is noted and refused. So what the report
of the one mode shows is exactly what the others refuse.

Concurrency: trio loop only, every method is atomic.
"""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from ucfuse.errors import NotPortable
from ucfuse.fs.caller import DescriptorProbe
from ucfuse.portability import Emulation, Operation

__all__ = ["MOST_ENCOUNTERS", "Encounter", "Encounters", "Portability"]

log = logging.getLogger(__name__)

# Some hundred bytes each. Who needs more looks at the first ones, mends the program and goes on.
MOST_ENCOUNTERS = 1000
UNKNOWN_PROGRAM = "unknown"


@dataclass(slots=True)
class Encounter:
    """One program, path and operation. Times are seconds since the epoch."""

    program: str
    path: str
    operation: Operation
    first_at_s: float
    last_at_s: float
    count: int = 0


class Encounters:
    """All that was met on one mount, as much as fits; what came up last stays longest."""

    def __init__(
        self, most: int = MOST_ENCOUNTERS, wall_s: Callable[[], float] = time.time
    ) -> None:
        self._most = most
        self._wall_s = wall_s
        self._met: OrderedDict[tuple[str, str, Operation], Encounter] = OrderedDict()
        self._logged: OrderedDict[tuple[str, Operation], None] = OrderedDict()
        self.dropped_count = 0
        """Encounters that had to make room for others."""

    def __iter__(self) -> Iterator[Encounter]:
        """Yield all, the one that came up last at the end."""
        return iter(list(self._met.values()))

    def note(self, program: str, path: str, operation: Operation) -> None:
        """Count one more."""
        key, now = (program, path, operation), self._wall_s()
        met = self._met.get(key)
        if met is None:
            met = self._met[key] = Encounter(program, path, operation, now, now)
        met.count += 1
        met.last_at_s = now
        self._met.move_to_end(key)
        if len(self._met) > self._most:
            self._met.popitem(last=False)
            self.dropped_count += 1
        self._log_once(program, path, operation)

    def _log_once(self, program: str, path: str, operation: Operation) -> None:
        if (program, operation) not in self._logged:
            log.info(
                "%s: %s, by %s: Databricks' own mount refuses this; see"
                " `ucfuse status --portability`",
                path,
                operation.value,
                program,
            )
        self._logged[program, operation] = None
        self._logged.move_to_end((program, operation))
        if len(self._logged) > self._most:
            self._logged.popitem(last=False)


@dataclass(frozen=True, slots=True)
class Portability:
    """The policy of one volume. `above`: its path in the mount, empty if it is the only one."""

    emulation: Emulation
    probe: DescriptorProbe
    encounters: Encounters = field(default_factory=Encounters)
    above: str = ""

    def below(self, above: str) -> "Portability":
        """Return the same for a volume that lies at `above` in the mount."""
        return replace(self, above=above)

    def program_of(self, thread: int | None) -> str:
        """Return the name of the program that this thread or process belongs to."""
        return (thread and self.probe.program_of(thread)) or UNKNOWN_PROGRAM

    def meet(self, operation: Operation, path: str, program: str) -> None:
        """Note what is about to be done. Raises `NotPortable` if the mode refuses it."""
        shown = f"{self.above}/{path}" if self.above else path
        self.encounters.note(program, shown, operation)
        if self.emulation.is_strict:
            raise NotPortable(shown, operation, self.emulation)

    def meet_name(self, operation: Operation, directory: str, name: str, thread: int) -> None:
        """The same of a name in a directory, and the thread that asks."""
        path = f"{directory}/{name}" if directory else name
        self.meet(operation, path, self.program_of(thread))
