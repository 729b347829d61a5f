"""Storing bytes in the kernel's page cache before a program asks for them.

`mount` gives a `KernelPageCache` to the file system, which knows when that is safe. Measured with
150 KiB files and 16 readers: pushed while the open is answered 5,085 files/s, read by a READ after
it 3,914, pushed from a worker thread 2,139.

Concurrency: called in the trio loop; copies at most 1 MiB and waits for nobody.
"""

import errno
import logging

import pyfuse3
from pyfuse3 import InodeT

from ucfuse.store.api import Buffer
from ucfuse.volume import InodeNo

__all__ = ["KernelPageCache"]

log = logging.getLogger(__name__)


class KernelPageCache:
    """The `PageCache` of the one session of this process."""

    def __init__(self) -> None:
        self._is_supported = True

    def push(self, number: InodeNo, data: Buffer) -> bool:
        """Store all bytes of a file; False if the kernel has forgotten it, or takes none."""
        if not self._is_supported:
            return False
        try:
            # Any buffer will do, though its stubs say bytes.
            pyfuse3.notify_store(InodeT(number), 0, data)  # type: ignore[arg-type]
        except OSError as error:
            self._is_supported = error.errno != errno.ENOSYS
            log.debug("inode %d: not pushed: %s", number, error)
            return False
        return True
