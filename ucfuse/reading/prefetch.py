"""Reading one version of a file, from several places at once, faster than one request at a time.

A `PrefetchReader` serves all reads of one file version. A random read fetches exactly its pages;
a reader that is seen to be sequential gets a window of parts ahead of it, which widens while it
goes on. `fs` owns readers and says which version the `RangeSource` stands for.

It never retries, never writes, never fetches past the end, and never the same byte twice while
that byte is on its way or not yet delivered. What was delivered in full is dropped: the kernel's
page cache has it.

Concurrency: `read` may run in any number of tasks. All bookkeeping happens between checkpoints;
a read of bytes in memory has no checkpoint at all.
"""

from collections.abc import Hashable, Iterator

import trio

from ucfuse.budget import Reservation
from ucfuse.reading.parts import PAGE_BYTES, Part, PartMap, PartState
from ucfuse.reading.pool import PartPool, RangeSource
from ucfuse.reading.window import BEHIND_BYTES, Stream, StreamTracker, align_down, align_up
from ucfuse.store.api import Buffer, Bytes

__all__ = ["PrefetchReader"]


class PrefetchReader:
    """Serves bytes of one file version of `size` bytes. Owns its parts until `close`."""

    def __init__(self, source: RangeSource, size: int, pool: PartPool) -> None:
        self._source = source
        self._size = size
        self._pool = pool
        self._parts = PartMap()
        self._tracker = StreamTracker(pool.part_bytes)

    async def read(self, offset: int, length: int, cursor: Hashable) -> Buffer:
        """Return `length` bytes from `offset`, fewer only at the end of the file.

        `cursor` names the reader (a handle). Use the result at once: a part that was delivered in
        full no longer counts in the budget, but lives as long as the result does.

        Raises what the source raised for these bytes; the next read asks again.
        """
        stop = min(offset + length, self._size)
        if offset >= stop:
            return b""
        stream = self._tracker.observe(offset, stop, cursor, trio.current_time())
        part = self._parts.holding(offset, stop)
        if part is None or (data := part.deliver(offset, stop)) is None:
            return await self._read_missing(offset, stop, stream)
        self._pool.settle(part)
        self._run_ahead(stream)
        return data

    def has(self, start: int, stop: int) -> bool:
        """Whether a read of `[start, stop)` would be answered from memory now."""
        return self._parts.holding(start, stop) is not None

    def seed(self, offset: int, data: Bytes, reservation: Reservation) -> None:
        """Take over bytes that were fetched already. Of no use where some are here or coming."""
        stop = offset + len(data)
        if self._parts.is_closed or self._parts.gaps(offset, stop) != [(offset, stop)]:
            reservation.release()
            return
        reservation.shrink_to(len(data))
        self._pool.adopt(Part(offset, stop, self._parts), data, reservation)

    def whole(self, most_bytes: int) -> Buffer | None:
        """Return all bytes of the file, which stay here and do not count as delivered.

        None: they are not here in one piece, or the file is empty or has more than `most_bytes`.
        """
        if not 0 < self._size <= most_bytes:
            return None
        part = self._parts.holding(0, self._size)
        return part.data if part is not None else None

    def close(self) -> None:
        """Drop all parts and cancel all fetches but those that a read still waits for."""
        self._parts.is_closed = True
        for stream in self._tracker.streams:
            self._pool.forget(stream)
        for part in list(self._parts):
            self._pool.settle(part)

    async def _read_missing(self, offset: int, stop: int, stream: Stream | None) -> Buffer:
        parts = self._demand(offset, stop, stream)
        self._run_ahead(stream)
        if len(parts) == 1:
            data = await self._take(parts[0], offset, stop)
            if data is not None:
                return data
        return await self._join(offset, stop, stream)

    async def _join(self, offset: int, stop: int, stream: Stream | None) -> bytearray:
        """Copy a read together from several parts, in order.

        It waits for one part at a time and holds none while it waits for another, so that no two
        reads can wait for each other's memory. A later part may be dropped meanwhile; it is then
        asked for again.
        """
        joined = bytearray(stop - offset)
        position = offset
        while position < stop:
            for part in self._demand(position, stop, stream):
                piece_stop = min(stop, part.stop)
                piece = await self._take(part, position, piece_stop)
                if piece is None:
                    break
                joined[position - offset : piece_stop - offset] = piece
                position = piece_stop
        return joined

    async def _take(self, part: Part, start: int, stop: int) -> memoryview | None:
        """Wait for a part and return bytes of it, or None if it was dropped before its turn."""
        part.users += 1
        try:
            if not part.done.is_set():
                await part.done.wait()
            return part.deliver(start, stop)
        finally:
            part.users -= 1
            self._pool.settle(part)

    def _demand(self, start: int, stop: int, stream: Stream | None) -> list[Part]:
        """Return the parts that have `[start, stop)`, after asking for those that are missing."""
        step = 0
        if stream is not None and stop >= stream.head and not self._pool.is_contended:
            step = stream.step_bytes
        first = align_down(start, PAGE_BYTES)
        last = min(self._size, align_up(stop, step or PAGE_BYTES))
        if stream is not None and step:
            last = max(stop, self._tracker.territory_stop(stream, last))
        for gap_start, gap_stop in self._parts.gaps(first, last):
            if gap_start >= stop:
                break
            for part in self._cut(gap_start, gap_stop, step, stream if step else None):
                self._pool.fetch(part, self._source)
        return self._parts.touching(start, stop)

    def _run_ahead(self, stream: Stream | None) -> None:
        """Ask for what the window of `stream` lacks, as far as there is room now."""
        if stream is None or self._parts.is_closed:
            return
        if stream.is_due:
            stream.resize(self._pool.window_limit(stream))
            self._drop_passed(stream)
        start, stop = stream.wanted()
        stop = min(stop, self._size)
        if start < stop:
            stop = self._tracker.territory_stop(stream, stop)
        if start >= stop or self._pool.is_contended:
            return
        for gap_start, gap_stop in self._parts.gaps(start, stop):
            for part in self._cut(gap_start, gap_stop, stream.step_bytes, stream):
                if not self._pool.fetch_ahead(part, self._source):
                    stream.planned = part.start
                    return
        stream.planned = stop

    def _cut(self, start: int, stop: int, step: int, stream: Stream | None) -> Iterator[Part]:
        """Cut a gap into parts that end at multiples of `step`; an exact range stays whole."""
        if not step and stop - start <= self._pool.part_bytes:
            yield Part(start, stop, self._parts)
            return
        step = step or self._pool.part_bytes
        while start < stop:
            part_stop = min(stop, align_down(start, step) + step)
            yield Part(start, part_stop, self._parts, stream)
            start = part_stop

    def _drop_passed(self, stream: Stream) -> None:
        """Drop parts that `stream` has left behind though it did not read them in full: the
        kernel had the rest."""
        passed = self._parts.touching(0, max(0, stream.head - BEHIND_BYTES))
        for part in passed:
            is_idle = part.state is PartState.READY and not part.users
            if part.stream is stream and part.stop <= stream.head - BEHIND_BYTES and is_idle:
                self._pool.discard(part)
