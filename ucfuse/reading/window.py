"""Recognising sequential readers of one file and how far ahead of each the parts should be.

`PrefetchReader` tells every read to a `StreamTracker`; the answer is the `Stream` it belongs to,
or None for a read that is not (yet) part of one. A stream is recognised by its position, since
several may come through one handle (threads with pread, mappings) and one may come through
several handles (readers of one file take turns at the edge of the page cache).

Pure bookkeeping: no I/O, no clock (the time is passed in), no memory of its own worth counting.
"""

from collections.abc import Hashable
from dataclasses import dataclass

from ucfuse.volume import KiB, MiB

__all__ = ["MAX_PARTS_AHEAD", "BEHIND_BYTES", "Stream", "StreamTracker", "align_down", "align_up"]

# How far a reader runs ahead at most. At 90 MB/s per connection this is more than a 10 Gbit/s link
# carries.
MAX_PARTS_AHEAD = 16

# The READs of one reader reach us out of order: the kernel sends a window of them at once and
# trio wakes tasks in any order. One READ (1 MiB) may be overtaken by the two after it, and must
# then still be recognised: `BEHIND_BYTES` is `AHEAD_BYTES` and that READ.
AHEAD_BYTES = 2 * MiB
BEHIND_BYTES = 3 * MiB

# A program's random read of 1 MiB may come as eight READs of 128 KiB and one of read-ahead. Only
# what is longer than that is a stream; otherwise random reads would fetch what nobody asked for.
PROOF_BYTES = 1 * MiB + 128 * KiB
# Who begins at the front mostly goes on; but a header and the read-ahead behind it are no proof.
PROOF_FROM_START_BYTES = 512 * KiB

# Smaller requests cost more CPU and round trips than they save in latency.
SMALLEST_STEP_BYTES = 1 * MiB
# A window is at least this many requests wide, so that young streams are parallel too.
STEPS_PER_WINDOW = 4
# A file that is read from the front is mostly read to its end, so its window is wide after two
# steps; who reads a piece in the middle would be given far more than the piece.
GROWTH_FROM_START = 4
GROWTH = 2

# A stream that was not read for this long neither counts for the shares nor keeps its parts
# against those who read now.
ACTIVE_S = 5.0
# For this long the kernel is thought to keep what it was given. Wrong by much costs little: one
# wait where the window stops, or one window fetched for nothing.
CACHED_S = 60.0

# Enough for the threads of one loader; the oldest is forgotten first.
MAX_STREAMS = 64
# Runs remembered of one cursor. Few, since any two random reads may happen to touch; enough for
# as many threads behind one handle to become streams.
MAX_RUNS = 16
MAX_CURSORS = 128


def align_down(offset: int, step: int) -> int:
    """Return the last multiple of `step` at or before `offset`."""
    return offset - offset % step


def align_up(offset: int, step: int) -> int:
    """Return the first multiple of `step` at or after `offset`."""
    return offset + -offset % step


