"""Whether a program may do what it asks for, by owner and mode of the mount.

All files of a mount share one mode, all directories another, and everything has one owner. The
adapter asks here instead of letting the kernel check (`default_permissions`): the kernel would
ask for attributes in the middle of an open that it repeats, and that request would look like the
end of the repeat. A file is reachable only through directories, so every access also needs
search permission on directories, which the kernel's own cache would otherwise skip.
"""

from dataclasses import dataclass
from enum import IntFlag
from typing import Protocol

import pyfuse3

__all__ = ["AccessRules", "Permission", "Requester"]


class Permission(IntFlag):
    """The bits of access(2) and of one digit of a mode."""

    NONE = 0
    EXECUTE = 1
    WRITE = 2
    READ = 4


class Requester(Protocol):
    """The part of a request's context that says who asks."""

    @property
    def uid(self) -> int: ...
    @property
    def gid(self) -> int: ...
    @property
    def pid(self) -> int: ...


@dataclass(frozen=True, slots=True)
class AccessRules:
    """Owner and modes of everything in the mount."""

    uid: int
    gid: int
    file_mode: int
    dir_mode: int
    fixed_dir_mode: int
    """Shown of directories that nobody can change."""

    def allow_file(self, who: Requester, wanted: Permission) -> bool:
        """Say whether `who` may use files like this, and reach them at all."""
        return self.allow_directory(who, Permission.EXECUTE) and self._allow(
            who, self.file_mode, wanted
        )

    def allow_directory(self, who: Requester, wanted: Permission) -> bool:
        """Say whether `who` may use directories like this; changing one needs WRITE | EXECUTE."""
        if who.uid == 0:
            return True
        return self._allow(who, self.dir_mode, wanted)

    def _allow(self, who: Requester, mode: int, wanted: Permission) -> bool:
        if who.uid == 0:
            return not wanted & Permission.EXECUTE or bool(mode & 0o111)
        return wanted & ~self._granted(who, mode) == 0

    def _granted(self, who: Requester, mode: int) -> int:
        if who.uid == self.uid:
            return mode >> 6 & 7
        of_group, of_others = mode >> 3 & 7, mode & 7
        if of_group == of_others or self._in_group(who):
            return of_group
        return of_others

    def _in_group(self, who: Requester) -> bool:
        if who.gid == self.gid:
            return True
        try:
            return self.gid in pyfuse3.get_sup_groups(who.pid)
        except OSError:  # the program is gone, or lives in another pid namespace
            return False
