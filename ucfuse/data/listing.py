"""Which files a directory holds, in a stable order, and which version of each is there now.

`dataset` lists once for the names; `fetching` lists the versions for a pass unless the file system
answers for single files from memory: listing a directory is one request per thousand files on an
object store, asking for each can be one per file.

Concurrency: functions only, safe in any thread.
"""

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import NamedTuple

__all__ = ["Listing", "Version", "digest_of"]


class Version(NamedTuple):
    """What tells one version of a file from another. A tuple: they are made and compared often."""

    size: int
    mtime_ns: int
    device: int
    inode: int

    @classmethod
    def of(cls, status: os.stat_result) -> "Version":
        """Return the version that `stat` showed."""
        return cls(status.st_size, status.st_mtime_ns, status.st_dev, status.st_ino)


@dataclass(frozen=True, slots=True)
class Listing:
    """How to list: below `root`, an absolute path."""

    root: str
    recursive: bool
    pattern: str | None

    def names(self) -> list[str]:
        """Return the files' paths relative to `root`, sorted. Raises `OSError` with the path."""
        return sorted(name for name, _ in self._walk())

    def versions(self) -> dict[str, Version]:
        """Return the version of every file that is there now. Raises `OSError` with the path."""
        versions = {}
        for name, entry in self._walk():
            try:
                versions[name] = Version.of(entry.stat())
            except OSError:
                continue  # without a version it is looked at again, and reported, when it is needed
        return versions

    def _walk(self) -> Iterator[tuple[str, "os.DirEntry[str]"]]:
        below = [""]
        while below:
            prefix = below.pop()
            with os.scandir(os.path.join(self.root, prefix)) as entries:
                for entry in entries:
                    name = prefix + entry.name
                    if entry.is_dir(follow_symlinks=False):
                        if self.recursive:
                            below.append(name + "/")
                    elif self._wants(name) and entry.is_file():
                        yield name, entry

    def _wants(self, name: str) -> bool:
        if self.pattern is None:
            return True
        subject = name if "/" in self.pattern else name.rpartition("/")[2]
        return fnmatchcase(subject, self.pattern)


def digest_of(names: Sequence[str]) -> str:
    """Return a short text that is equal for equal lists of names."""
    digest = hashlib.blake2b(digest_size=16)
    for name in names:
        digest.update(os.fsencode(name) + b"\0")
    return digest.hexdigest()
