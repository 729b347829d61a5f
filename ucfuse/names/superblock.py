"""The superblock: which names exist, which version each shows, and how old that knowledge is.

Answers of the store enter through `observe_*`, changes of this mount through `created`,
`committed`, `renamed`, `removed` and the like. `lookups` asks the store and `listing` reads
directories; `fs` is the user of all three.

A version committed elsewhere never enters an existing inode: the name gets a new one, and the old
one is then like a file that was renamed over. So every page the kernel caches belongs to the
version that its inode shows. There is no negative caching, and an error or a partial listing
never means "does not exist".

Concurrency: trio loop only; every method is atomic. An answer whose request began before the last
local change of a key is not applied to that key.
"""

import time
from collections.abc import Callable, Container
from dataclasses import replace

import trio

from ucfuse.metrics import Metrics
from ucfuse.names.inodes import (
    NEVER,
    Directory,
    Fate,
    File,
    InodeTable,
    Node,
    files_below,
    key_of,
    needs_mtime,
)
from ucfuse.names.rules import beside, can_be_name, key_of_name, marker_of
from ucfuse.store.api import ListPage
from ucfuse.volume import DIRECTORY_SUFFIX, Key, ObjectInfo

__all__ = ["Superblock"]

# No request about names lives longer than its deadline; five minutes are far beyond any option
# that makes sense, so older changes need no protection against old answers.
OLDEST_ANSWER_S = 300.0


