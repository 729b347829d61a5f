"""Fetching the next files of a pass while earlier ones are being used.

A `LookAhead` obtains files in their order, in threads of its own, as far ahead as its window and
the cache allow. `take` hands one out; it never waits for room in the cache: a file that has no room
when it is its turn is read from the source. After the last file of the pass the threads go on with
the first files of the next pass, so that it begins warm.

Errors belong to their file: they are raised when its turn comes.

Concurrency: one consumer; `take` and `close` are called by its thread. The threads are daemons, end
when the work or the object is closed, and end before the interpreter takes its modules down.
"""

import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ucfuse.data.cache import Cache, Found
from ucfuse.data.listing import Version
from ucfuse.data.process_exit import Step, at_end
from ucfuse.data.retries import Stopped, patiently

__all__ = ["Job", "LookAhead", "Window", "stop_all"]

# How long closing waits for a read of the volume that is under way. Its thread ends by itself.
CLOSE_PATIENCE_S = 5.0


class Job(NamedTuple):
    """One file to obtain: its name, the version that is wanted, and when it is needed."""

    name: str
    version: Version | None
    use: int

    @property
    def size(self) -> int:
        """Bytes that the copy will take, as far as the listing tells."""
        return 0 if self.version is None else self.version.size


@dataclass(frozen=True, slots=True)
class Window:
    """How far ahead: at most so many files and, with a limited cache, so many bytes."""

    files: int
    bytes: int | None


@dataclass(slots=True)
class _Outcome:
    """What became of one job: found, failed, or (neither) no room."""

    found: Found | None = None
    error: BaseException | None = None

    @property
    def size(self) -> int:
        return 0 if self.found is None else self.found.size


