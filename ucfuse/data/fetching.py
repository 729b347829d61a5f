"""What one process does to hand out the files of a dataset: cache, look-ahead, and what it holds.

A `Fetching` belongs to one dataset in one process; a forked or spawned process makes its own. It
keeps the copies that it handed out last from being evicted, since who got their paths may not have
opened them yet.

Concurrency: used by the iterating thread; the look-ahead's threads are its own.
"""

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

from ucfuse.data.cache import Cache, Found
from ucfuse.data.listing import Version
from ucfuse.data.lookahead import Job, LookAhead, Window
from ucfuse.data.planning import AHEAD_FILES, Plan
from ucfuse.data.survey import Survey

__all__ = ["Fetching"]

# With a limit every file ahead costs a descriptor, of which a process commonly has 1,024.
AHEAD_FILES_LIMITED = 128
HOLD_FILES_LIMITED = 256
HOLD_FILES_DEFAULT = 64
# Asking for one file takes microseconds where the kernel knows the answer, milliseconds where the
# store must be asked; a listing is then cheaper.
ASKING_S = 100e-6
FREE_ASKING_S = 0.01
# What a listing tells is known for a second by default: it begins as late as it can be done by the
# end, and only where it takes less than that second.
TAIL_S = 0.7
MOST_RENEWED = 10_000
TAIL_STEP = 16
"""How often the time is looked at, in files."""


class Fetching:
    """Hands out the paths of one plan after the other."""

    def __init__(
        self,
        source: str,
        directory: str,
        limit_bytes: int | None,
        fetchers: int,
        on_retry: Callable[[OSError], None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.cache = Cache(source, directory, limit_bytes, fetchers)
        self._limit_bytes = limit_bytes
        self._fetchers = fetchers
        self._on_retry = on_retry
        self._clock = clock
        self._ahead: LookAhead | None = None
        self._held: deque[Found] = deque()
        self._held_bytes = 0
        self._survey: Survey | None = None
        self._began_at = 0.0
        self._renewal: Survey | None = None
        self._pid = os.getpid()

    def hand_out(self, plan: Plan) -> Generator[Found | OSError]:
        """Yield a path, or the error, for every name of the plan; close the iterator to stop."""
        self._stop_ahead()
        self.cache.begin_pass(plan.schedule.next_use)
        self._survey = None
        self._began_at, self._renewal = self._clock(), None
        done = 0
        if all(map(self.cache.knows, plan.names)) and all(map(self.cache.knows, plan.upcoming)):
            with contextlib.closing(self.cache.confirmed(plan.names)) as confirmed:
                done = yield from self._confirmed(plan, confirmed)
        if done < len(plan.names):
            yield from self._fetched(plan, done)

    def close(self) -> None:
        """Stop all threads and let go of everything. In a forked child: nothing is its own."""
        if self._pid != os.getpid():
            return
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.abandon()
        while self._held:
            self.cache.let_go(self._held.popleft())

    def _confirmed(self, plan: Plan, confirmed: Iterator[Found]) -> Generator[Found, None, int]:
        """Yield known copies, each asked for at its turn; return how many.

        Ends where one is not what it was, or where a listing is there: begun because the single
        answers took long.
        """
        hold_files, hold_bytes = self._hold(plan)
        clock, schedule, uses = self._clock, plan.schedule, plan.uses
        number, asked_s = 0, -clock()
        for found in confirmed:
            asked_s += clock()
            schedule.now = uses[number]
            if found.pin is not None:
                self._keep(found, hold_files, hold_bytes)
            if number % TAIL_STEP == 0:
                self._renew_near_the_end(plan, number)
            if self._survey is None and asked_s > FREE_ASKING_S + number * ASKING_S:
                self._survey = Survey(plan.list_versions)
            yield found
            number += 1
            if self._survey is not None and self._survey.has_ended():
                return number
            asked_s -= clock()
        return number

    def _fetched(self, plan: Plan, start: int) -> Generator[Found | OSError]:
        """Yield the rest of the plan from `start` on, as a listing shows it, fetched ahead."""
        versions = self._survey.versions() if self._survey else plan.list_versions()
        jobs = _jobs(plan.names[start:], plan.uses[start:], versions)
        unknown = self._to_fetch(jobs)
        coming = self._to_fetch(_jobs(plan.upcoming, plan.upcoming_uses, versions))
        ahead = LookAhead(self.cache, unknown, coming, self._window(plan), self._on_retry)
        with contextlib.ExitStack() as stack:
            stack.callback(ahead.close)
            ahead.start(2 * self._fetchers)  # while one half copies, the other opens
            for number, found in enumerate(self._in_turn(plan, jobs, ahead, unknown), start):
                if number % TAIL_STEP == 0:
                    self._renew_near_the_end(plan, number)
                yield found
            stack.pop_all()
        self._ahead = ahead

    def _to_fetch(self, jobs: Sequence[Job]) -> Sequence[Job]:
        """Return what needs a look ahead: with a limit all, since what was seen may be evicted."""
        if self._limit_bytes is not None:
            return jobs
        return [job for job in jobs if not self.cache.has_seen(job.name, job.version)]

    def _in_turn(
        self, plan: Plan, jobs: Sequence[Job], ahead: LookAhead, unknown: Sequence[Job]
    ) -> Generator[Found | OSError]:
        hold_files, hold_bytes = self._hold(plan)
        # Every file that was unknown when the pass began is a job of the look-ahead, in this order.
        taken = 0
        for job in jobs:
            plan.schedule.now = job.use
            try:
                if taken < len(unknown) and unknown[taken] is job:
                    taken += 1
                    found = ahead.take(taken - 1)
                else:
                    known = self.cache.look_up(job.name, job.version)
                    found = known or ahead.obtain_now(job)
            except OSError as error:
                yield error
                continue
            self._keep(found, hold_files, hold_bytes)
            yield self.cache.credit(found)

    def _renew_near_the_end(self, plan: Plan, number: int) -> None:
        """Let the file system look at everything again just before the next pass asks for it."""
        total = len(plan.names)
        if self._renewal is not None or total > MOST_RENEWED:
            return
        elapsed_s = self._clock() - self._began_at
        if elapsed_s > TAIL_S and elapsed_s * (total - number) < TAIL_S * (number + 1):
            self._renewal = Survey(plan.list_versions)

    def _keep(self, found: Found, files: int, size: int) -> None:
        if found.pin is None:
            return
        self._held.append(found)
        self._held_bytes += found.size
        while len(self._held) > files or (self._held_bytes > size and len(self._held) > 1):
            oldest = self._held.popleft()
            self._held_bytes -= oldest.size
            self.cache.let_go(oldest)

    def _window(self, plan: Plan) -> Window:
        if self._limit_bytes is None:
            return Window(AHEAD_FILES, None)
        return Window(AHEAD_FILES_LIMITED, self._limit_bytes // plan.processes // 4)

    def _hold(self, plan: Plan) -> tuple[int, int]:
        files = min(plan.hold or HOLD_FILES_DEFAULT, HOLD_FILES_LIMITED)
        share = 0 if self._limit_bytes is None else self._limit_bytes // plan.processes // 4
        return files, share

    def _stop_ahead(self) -> None:
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.close()


def _jobs(names: Sequence[str], uses: Sequence[int], versions: Mapping[str, Version]) -> list[Job]:
    return [Job(name, versions.get(name), use) for name, use in zip(names, uses, strict=True)]
