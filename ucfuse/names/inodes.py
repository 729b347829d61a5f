"""Inodes and the table of them: what the kernel knows by number.

A file inode is one file of this mount: a key and the version that it shows now. A directory inode
holds the children that are known. `superblock` changes them; `fs` reads them and pins them.

Numbers grow, so that they have the order of the listings in which names came up: `cp` sorts by
them. The kernel forgets inodes when memory is short, and whoever compares `st_ino` shall not take
the same bytes for others then: a name that comes back with the same version gets the same number.
Otherwise no number is given twice, and that of a file never to a directory, nor the reverse.

Concurrency: used in the trio loop only, every method is atomic.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, auto

from ucfuse.errors import IsADirectory, NotADirectory, StaleName
from ucfuse.volume import DIRECTORY_SUFFIX, ETag, InodeNo, Key, ObjectInfo, first_number

__all__ = [
    "NEVER",
    "ROOT_INODE",
    "UNKNOWN_MTIME_NS",
    "Directory",
    "Fate",
    "File",
    "InodeTable",
    "Node",
    "files_below",
    "key_of",
    "needs_mtime",
]

ROOT_INODE = InodeNo(1)
NEVER = float("-inf")

# No time is stored for directories, and a constant keeps `rsync` and checkpoint rotation from
# seeing an order that does not exist: 2000-01-01, well before any object.
UNKNOWN_MTIME_NS = 946_684_800 * 1_000_000_000

# Numbers of forgotten inodes that are remembered: some 100 bytes each, the oldest go first.
MOST_REMEMBERED = 500_000


class Fate(Enum):
    """Whether an inode still has its name."""

    NAMED = auto()
    UNLINKED = auto()
    """Removed or renamed over by this mount: never committed any more."""
    SUPERSEDED = auto()
    """Another version, or none, was found under its name: only open handles still show it."""
    FORGOTTEN = auto()
    """Out of the table: the name has another inode by now, or will get one."""


@dataclass(slots=True, eq=False)
class Directory:
    """A directory: a marker, or a prefix of some key, or kept here until rmdir."""

    number: InodeNo
    parent: "Directory | None"
    name: str
    lookups: int = 0
    children: "dict[str, Node]" = field(default_factory=dict)
    checked_at: float = NEVER
    """When the youngest request began that showed it to exist (trio clock)."""
    listed_at: float = NEVER
    """When the last complete listing began, while `children` still holds all of it."""
    was_listed: bool = False
    kept: bool = False
    """Made here, or emptied here: it exists for this mount until rmdir."""
    mtime_ns: int = UNKNOWN_MTIME_NS
    fate: Fate = Fate.NAMED
    bound: int = 0
    """Renames and removals under way."""
    changed_names: dict[str, float] = field(default_factory=dict)
    """When a name was last changed by this mount (trio clock): older answers do not apply."""
    leaving: set[str] = field(default_factory=set)
    """Names renamed away whose keys are still being deleted: the store's answers do not apply."""

    @property
    def path(self) -> str:
        """Path from the volume's root, empty for the root, without slashes at the ends."""
        if self.parent is None:
            return ""
        above = self.parent.path
        return f"{above}/{self.name}" if above else self.name

    @property
    def stays(self) -> bool:
        """Whether it exists here by itself, whatever the store says."""
        return self.kept or self.bound > 0 or self.parent is None

    @property
    def is_local(self) -> bool:
        """Whether it, or something below it, exists here whatever the store says."""
        return self.stays or any(child.is_local for child in self.children.values())


@dataclass(slots=True, eq=False)
class File:
    """A file: the version it shows, and whether local changes bind its name to it."""

    number: InodeNo
    parent: Directory
    name: str
    object_name: str
    """Last segment of the key. Differs from `name` only beside a directory of the same name."""
    version: ObjectInfo | None
    """None: created here, and nothing of it is in the store."""
    first_etag: ETag | None
    """Of the version that the number was given for; None: created here."""
    checked_at: float = NEVER
    """When the youngest request began that confirmed `version` (trio clock)."""
    changed_at: float = NEVER
    """When this mount last changed it: answers to older requests do not apply."""
    lookups: int = 0
    pins: int = 0
    """Handles, tickets and questions under way that need this inode."""
    bound: int = 0
    """Uncommitted bytes, commits, renames and unlinks: while above zero nobody asks the store."""
    fate: Fate = Fate.NAMED
    detached_at: float = NEVER
    absent_at: float = NEVER
    """When the request began that found no object under its key."""

    @property
    def path(self) -> str:
        """Path from the volume's root."""
        above = self.parent.path
        return f"{above}/{self.name}" if above else self.name

    @property
    def is_local(self) -> bool:
        """Whether it exists here whatever the store says."""
        return self.bound > 0 or self.version is None

    @property
    def has_name(self) -> bool:
        """Whether the name still means this inode."""
        return self.fate is Fate.NAMED


Node = Directory | File


