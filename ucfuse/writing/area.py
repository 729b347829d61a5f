"""Where the staging files of one mount lie: makes them, and says what they share.

`fs` owns the one `StagingArea`; the files belong to those who asked for them.

Concurrency: used from the trio loop; making a file is a system call of some 100 us.
"""

import errno
import math
import os
import re
from itertools import count
from pathlib import Path
from typing import Self

import trio

from ucfuse.errors import StagingFull
from ucfuse.volume import GiB
from ucfuse.writing.clean import CleanFiles
from ucfuse.writing.diskfile import DiskFile, Pwrite
from ucfuse.writing.journal import Journal
from ucfuse.writing.protocols import Ranges
from ucfuse.writing.records import Origin
from ucfuse.writing.session_directory import SessionDirectory
from ucfuse.writing.staging import DISK_FULL, Shared, Staging

__all__ = ["StagingArea"]

# Enough to keep a local disk busy. Separate from each other and from trio's default limiter, so
# that the parts of large uploads never keep a program's own reads and writes waiting.
PROGRAM_THREAD_COUNT = 8
UPLOAD_THREAD_COUNT = 4

DEFAULT_CLEAN_LIMIT_BYTES = 2 * GiB
DESCRIPTORS_USED_UP = frozenset({errno.EMFILE, errno.ENFILE})
NAME_TAIL_LENGTH = 80
# Of files that become objects of no store: in tests.
NOWHERE = Origin(endpoint="", bucket="", mountpoint="")


class StagingArea:
    """The staging files of one mount, in a private directory of this session below `directory`.

    Owns the directory; the files belong to those who asked for them. Files that an earlier
    session left behind are not touched. Raises `OSError` if the directory cannot be used.
    """

    def __init__(
        self,
        directory: Path,
        *,
        origin: Origin = NOWHERE,
        limit_bytes: int | None = None,
        clean_limit_bytes: int = DEFAULT_CLEAN_LIMIT_BYTES,
        pwrite: Pwrite = os.pwrite,
    ) -> None:
        self._session = SessionDirectory(directory)
        self._pwrite = pwrite
        self._numbers = count(1)
        self._shared = Shared(
            math.inf if limit_bytes is None else limit_bytes,
            CleanFiles(clean_limit_bytes),
            trio.CapacityLimiter(PROGRAM_THREAD_COUNT),
            trio.CapacityLimiter(UPLOAD_THREAD_COUNT),
        )
        self.journal = Journal(self.path, origin, make_room=self._shared.free_disk)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    @property
    def path(self) -> Path:
        """The directory of this session's files."""
        return self._session.path

    @property
    def clean_bytes(self) -> int:
        """How much of the disk committed files hold that could be given back at once."""
        return self._shared.clean.size_bytes

    def new(self, label: str, base_size: int) -> Staging:
        """Return an empty file that shows `base_size` bytes of a base. Raises `StagingFull`.

        `label` names it in the log and, as far as it can, on the disk: the key, normally.
        """
        path = self.path / f"{_safe_tail(label)}.{next(self._numbers):06d}"
        return Staging(label, self._new_disk_file(label, path), base_size, self._shared)

    def adopt(self, path: Path, size: int, base_size: int, ranges: Ranges) -> Staging:
        """Return a file that another session left behind, with the bytes `ranges` of it.

        The caller holds the file; closing the `Staging` leaves it where it is. Raises `OSError`
        if it cannot be opened.
        """
        disk = DiskFile(path, self._shared.closes, self._pwrite, is_new=False)
        staging = Staging(path.name, disk, base_size, self._shared)
        staging.restore(size, base_size, ranges)
        staging.leave()
        return staging

    def close(self) -> None:
        """End the session; its directory goes unless files were kept. May be called twice."""
        self.journal.close()
        self._session.close()

    def _new_disk_file(self, label: str, path: Path) -> DiskFile:
        while True:
            try:
                return DiskFile(path, self._shared.closes, self._pwrite)
            except OSError as error:
                if error.errno not in DISK_FULL | DESCRIPTORS_USED_UP:
                    raise
                if not self._shared.free_disk():
                    raise StagingFull(label, f"{path}: {error.strerror}") from error


def _safe_tail(label: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "_", label)[-NAME_TAIL_LENGTH:].lstrip(".") or "file"
