"""Whether the writes of one handle come in order, from the beginning of the file to its end.

Pure bookkeeping: `strict_writes` asks before each write, `writes` tells of each that was made.
"""

from ucfuse.portability import Operation

__all__ = ["Sequence"]


class Sequence:
    """The writes of one open file.

    `starts_at`: where it may begin; None: it was opened on bytes that are there already.
    """

    def __init__(self, starts_at: int | None) -> None:
        self._next = self._end = starts_at
        self.has_begun = False

    def judge(self, offset: int, size: int) -> Operation | None:
        """Return what a write at `offset` of a file of `size` is, if it does not go on in order.

        A handle that went back may return to the end that it had reached.
        """
        if offset > size:
            return Operation.SPARSE
        if offset in (self._next, self._end) or size == 0:
            return None
        return Operation.APPEND if offset == size else Operation.OVERWRITE

    def wrote(self, stop: int) -> None:
        """Note that a write ended at `stop`."""
        self.has_begun = True
        self._next = stop
        self._end = stop if self._end is None else max(self._end, stop)
