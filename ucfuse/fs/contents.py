"""The contents of all files that are open, dirty or still staged: who owns and who ends them.

`Contents` owns every `FileContent`, and with them staging files, uploads and readers. Here bytes
become dirty and clean, and what nobody needs is given up.

Concurrency: trio loop only, methods are atomic. Whoever changes the bytes or commits them holds
`FileContent.lock`; a claim on the key, where one is needed, is taken before it.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import trio

from ucfuse.errors import StaleName
from ucfuse.fs.caller import Uncommitted
from ucfuse.fs.file_content import FileContent
from ucfuse.names.inodes import Fate, File, Node
from ucfuse.names.superblock import Superblock
from ucfuse.volume import InodeNo, Key
from ucfuse.writing.area import StagingArea
from ucfuse.writing.journal import Entry
from ucfuse.writing.ranges import RangeSet
from ucfuse.writing.staging import Staging
from ucfuse.writing.upload import Uploader

__all__ = ["Contents"]


class Contents:
    """The contents of all files that are open, dirty or still staged. Their owner."""

    def __init__(
        self,
        superblock: Superblock,
        area: StagingArea,
        uploader: Uploader,
        troubles: Mapping[str, str],
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._superblock = superblock
        self._inodes = superblock.inodes
        self._area = area
        self._uploader = uploader
        self._troubles = troubles
        self._wall_ns = wall_ns
        self._by_file: dict[File, FileContent] = {}

    def __iter__(self) -> Iterator[FileContent]:
        return iter(list(self._by_file.values()))

    def of(self, file: File) -> FileContent:
        """Return the content of a file, made at first use."""
        content = self._by_file.get(file)
        if content is None:
            content = self._by_file[file] = FileContent(file)
        return content

    def known(self, file: File) -> FileContent | None:
        """Return the content of a file if there is one."""
        return self._by_file.get(file)

    # --- dirty and clean ---------------------------------------------------------------------

    def begin_changes(self, content: FileContent) -> Staging:
        """Make the content dirty if it is not; its base is the version that the file shows.

        Before bytes or size change. Raises `StagingFull`.
        """
        if content.is_dirty:
            assert content.staging is not None
            if content.entry is not None:
                content.entry.changes()
            return content.staging
        version = content.file.version
        if content.staging is None:
            size = version.size if version is not None else 0
            content.staging = self._area.new(content.file.path, size)
        entry: Entry | None = None
        if content.file.fate is not Fate.UNLINKED:
            key = self._superblock.key(content.file)
            base_etag = version.etag if version is not None else None
            entry = self._area.journal.begin(content.staging, key, base_etag=base_etag)
        self._make_dirty(content, content.staging, entry)
        return content.staging

    def prepare(self, key: Key, path: str, nonce: str | None) -> tuple[Staging, Entry]:
        """Return staging and journal entry of a file that is about to be made."""
        staging = self._area.new(path, 0)
        try:
            entry = self._area.journal.begin(
                staging, key, base_etag=None, is_replacement=True, nonce=nonce
            )
        except BaseException:
            staging.close()
            raise
        return staging, entry

    def begin_new(self, file: File, staging: Staging, entry: Entry) -> FileContent:
        """Make the dirty content of a file that was just made, with what `prepare` returned."""
        content = self.of(file)
        content.staging = staging
        self._make_dirty(content, staging, entry)
        content.is_replacement = True
        self.changed(content)
        return content

    def _make_dirty(self, content: FileContent, staging: Staging, entry: Entry | None) -> None:
        staging.mark_dirty()
        content.is_dirty = True
        content.is_replacement = False
        content.base = content.file.version
        content.dirty_at = trio.current_time()
        content.entry = entry
        file = content.file
        content.upload = self._uploader.begin(
            staging, lambda: self._superblock.key(file), entry, base=content.base
        )
        if entry is None:
            content.upload.give_up(lambda: None)  # nothing was sent
        file.bound += 1
        file.pins += 1

    def changed(self, content: FileContent) -> None:
        """Note that bytes or size were just changed by a program."""
        content.change_count += 1
        content.written_ns = self._wall_ns()
        if content.entry is not None:
            content.entry.changed()

    def unlinked(self, content: FileContent) -> None:
        """Note that the file lost its name for ever: its bytes stay for handles, and here alone."""
        entry, content.entry = content.entry, None
        if content.upload is not None and entry is not None:
            content.upload.give_up(entry.dropped)

    def committed(self, content: FileContent) -> None:
        """Make the content clean: the store has its bytes."""
        if content.staging is not None:
            content.staging.rebase()
        self.settled(content)

    def settled(self, content: FileContent) -> None:
        """Make the content clean: its bytes are committed, or will never be."""
        if not content.is_dirty:
            return
        content.is_dirty = False
        content.base = None
        content.is_replacement = False
        content.must_be_new = False
        content.has_placeholder = False
        content.has_own_bytes = False
        content.tried_count = -1
        content.refused = RangeSet()
        content.refusal = None
        content.error = None
        content.close_reader()  # it read the base
        self._end_upload(content)
        content.file.bound -= 1
        if content.staging is not None and content.file.has_name:
            content.staging.mark_clean(content.close_staging)
        self.unpin(content.file)

    def _end_upload(self, content: FileContent) -> None:
        upload, content.upload = content.upload, None
        entry, content.entry = content.entry, None
        if upload is None or entry is None:
            return
        is_kept = content.staging is not None and content.staging.is_kept
        upload.abandon_soon(entry.released if is_kept else entry.confirmed)

    # --- who needs it ------------------------------------------------------------------------

    def pin(self, file: File) -> None:
        """Keep inode and content until `unpin`."""
        file.pins += 1

    @contextmanager
    def pinned(self, file: File) -> Iterator[None]:
        """Keep inode and content until the end of the block."""
        self.pin(file)
        try:
            yield
        finally:
            self.unpin(file)

    @contextmanager
    def bound(self, node: Node) -> Iterator[None]:
        """Until the end of the block the name is not asked of the store, nor lost to an answer."""
        node.bound += 1
        if isinstance(node, File):
            self.pin(node)
        try:
            yield
        finally:
            node.bound -= 1
            if isinstance(node, File):
                self.unpin(node)

    def unpin(self, file: File) -> None:
        """Give up what nobody needs any more: the reader, lost staging, the inode itself."""
        file.pins -= 1
        if file.pins:
            return
        content = self._by_file.get(file)
        if content is not None:
            content.close_reader()
            if not file.has_name:
                self._drop(content)
        self.inodes_gone(self._inodes.drop_unused(file))

    def forget(self, number: InodeNo, count: int) -> None:
        """Take kernel references back. Of what it has forgotten it has no pages any more."""
        self.inodes_gone(self._inodes.forget(number, count))
        with suppress(StaleName):  # gone, as most are then
            node = self._inodes.get(number)
            if isinstance(node, File) and not node.lookups and (content := self.known(node)):
                content.pages_dropped()

    def inodes_gone(self, nodes: Sequence[Node]) -> None:
        """Close the contents of inodes that the table has dropped."""
        for node in nodes:
            if isinstance(node, File) and (content := self._by_file.get(node)) is not None:
                self._drop(content)

    def _drop(self, content: FileContent) -> None:
        content.close_reader()
        content.close_staging()
        self._by_file.pop(content.file, None)

    def close(self) -> None:
        """End all: dirty staging files stay for the user, and the log names them.

        No request can be made any more. The journal knows the uploads that are left.
        """
        for content in self:
            if content.entry is not None and content.staging is not None:
                self._leave(content, content.staging, content.entry)
            self._drop(content)

    def _leave(self, content: FileContent, staging: Staging, entry: Entry) -> None:
        if content.has_own_bytes and content.file.fate is not Fate.UNLINKED:
            reason = "not committed when the mount ended"
            staging.keep(reason)
            entry.promise_now(reason)
            entry.released()
        elif not content.has_placeholder and not (content.upload and content.upload.has_begun):
            entry.dropped()

    def uncommitted(self) -> list[Uncommitted]:
        """Return what the store does not have yet, oldest first."""
        by_age = sorted(self._by_file.values(), key=lambda content: content.dirty_at)
        return [found for content in by_age if (found := self.uncommitted_of(content))]

    def uncommitted_of(self, content: FileContent) -> Uncommitted | None:
        """Return what the store does not have yet of one file; None: nothing."""
        if not content.is_dirty or content.file.fate is Fate.UNLINKED:
            return None
        age_s = trio.current_time() - content.dirty_at
        return Uncommitted(content.file.path, content.size, age_s, self._why(content))

    def _why(self, content: FileContent) -> str | None:
        """Return what the commit waits for now, or else why it failed the last time."""
        trouble = self._troubles.get(self._superblock.key(content.file))
        cause = content.refusal or content.error
        return trouble or (str(cause) if cause else None)