class InodeTable:
    """All inodes by number. The kernel owns references; the table only drops what nobody needs."""

    def __init__(self, volume_index: int = 0) -> None:
        root_number = InodeNo(first_number(volume_index) + ROOT_INODE)
        self.root = Directory(root_number, None, "", lookups=1)
        self._by_number: dict[InodeNo, Node] = {root_number: self.root}
        self._last_number = int(root_number)
        self._remembered: dict[int, InodeNo] = {}

    def __len__(self) -> int:
        return len(self._by_number)

    def add_directory(self, parent: Directory, name: str) -> Directory:
        """Make the directory inode for a name that has none."""
        node = Directory(self._number_for(_origin_of(parent, name)), parent, name)
        self._add(parent, name, node)
        return node

    def add_file(
        self, parent: Directory, name: str, version: ObjectInfo | None, object_name: str
    ) -> File:
        """Make the file inode for a name that has none."""
        etag = version.etag if version is not None else None
        number = self._number_for(_origin_of(parent, name, etag)) if etag else self._next_number()
        node = File(number, parent, name, object_name, version, etag)
        self._add(parent, name, node)
        return node

    def get(self, number: InodeNo) -> Node:
        """Return the inode. Raises `StaleName` for a number nobody has (a bug or a race)."""
        try:
            return self._by_number[number]
        except KeyError:
            raise StaleName(str(number), "no such inode") from None

    def directory(self, number: InodeNo) -> Directory:
        """Return the directory inode. Raises `NotADirectory`."""
        node = self.get(number)
        if isinstance(node, Directory):
            return node
        raise NotADirectory(node.path)

    def file(self, number: InodeNo) -> File:
        """Return the file inode. Raises `IsADirectory`."""
        node = self.get(number)
        if isinstance(node, File):
            return node
        raise IsADirectory(node.path)

    def forget(self, number: InodeNo, count: int) -> list[Node]:
        """Take `count` kernel references back; return the inodes that are gone with that."""
        node = self._by_number.get(number)
        if node is None or node is self.root:
            return []
        node.lookups = max(0, node.lookups - count)
        return self.drop_unused(node)

    def drop_unused(self, node: Node) -> list[Node]:
        """Remove `node`, and what is below it, if nothing needs them; return what was removed."""
        if not _unused(node):
            return []
        gone: list[Node] = list(_tree(node))
        for each in gone:
            self._by_number.pop(each.number, None)
            if each.fate is Fate.NAMED:
                self._remember(each)
                each.fate = Fate.FORGOTTEN  # who still asks about it would never hear of it
        if node.parent is not None and node.parent.children.get(node.name) is node:
            del node.parent.children[node.name]
            node.parent.listed_at = NEVER  # its children are no longer all of the last listing
        return gone

    def _add(self, parent: Directory, name: str, node: Node) -> None:
        self._by_number[node.number] = node
        parent.children[name] = node

    def _number_for(self, origin: int) -> InodeNo:
        number = self._remembered.pop(origin, None)
        if number is None or number in self._by_number:
            return self._next_number()
        return number

    def _remember(self, node: Node) -> None:
        """Keep the number for the same name and bytes; not if it has shown others meanwhile."""
        if node.parent is None:
            return
        if isinstance(node, Directory):
            origin = _origin_of(node.parent, node.name)
        elif node.version is None or node.version.etag != node.first_etag:
            return
        else:
            origin = _origin_of(node.parent, node.name, node.first_etag)
        self._remembered[origin] = node.number
        if len(self._remembered) > MOST_REMEMBERED:
            del self._remembered[next(iter(self._remembered))]

    def _next_number(self) -> InodeNo:
        self._last_number += 1
        return InodeNo(self._last_number)


def files_below(node: Node) -> Iterator[File]:
    """Yield `node` if it is a file, else all known files below it."""
    return (each for each in _tree(node) if isinstance(each, File))


def needs_mtime(file: File) -> bool:
    """Whether the store has not yet told LastModified of the version (PUT does not)."""
    return file.version is not None and file.version.mtime_s is None


def _origin_of(parent: Directory, name: str, etag: ETag | None = None) -> int:
    """Return what tells names and versions apart, in 64 bits of a keyed hash."""
    return hash((parent.number, name, etag))


def _tree(node: Node) -> Iterator[Node]:
    yield node
    if isinstance(node, Directory):
        for child in node.children.values():
            yield from _tree(child)


def _unused(node: Node) -> bool:
    if node.lookups or node.parent is None:
        return False
    if isinstance(node, File):
        return not node.pins and not (node.has_name and node.is_local)
    keeps_itself = node.stays and node.fate is Fate.NAMED
    return not keeps_itself and all(_unused(child) for child in node.children.values())


def key_of(prefix: str, node: Node) -> Key:
    """Return the key of a file, or the marker's key (the prefix of all below) of a directory."""
    if isinstance(node, Directory):
        path = node.path
        return Key(prefix + path + DIRECTORY_SUFFIX if path else prefix)
    above = node.parent.path
    return Key(f"{prefix}{above}/{node.object_name}" if above else prefix + node.object_name)
