"""The kernel's bytes, flags and structures in our words, and ours in the kernel's.

Pure functions for `FuseOperations`. What the kernel wants to see and objects do not have (owner,
mode, block counts) is added here and nowhere else.
"""

import os
import stat

from pyfuse3 import (
    EntryAttributes,
    FileHandleT,
    FileInfo,
    FlagT,
    InodeT,
    ModeT,
    StatvfsData,
    XAttrNameT,
)

from ucfuse.fs.caller import Described, OpenIntent
from ucfuse.kernel.permissions import AccessRules, Permission
from ucfuse.names.rules import NAME_LIMIT_BYTES
from ucfuse.volume import Attributes, HandleId, MiB

__all__ = [
    "entry_of",
    "file_info",
    "needed_for",
    "open_intent",
    "plenty_of_room",
    "xattrs_of",
]

# Programs read and write in pieces of st_blksize; one FUSE request carries at most 1 MiB.
PREFERRED_IO_BYTES = 1 * MiB
STAT_BLOCK_BYTES = 512
# A bucket has no size. df shows 1 PiB, enough for every installer that checks for room first.
STATFS_BLOCK_BYTES = 4096
STATFS_BLOCKS = (1 << 50) // STATFS_BLOCK_BYTES
STATFS_FILES = 1 << 32


def open_intent(flags: FlagT) -> OpenIntent:
    """Read the flags of open(2)."""
    access = flags & os.O_ACCMODE
    return OpenIntent(
        readable=access != os.O_WRONLY,
        writable=access != os.O_RDONLY,
        truncate=bool(flags & os.O_TRUNC),
        append=bool(flags & os.O_APPEND),
        exclusive=bool(flags & os.O_EXCL),
    )


def needed_for(intent: OpenIntent) -> Permission:
    """Return what a program must be allowed on a file to open it like this."""
    wanted = Permission.READ if intent.readable else Permission.NONE
    return wanted | Permission.WRITE if intent.writable or intent.truncate else wanted


def file_info(handle: HandleId) -> FileInfo:
    """Answer an open. An inode shows one version only, so its cached pages are always right."""
    return FileInfo(fh=FileHandleT(handle), direct_io=False, keep_cache=True)


def entry_of(attributes: Attributes, rules: AccessRules) -> EntryAttributes:
    """Return what `stat` shows, and for how long the kernel may go on showing it."""
    entry = EntryAttributes()
    entry.st_ino = InodeT(attributes.number)
    entry.entry_timeout = entry.attr_timeout = attributes.valid_s
    if attributes.is_directory:
        mode = rules.fixed_dir_mode if attributes.is_fixed else rules.dir_mode
        entry.st_mode = ModeT(stat.S_IFDIR | mode)
    else:
        entry.st_mode = ModeT(stat.S_IFREG | rules.file_mode)
    entry.st_nlink = attributes.links
    entry.st_uid, entry.st_gid = rules.uid, rules.gid
    entry.st_size = attributes.size
    entry.st_blksize = PREFERRED_IO_BYTES
    entry.st_blocks = -(-attributes.size // STAT_BLOCK_BYTES)
    entry.st_atime_ns = entry.st_mtime_ns = entry.st_ctime_ns = attributes.mtime_ns
    return entry


def plenty_of_room() -> StatvfsData:
    """Return what `df` shows."""
    answer = StatvfsData()
    answer.f_bsize = PREFERRED_IO_BYTES
    answer.f_frsize = STATFS_BLOCK_BYTES
    answer.f_blocks = answer.f_bfree = answer.f_bavail = STATFS_BLOCKS
    answer.f_files = answer.f_ffree = answer.f_favail = STATFS_FILES
    answer.f_namemax = NAME_LIMIT_BYTES
    return answer


def xattrs_of(described: Described) -> dict[XAttrNameT, bytes]:
    """Return the extended attributes of `--xattr`: what the store calls it, and its version."""
    found = {}
    if described.source is not None:
        found[XAttrNameT(b"user.ucfuse.source")] = described.source.encode()
    if described.etag is not None:
        found[XAttrNameT(b"user.ucfuse.etag")] = described.etag.encode()
    return found
