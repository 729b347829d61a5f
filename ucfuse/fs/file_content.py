"""The bytes of one file as this mount has them: staging, reader, and what is not committed.

A `FileContent` belongs to one file inode, so dirtiness does too: the kernel sends the pages of a
mapping under any write handle. `contents` owns them all.

Concurrency: trio loop only, methods are atomic. Whoever changes the bytes or commits them holds
`FileContent.lock`.
"""

from dataclasses import dataclass, field

import trio

from ucfuse.errors import AlreadyExists, NotPortable, ObjectChanged, VolumeError
from ucfuse.names.inodes import NEVER, File
from ucfuse.reading.prefetch import PrefetchReader
from ucfuse.volume import ObjectInfo
from ucfuse.writing.journal import Entry
from ucfuse.writing.ranges import RangeSet
from ucfuse.writing.staging import Staging
from ucfuse.writing.upload import Upload

__all__ = ["FileContent"]


@dataclass(slots=True, eq=False)
class FileContent:
    """What one file holds beyond its version in the store.

    Invariant: `is_dirty` implies `staging` and `upload`. What a clean `staging` does not hold,
    `file.version` has.
    """

    file: File
    lock: trio.Lock = field(default_factory=trio.Lock)
    """Held while bytes change and while they are committed: writes wait for a commit."""
    staging: Staging | None = None
    upload: Upload | None = None
    """The way of the dirty bytes into the store."""
    entry: Entry | None = None
    """What the journal says of the dirty bytes; None of a file that was unlinked."""
    reader: PrefetchReader | None = None
    is_dirty: bool = False
    base: ObjectInfo | None = None
    """The version the dirty bytes grew from; None: the name did not exist."""
    is_replacement: bool = False
    """All bytes are new (O_TRUNC or a new name): the last writer wins."""
    must_be_new: bool = False
    """O_EXCL is decided by the commit: the name must still be free then."""
    has_placeholder: bool = False
    """The base is the empty object by which O_EXCL took the name."""
    dirty_at: float = NEVER
    written_ns: int = 0
    has_own_bytes: bool = False
    """A program wrote bytes (and did not only create or resize) since the last commit."""
    change_count: int = 0
    tried_count: int = -1
    """`change_count` at the last commit that failed, after which the store may have the bytes
    all the same; -1: there was none."""
    refused: RangeSet = field(default_factory=RangeSet)
    """Ranges that a full disk refused and no later write or truncation made good. The file must
    not be committed without them: they would read as zeros, or the object would be short."""
    refusal: NotPortable | None = None
    """What a strict mode refused to a handle that has written: the file is not what its program
    wanted, so nothing of it is committed any more."""
    error: VolumeError | None = None
    """Why the last commit failed; a conflict stays until the file is closed."""
    handle_count: int = 0
    writer_count: int = 0
    changer_count: int = 0
    """Opens for writing and truncates under way."""
    _delivered_bytes: int = 0
    _delivered_of: tuple[str, int | None] | None = None

    @property
    def has_conflict(self) -> bool:
        """Whether an update lost against another version: no further commit is tried."""
        return isinstance(self.error, (ObjectChanged, AlreadyExists))

    @property
    def may_be_pushed(self) -> bool:
        """Whether bytes of the store may go to the kernel unasked: nobody can be writing (what came
        too late would replace what was written), and no READ can be waiting."""
        is_quiet = not (self.handle_count or self.changer_count or self.file.bound)
        return is_quiet and not self.is_dirty and self.staging is None

    @property
    def size(self) -> int:
        """Size of the file as programs on this mount see it, in bytes."""
        if self.staging is not None:
            return self.staging.size
        return self.file.version.size if self.file.version is not None else 0

    @property
    def store_version(self) -> ObjectInfo | None:
        """The version whose bytes show through where nothing was written."""
        return self.base if self.is_dirty else self.file.version

    def delivered(self, offset: int, length: int) -> None:
        """Note that the kernel was given these bytes of the present version."""
        if self._delivered_of != self._page_cache_key():
            self._delivered_of, self._delivered_bytes = self._page_cache_key(), 0
        if offset <= self._delivered_bytes < offset + length:
            self._delivered_bytes = offset + length

    def has_delivered(self, length: int) -> bool:
        """Whether the kernel was given the first `length` bytes of the present version."""
        return self._delivered_of == self._page_cache_key() and self._delivered_bytes >= length

    def pages_dropped(self) -> None:
        """Note that the kernel has no pages of the file any more."""
        self._delivered_of = None

    def is_at_hand(self, length: int) -> bool:
        """Whether the first `length` bytes of the present version can be had without asking."""
        if self.staging is not None or self.has_delivered(length):
            return True
        return self.reader is not None and self.reader.has(0, length)

    def _page_cache_key(self) -> tuple[str, int | None] | None:
        """The kernel drops the pages of an inode when its mtime changes."""
        version = self.file.version
        return None if version is None else (version.etag, version.mtime_s)

    def close_reader(self) -> None:
        """Give up what was prefetched."""
        reader, self.reader = self.reader, None
        if reader is not None:
            reader.close()

    def close_staging(self) -> None:
        """Remove the staging file (unless it is kept for the user)."""
        staging, self.staging = self.staging, None
        if staging is not None:
            staging.close()