class LookAhead:
    """The fetching for one pass. Whoever makes one closes it."""

    def __init__(
        self,
        cache: Cache,
        jobs: Sequence[Job],
        next_pass: Sequence[Job],
        window: Window,
        on_retry: Callable[[OSError], None],
    ) -> None:
        self._cache = cache
        self._jobs = jobs
        self._next_pass = next_pass
        self._window = window
        self._on_retry = on_retry
        self._pid = os.getpid()
        self._stop = threading.Event()
        # Reentrant: the garbage collector may close it in a thread that is inside.
        self._mutex = threading.RLock()
        self._may_fetch = threading.Condition(self._mutex)
        self._arrived = threading.Condition(self._mutex)
        self._outcomes: dict[int, _Outcome] = {}
        self._begun = 0
        self._taken = 0
        self._ahead_bytes = 0
        """Of what was begun, fetched or not yet, and is not taken."""
        self._no_room_at = -1
        """How much had been taken when there was no room: nothing is tried until that changes."""
        self._idle = 0
        self._threads: list[threading.Thread] = []

    def start(self, fetchers: int) -> None:
        """Begin to fetch in at most so many threads."""
        work = len(self._jobs) + len(self._next_pass)
        for number in range(min(fetchers, work)):
            thread = threading.Thread(
                target=self._fetch_all, name=f"ucfuse-fetch-{number}", daemon=True
            )
            self._threads.append(thread)
            thread.start()
        if self._threads:
            _running.add(self)
            at_end(Step.STOP_THREADS, stop_all)

    def take(self, number: int) -> Found:
        """Return the file of job `number`; jobs are taken in order, each once.

        Raises `OSError`: it could not be read.
        """
        with self._mutex:
            self._taken = number + 1
            fetched = number < self._begun
            if fetched:
                self._arrived.wait_for(lambda: number in self._outcomes)
                outcome = self._outcomes.pop(number)
                self._ahead_bytes -= outcome.size
            else:
                self._begun = number + 1
                outcome = _Outcome()
            if self._idle and self._is_low():
                self._may_fetch.notify_all()
        if outcome.error is not None:
            raise outcome.error
        if outcome.found is not None:
            return outcome.found
        return self.obtain_now(self._jobs[number])

    def obtain_now(self, job: Job) -> Found:
        """Return a path for a file that nobody fetches ahead. Raises `OSError`."""
        found = self._obtain(job, urgent=True)
        assert found is not None
        return found

    def close(self) -> None:
        """Stop fetching, let go of what was not taken, and wait a while for the threads."""
        self.abandon()
        if self._pid != os.getpid() or threading.current_thread() in self._threads:
            return
        until = time.monotonic() + CLOSE_PATIENCE_S
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def abandon(self) -> None:
        """Stop fetching and let go of what was not taken; the threads end by themselves.

        In a forked child it does nothing: there are no threads, and a lock may be held for ever.
        """
        if self._pid != os.getpid():
            return
        self._stop.set()
        with self._mutex:
            self._may_fetch.notify_all()
            outcomes = list(self._outcomes.values())
            self._outcomes.clear()
        for outcome in outcomes:
            if outcome.found is not None:
                self._cache.let_go(outcome.found)
        _running.discard(self)

    def _is_low(self) -> bool:
        """Return whether it is worth waking the threads: not for every single file."""
        return self._begun - self._taken <= self._window.files // 2

    def _has_window(self) -> bool:
        if self._begun >= len(self._jobs):
            return True  # the next pass has its own bound: the length of the list
        if self._no_room_at == self._taken:
            return False
        if self._window.bytes is not None and self._ahead_bytes >= self._window.bytes:
            return False
        return self._begun - self._taken < self._window.files

    def _next_job(self) -> int | None:
        """Wait for the next job and return its number, None if there is none."""
        with self._mutex:
            self._idle += 1
            self._may_fetch.wait_for(lambda: self._stop.is_set() or self._has_window())
            self._idle -= 1
            number = self._begun
            if self._stop.is_set() or number >= len(self._jobs) + len(self._next_pass):
                return None
            self._begun += 1
            if number < len(self._jobs):
                self._ahead_bytes += self._jobs[number].size
            return number

    def _fetch_all(self) -> None:
        while (number := self._next_job()) is not None:
            if number < len(self._jobs):
                self._deliver(number, self._fetch(self._jobs[number]))
            elif not self._warm(self._next_pass[number - len(self._jobs)]):
                return

    def _fetch(self, job: Job) -> _Outcome:
        try:
            return _Outcome(found=self._obtain(job, urgent=False))
        except BaseException as error:  # noqa: BLE001 - raised where the file is taken
            return _Outcome(error=error)

    def _deliver(self, number: int, outcome: _Outcome) -> None:
        with self._mutex:
            if self._stop.is_set() and outcome.found is not None:
                self._cache.let_go(outcome.found)
                return
            self._outcomes[number] = outcome
            self._ahead_bytes += outcome.size - self._jobs[number].size
            if outcome.found is None and outcome.error is None:
                self._no_room_at = self._taken
            if self._taken == number + 1:
                self._arrived.notify_all()

    def _warm(self, job: Job) -> bool:
        """Bring a file of the next pass into the cache; return whether more would fit."""
        try:
            found = self._obtain(job, urgent=False)
        except OSError:
            return True  # the next pass meets it again, and reports it
        except Stopped:
            return False
        if found is not None:
            self._cache.let_go(found)
        return found is not None

    def _obtain(self, job: Job, *, urgent: bool) -> Found | None:
        return patiently(
            lambda: self._cache.obtain(job.name, job.version, job.use, self._stop, urgent=urgent),
            self._stop,
            self._on_retry,
        )


_running: "weakref.WeakSet[LookAhead]" = weakref.WeakSet()


def stop_all() -> None:
    """Close all that run in this process: it is about to end."""
    for look_ahead in list(_running):
        look_ahead.close()


def _forget_all() -> None:
    """Run in a forked child: the threads are its parent's."""
    _running.clear()


os.register_at_fork(after_in_child=_forget_all)