@dataclass(slots=True, eq=False)
class Stream:
    """One sequential reader's place in the file, and the window ahead of it.

    `start`, `head`: it was read from here to there (out of order near the head).
    `planned`: what lies between the head and there is held or asked for.
    `step_bytes`: size of one request, 0 while memory is too short to run ahead at all.
    """

    cursor: Hashable
    start: int
    head: int
    last_read_at: float
    window_bytes: int
    part_bytes: int
    step_bytes: int = 0
    planned: int = 0
    grow_at: int = 0

    def accepts(self, start: int) -> bool:
        """Whether a read that begins at `start` continues this stream.

        Two random reads that touched by chance look like a young stream, and should not gather
        all others near them: one may only leap as far as it has earned.
        """
        leap = AHEAD_BYTES if self.start == 0 else min(AHEAD_BYTES, (self.head - self.start) // 4)
        return -BEHIND_BYTES <= start - self.head <= leap

    def is_active(self, now: float) -> bool:
        """Whether somebody reads it now."""
        return now - self.last_read_at < ACTIVE_S

    def advance(self, stop: int, now: float) -> None:
        """Note a read of this stream that ends at `stop`."""
        self.last_read_at = now
        if stop > self.head:
            self.head = stop

    @property
    def is_due(self) -> bool:
        """Whether a step was read to its end since the window was last resized."""
        return self.head >= self.grow_at

    def resize(self, limit_bytes: int) -> None:
        """Widen the window (the first time: take it as it is), up to `limit_bytes`."""
        growth = GROWTH_FROM_START if self.start == 0 else GROWTH
        wider = self.window_bytes * growth if self.grow_at else self.window_bytes
        smallest = min(SMALLEST_STEP_BYTES, self.part_bytes)
        self.window_bytes = max(smallest, min(wider, limit_bytes))
        self.step_bytes = 0
        if limit_bytes >= smallest:
            share = self.window_bytes // STEPS_PER_WINDOW
            power_of_two = 1 << max(0, share.bit_length() - 1)
            self.step_bytes = max(smallest, min(power_of_two, self.part_bytes))
        self.grow_at = self.head + max(self.step_bytes, smallest)

    def wanted(self) -> tuple[int, int]:
        """Return the range `[start, stop)` that should be asked for now; empty if start >= stop."""
        if not self.step_bytes:
            return self.head, self.head
        start = max(self.planned, self.head)
        return start, align_down(self.head + self.window_bytes, self.step_bytes)

    def lost(self, start: int) -> None:
        """Note that a part which begins at `start` was given up before it was read.

        Memory is short, then, or the store in trouble: the window halves, and grows again later.
        """
        if start >= self.head:
            self.planned = min(self.planned, start)
            self.window_bytes //= 2
            self.grow_at = self.head + self.window_bytes


class _Runs:
    """Stretches that one cursor has read without a gap, each known by both its ends."""

    def __init__(self) -> None:
        self._start_of: dict[int, int] = {}  # by stop
        self._stop_of: dict[int, int] = {}  # by start

    def join(self, start: int, stop: int) -> tuple[int, int]:
        """Take out the runs that touch `[start, stop)` and return what they make together."""
        run_start = self._start_of.pop(start, start)
        self._stop_of.pop(run_start, None)
        run_stop = self._stop_of.pop(stop, stop)
        self._start_of.pop(run_stop, None)
        return run_start, run_stop

    def remember(self, start: int, stop: int) -> None:
        """Keep a run; the oldest is forgotten."""
        self._start_of[stop] = start
        self._stop_of[start] = stop
        for ends in (self._start_of, self._stop_of):
            if len(ends) > MAX_RUNS:
                del ends[next(iter(ends))]


class StreamTracker:
    """Finds the streams among the reads of one file.

    Reads that touch each other end to end make a run; a run that is long enough becomes a stream.
    Runs are told apart by cursor, so that two random readers do not look like a sequential one.
    """

    def __init__(self, part_bytes: int) -> None:
        self._part_bytes = part_bytes
        self.streams: list[Stream] = []
        self._runs: dict[Hashable, _Runs] = {}  # least recently used first

    def observe(self, start: int, stop: int, cursor: Hashable, now: float) -> Stream | None:
        """Note a read of `[start, stop)` and return the stream that it belongs to."""
        stream = self._match(start, cursor)
        runs = self._runs_of(cursor)
        run_start, run_stop = runs.join(start, stop)
        if stream is not None:
            stream.advance(run_stop, now)  # past reads that came too early to be recognised
            return stream
        proof = PROOF_FROM_START_BYTES if run_start == 0 else PROOF_BYTES
        if run_stop - run_start < proof:
            runs.remember(run_start, run_stop)
            return None
        return self._promote(run_start, run_stop, cursor, now)

    def territory_stop(self, stream: Stream, stop: int) -> int:
        """Return `stop`, or where before it the bytes begin that another stream has read.

        Threads that share a file slice by slice would else each fetch the beginning of the next
        slice. A stream that does read on there has no neighbour any more.
        """
        for other in self.streams:
            is_ahead = stream.head <= other.start < stop and other is not stream
            if is_ahead and stream.last_read_at - other.last_read_at < CACHED_S:
                stop = other.start
        return stop

    def _match(self, start: int, cursor: Hashable) -> Stream | None:
        found = None
        for stream in self.streams:
            if stream.accepts(start):
                if stream.cursor == cursor:
                    return stream
                found = found or stream
        return found

    def _runs_of(self, cursor: Hashable) -> _Runs:
        runs = self._runs.pop(cursor, None) or _Runs()
        self._runs[cursor] = runs
        if len(self._runs) > MAX_CURSORS:
            del self._runs[next(iter(self._runs))]
        return runs

    def _promote(self, start: int, stop: int, cursor: Hashable, now: float) -> Stream:
        """Make a stream of a run. One from the front is trusted with a part ahead, any other with
        as much as it has proved."""
        proved = min(self._part_bytes, align_up(stop - start, SMALLEST_STEP_BYTES))
        window = self._part_bytes if start == 0 else proved
        stream = Stream(cursor, start, stop, now, window, self._part_bytes)
        self.streams.append(stream)
        if len(self.streams) > MAX_STREAMS:
            self.streams.remove(min(self.streams, key=lambda other: other.last_read_at))
        return stream
