"""What reading wants of the kernel's page cache: to take the bytes of a small file unasked."""

from typing import Protocol

from ucfuse.store.api import Buffer
from ucfuse.volume import InodeNo

__all__ = ["MOST_PUSHED_BYTES", "PageCache"]

# What an open fetches anyway. A READ carries at most as much, so one is saved whatever the size.
MOST_PUSHED_BYTES = 1 << 20


class PageCache(Protocol):
    """The pages of this mount that the kernel keeps."""

    def push(self, number: InodeNo, data: Buffer) -> bool:
        """Give the kernel all bytes of a file; False: it did not take them, and will ask.

        Returns when they are there. Only while nobody can be writing to the file, and no READ of it
        can be waiting: it would wait for a page that waits for the READ's answer.
        """