class Superblock:
    """Names, inodes and their age, of one volume. Owner of the inode table."""

    def __init__(
        self,
        prefix: str,
        ttl_s: float,
        metrics: Metrics,
        wall_ns: Callable[[], int] = time.time_ns,
        *,
        volume_index: int = 0,
    ) -> None:
        self.inodes = InodeTable(volume_index)
        self._prefix = prefix
        self._ttl_s = ttl_s
        self._metrics = metrics
        self._wall_ns = wall_ns

    # --- what is known now -------------------------------------------------------------------

    def key(self, node: Node) -> Key:
        """Return the key of a file, or of a directory's marker."""
        return key_of(self._prefix, node)

    def key_below(self, parent: Directory, name: str) -> Key:
        """Return the key that a file `name` has or would have. Raises `NameTooLong`."""
        return key_of_name(self.key(parent), name)

    def marker_below(self, parent: Directory, name: str) -> Key:
        """Return the key of the marker that a directory `name` has. Raises `NameTooLong`."""
        return marker_of(self.key_below(parent, name))

    def known(self, parent: Directory, name: str) -> Node | None:
        """Return what the name means as far as this mount knows, however old that is."""
        return parent.children.get(name)

    def valid_s(self, node: Node) -> float:
        """Return for how many seconds the kernel may keep what it is told of `node` now."""
        if isinstance(node, File):
            if not node.has_name or node.is_local or needs_mtime(node):
                return 0.0
        elif node.stays:
            return self._ttl_s
        return max(0.0, node.checked_at + self._ttl_s - trio.current_time())

    def is_fresh(self, node: Node) -> bool:
        """Whether the node may be shown without asking the store."""
        if isinstance(node, Directory):
            return node.stays or self.valid_s(node) > 0
        return node.is_local or (not needs_mtime(node) and self.valid_s(node) > 0)

    def lacks_only_mtime(self, file: File) -> bool:
        """Whether all but the time of a version that this mount just committed is known."""
        is_young = file.checked_at + self._ttl_s > trio.current_time()
        return file.has_name and not file.is_local and needs_mtime(file) and is_young

    # --- answers of the store ----------------------------------------------------------------

    def observe(
        self, parent: Directory, name: str, info: ObjectInfo | None, directory: bool, began: float
    ) -> Node | None:
        """Apply what a request that began at `began` told of a name; return what it means now."""
        if directory:
            if info is not None:
                self._observe_file(parent, beside(name), info, began, name)
            return self._observe_directory(parent, name, began)
        node = parent.children.get(name)
        if info is not None:
            if isinstance(node, Directory) and node.is_local:
                return node
            return self._observe_file(parent, name, info, began, name)
        if node is not None and not node.is_local and self._applies(parent, name, node, began):
            self._detach(node, Fate.SUPERSEDED)
        return parent.children.get(name)

    def observe_page(self, parent: Directory, page: ListPage, began: float) -> dict[str, None]:
        """Apply one page of a delimited listing; return its names in order (as a set)."""
        base = len(self.key(parent))
        names: dict[str, None] = {}
        last = max([i.key for i in page.objects[-1:]] + list(page.prefixes[-1:]), default="")
        directories = {p[base:-1] for p in page.prefixes if self._is_name(p[base:-1])}
        for info in page.objects:
            name = info.key[base:]
            if not name:
                continue  # the directory's own marker
            if not self._is_name(name):
                continue
            told = page.next_token is None or last > info.key + DIRECTORY_SUFFIX
            shown = name
            if name in directories or self._is_shadowed(parent, name, told):
                shown = beside(name)
                if not self._is_name(shown):
                    continue
            if self._observe_file(parent, shown, info, began, name) is not None:
                names[shown] = None
        for name in sorted(directories):
            if self._observe_directory(parent, name, began) is not None:
                names[name] = None
        return names

    def finish_listing(self, parent: Directory, shown: Container[str], began: float) -> list[str]:
        """End a complete listing whose first page began at `began`.

        Drops the names that it has not `shown`, and returns those of them that exist all the
        same: not committed yet, or only since the listing began.
        """
        remaining = []
        others = [each for each in parent.children.items() if each[0] not in shown]
        for name, node in others:
            is_older = node.checked_at < began and self._applies(parent, name, node, began)
            if is_older and not node.is_local:
                self._detach(node, Fate.SUPERSEDED)
            else:
                remaining.append(name)
        parent.was_listed = True
        parent.listed_at = began
        return remaining

    def observe_version(self, file: File, info: ObjectInfo, began: float) -> Node | None:
        """Apply what the store told of this file's key; return what its name means now."""
        if not file.has_name:
            return file.parent.children.get(file.name)
        return self._observe_file(file.parent, file.name, info, began, file.object_name)

    def observe_missing(self, file: File, began: float) -> None:
        """Apply that the store has no object under this file's key."""
        if file.has_name and not file.is_local and file.changed_at < began >= file.checked_at:
            file.absent_at = began
            self._detach(file, Fate.SUPERSEDED)

    def confirm(self, file: File, etag: str, began: float) -> None:
        """Apply that the key still held `etag` for a request that began at `began`."""
        if file.has_name and file.version is not None and file.version.etag == etag:
            file.checked_at = max(file.checked_at, began)

    # --- changes of this mount ---------------------------------------------------------------

    def created(self, parent: Directory, name: str, version: ObjectInfo | None) -> File:
        """Make the inode of a file created here; `version` is its placeholder in the store."""
        self._make_way(parent, name)
        file = self.inodes.add_file(parent, name, version, name)
        self._changed(parent, name)
        file.checked_at = file.changed_at = trio.current_time()
        return file

    def committed(self, file: File, version: ObjectInfo, began: float) -> None:
        """Show the version that this mount just committed; the commit began at `began`."""
        file.version = version
        if file.has_name:
            file.checked_at = max(file.checked_at, began)
            file.changed_at = trio.current_time()
            self._changed(file.parent, file.name)

    def renamed(self, node: Node, parent: Directory, name: str) -> Node | None:
        """Move a node to another name; return the node that lost that name, if any."""
        replaced = parent.children.get(name)
        if replaced is not None:
            self._detach(replaced, Fate.UNLINKED)
        assert node.parent is not None
        del node.parent.children[node.name]
        self._changed(node.parent, node.name)
        node.parent.listed_at = NEVER
        node.parent, node.name = parent, name
        if isinstance(node, File):
            node.object_name = name
        for file in files_below(node):
            file.changed_at = trio.current_time()
        parent.children[name] = node
        self._changed(parent, name)
        return replaced

    def leaves(self, parent: Directory, name: str) -> None:
        """Note that a name was renamed away while its keys are still in the store."""
        parent.leaving.add(name)

    def left(self, parent: Directory, name: str) -> None:
        """Note that the keys of a name that was renamed away are gone, or will stay."""
        parent.leaving.discard(name)
        self._changed(parent, name)

    def removed(self, node: Node) -> None:
        """Take the name away: unlinked here. The directory stays until rmdir."""
        parent = node.parent
        assert parent is not None
        self._detach(node, Fate.UNLINKED)
        self._changed(parent, node.name)
        self.keep_if_empty(parent)

    def keep_if_empty(self, directory: Directory) -> None:
        """Let a directory that lost its last known name here exist until rmdir."""
        if not directory.children:
            directory.kept = True

    def superseded(self, file: File) -> None:
        """Take the name away from an inode that lost against a version from elsewhere."""
        if file.has_name:
            self._detach(file, Fate.SUPERSEDED)

    def takes_over(self, file: File) -> bool:
        """Give an inode that lost its name to another version the name back, to replace that.

        False if the name means something else: a directory, nothing, or local changes.
        """
        present = file.parent.children.get(file.name)
        if file.fate is not Fate.SUPERSEDED or not isinstance(present, File) or present.is_local:
            return False
        if file.parent.fate is not Fate.NAMED:
            return False
        self._detach(present, Fate.UNLINKED)
        file.fate, file.version = Fate.NAMED, present.version
        file.parent.children[file.name] = file
        self._changed(file.parent, file.name)
        return True

    def made_directory(self, parent: Directory, name: str) -> Directory:
        """Make the inode of a directory made here, unless a listing has shown it already."""
        node = parent.children.get(name)
        if not isinstance(node, Directory):
            self._make_way(parent, name)
            node = self.inodes.add_directory(parent, name)
        node.kept = True
        node.mtime_ns = self._wall_ns()
        node.checked_at = trio.current_time()
        self._changed(parent, name)
        return node

    # --- inner workings ----------------------------------------------------------------------

    def _observe_file(
        self, parent: Directory, name: str, info: ObjectInfo, began: float, object_name: str
    ) -> Node | None:
        node = parent.children.get(name)
        if node is not None and (node.is_local or not self._applies(parent, name, node, began)):
            return node
        if isinstance(node, File) and node.version is not None and node.version.etag == info.etag:
            _renew(node, info, began)
            return node
        if node is not None:
            self._detach(node, Fate.SUPERSEDED)
        elif self._was_removed(parent, name, began):
            return None
        file = self.inodes.add_file(parent, name, info, object_name)
        file.checked_at = began
        return file

    def _observe_directory(self, parent: Directory, name: str, began: float) -> Node | None:
        node = parent.children.get(name)
        if isinstance(node, Directory):
            node.checked_at = max(node.checked_at, began)
            return node
        if node is not None:
            if node.is_local or not self._applies(parent, name, node, began):
                return node
            self._detach(node, Fate.SUPERSEDED)
        elif self._was_removed(parent, name, began):
            return None
        directory = self.inodes.add_directory(parent, name)
        directory.checked_at = began
        return directory

    def _applies(self, parent: Directory, name: str, node: Node, began: float) -> bool:
        """Whether an answer is younger than all that is known of the name."""
        changed = node.changed_at if isinstance(node, File) else NEVER
        return began >= node.checked_at and began > max(
            changed, parent.changed_names.get(name, NEVER)
        )

    def _was_removed(self, parent: Directory, name: str, began: float) -> bool:
        """Whether this mount took the name away after that request began, or does so now."""
        return name in parent.leaving or parent.changed_names.get(name, NEVER) >= began

    def _detach(self, node: Node, fate: Fate) -> None:
        parent = node.parent
        assert parent is not None
        if parent.children.get(node.name) is node:
            del parent.children[node.name]
        node.fate = fate
        if isinstance(node, File):
            node.detached_at = trio.current_time()
        else:
            for child in list(node.children.values()):
                self._detach(child, fate)
        self.inodes.drop_unused(node)

    def _changed(self, parent: Directory, name: str) -> None:
        now = trio.current_time()
        parent.mtime_ns = self._wall_ns()
        parent.changed_names.pop(name, None)  # so that the dict stays in order of time
        parent.changed_names[name] = now
        while next(iter(parent.changed_names.values())) < now - OLDEST_ANSWER_S:
            del parent.changed_names[next(iter(parent.changed_names))]

    def _make_way(self, parent: Directory, name: str) -> None:
        """Take the name from what a listing showed before its maker heard of it."""
        shown = parent.children.get(name)
        if shown is not None:
            self._detach(shown, Fate.SUPERSEDED)

    def _is_shadowed(self, parent: Directory, name: str, told: bool) -> bool:
        """Whether a known directory has the name; `told`: the page would have shown it."""
        known = parent.children.get(name)
        return isinstance(known, Directory) and (known.is_local or not told)

    def _is_name(self, name: str) -> bool:
        """Whether the key can show by this name; else it is counted."""
        if can_be_name(name):
            return True
        self._metrics.skipped_keys += 1
        return False


def _renew(file: File, info: ObjectInfo, began: float) -> None:
    file.checked_at = max(file.checked_at, began)
    version = file.version
    if version is not None and info.mtime_s is not None and info.mtime_s != version.mtime_s:
        file.version = replace(info, key=version.key)
