"""The file system as pyfuse3 wants it: requests in, answers and errnos out.

`mount` gives a `FuseOperations` to the session. Every handler is thin: it turns the kernel's
bytes, flags and numbers into our words, asks whether the program may do this, calls
the file system once, and turns the answer back. It holds no state but its collaborators.

Concurrency: handlers run as tasks of one trio loop, several at a time. Only `FUSEError` may leave
a handler (anything else would end the mount), so `answers` guards each of them.
"""

import errno
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Never

import pyfuse3
import trio
from pyfuse3 import (
    EntryAttributes,
    FileHandleT,
    FileInfo,
    FileNameT,
    FlagT,
    FUSEError,
    InodeT,
    ModeT,
    ReaddirToken,
    RequestContext,
    SetattrFields,
    StatvfsData,
    XAttrNameT,
)

from ucfuse.config import MountConfig
from ucfuse.errors import InvalidArgument, NotPermitted
from ucfuse.fs.caller import Caller
from ucfuse.fs.interface import MountedFilesystem
from ucfuse.kernel.guard import answers
from ucfuse.kernel.permissions import AccessRules, Permission
from ucfuse.kernel.translation import (
    entry_of,
    file_info,
    needed_for,
    open_intent,
    plenty_of_room,
    xattrs_of,
)
from ucfuse.metrics import Metrics
from ucfuse.names.rules import decoded
from ucfuse.store.api import Buffer
from ucfuse.volume import Attributes, HandleId, InodeNo

__all__ = ["FuseOperations", "ReplyEntry"]

CHANGE_DIRECTORY = Permission.WRITE | Permission.EXECUTE

ReplyEntry = Callable[[ReaddirToken, FileNameT, EntryAttributes, int], bool]
"""Puts one entry into a listing's answer; False when it has no room left."""


def _arrival(ctx: RequestContext) -> Caller:
    return Caller(ctx.pid, trio.current_time())


def _require(allowed: bool) -> None:
    if not allowed:
        raise FUSEError(errno.EACCES)


class FuseOperations(pyfuse3.Operations):
    """The request handlers of one mount; borrows file system and metrics."""

    supports_dot_lookup = False
    enable_acl = False

    def __init__(
        self,
        fs: MountedFilesystem,
        config: MountConfig,
        metrics: Metrics,
        *,
        reply_entry: ReplyEntry = pyfuse3.readdir_reply,
    ) -> None:
        super().__init__()
        self._fs = fs
        self.metrics = metrics
        self.under_way: set[object] = set()
        self._has_xattrs = config.xattr
        fixed = config.dir_mode if config.emulation.is_strict else config.dir_mode & ~0o222
        self._rules = AccessRules(config.uid, config.gid, config.file_mode, config.dir_mode, fixed)
        self._reply_entry = reply_entry

    def _caller(self, ctx: RequestContext) -> Caller:
        """Say who asks; a thread that asks something else has given up the open it was at."""
        self._fs.end_ticket(ctx.pid)
        self._fs.end_lookup(ctx.pid)
        return _arrival(ctx)

    def _entry(self, attributes: Attributes) -> EntryAttributes:
        return entry_of(attributes, self._rules)

    # Names

    @answers("LOOKUP")
    async def lookup(
        self, parent_inode: InodeT, name: FileNameT, ctx: RequestContext
    ) -> EntryAttributes:
        caller = _arrival(ctx)
        _require(self._rules.allow_directory(ctx, Permission.EXECUTE))
        return self._entry(await self._fs.lookup(InodeNo(parent_inode), decoded(name), caller))

    async def forget(self, inode_list: Sequence[tuple[InodeT, int]]) -> None:
        """Drop references. The kernel waits for no answer, so what the guard says ends here."""
        with suppress(FUSEError):
            await self._forget(inode_list)

    @answers("FORGET")
    async def _forget(self, inode_list: Sequence[tuple[InodeT, int]]) -> None:
        for number, count in inode_list:
            self._fs.forget(InodeNo(number), count)

    @answers("MKNOD")
    async def mknod(
        self, parent_inode: InodeT, name: FileNameT, mode: ModeT, rdev: int, ctx: RequestContext
    ) -> EntryAttributes:
        caller = self._caller(ctx)
        _require(self._rules.allow_directory(ctx, CHANGE_DIRECTORY))
        text = decoded(name)
        if not stat.S_ISREG(mode):
            await self._fs.require_changes(InodeNo(parent_inode))
            raise NotPermitted(text, "neither devices nor pipes can be objects")
        return self._entry(await self._fs.mknod(InodeNo(parent_inode), text, caller))

    @answers("MKDIR")
    async def mkdir(
        self, parent_inode: InodeT, name: FileNameT, mode: ModeT, ctx: RequestContext
    ) -> EntryAttributes:
        caller = self._caller(ctx)
        _require(self._rules.allow_directory(ctx, CHANGE_DIRECTORY))
        return self._entry(await self._fs.mkdir(InodeNo(parent_inode), decoded(name), caller))

    @answers("UNLINK")
    async def unlink(self, parent_inode: InodeT, name: FileNameT, ctx: RequestContext) -> None:
        caller = self._caller(ctx)
        _require(self._rules.allow_directory(ctx, CHANGE_DIRECTORY))
        await self._fs.unlink(InodeNo(parent_inode), decoded(name), caller)

    @answers("RMDIR")
    async def rmdir(self, parent_inode: InodeT, name: FileNameT, ctx: RequestContext) -> None:
        caller = self._caller(ctx)
        _require(self._rules.allow_directory(ctx, CHANGE_DIRECTORY))
        await self._fs.rmdir(InodeNo(parent_inode), decoded(name), caller)

    @answers("RENAME")
    async def rename(
        self,
        parent_inode_old: InodeT,
        name_old: FileNameT,
        parent_inode_new: InodeT,
        name_new: FileNameT,
        flags: FlagT,
        ctx: RequestContext,
    ) -> None:
        caller = self._caller(ctx)
        _require(self._rules.allow_directory(ctx, CHANGE_DIRECTORY))
        old, new = decoded(name_old), decoded(name_new)
        if flags & ~pyfuse3.RENAME_NOREPLACE:
            raise InvalidArgument(new, "a store cannot exchange two objects")
        no_replace = bool(flags & pyfuse3.RENAME_NOREPLACE)
        await self._fs.rename(
            InodeNo(parent_inode_old),
            old,
            InodeNo(parent_inode_new),
            new,
            no_replace=no_replace,
            caller=caller,
        )

    @answers("SYMLINK")
    async def symlink(
        self, parent_inode: InodeT, name: FileNameT, target: FileNameT, ctx: RequestContext
    ) -> Never:
        caller = self._caller(ctx)
        _require(self._rules.allow_directory(ctx, CHANGE_DIRECTORY))
        await self._fs.symlink(InodeNo(parent_inode), decoded(name), caller)

    @answers("LINK")
    async def link(
        self, inode: InodeT, new_parent_inode: InodeT, new_name: FileNameT, ctx: RequestContext
    ) -> EntryAttributes:
        caller = self._caller(ctx)
        _require(self._rules.allow_directory(ctx, CHANGE_DIRECTORY))
        number, parent = InodeNo(inode), InodeNo(new_parent_inode)
        return self._entry(await self._fs.link(number, parent, decoded(new_name), caller))

    # Attributes

    @answers("GETATTR")
    async def getattr(self, inode: InodeT, ctx: RequestContext) -> EntryAttributes:
        return self._entry(await self._fs.getattr(InodeNo(inode), self._caller(ctx)))

    @answers("SETATTR")
    async def setattr(
        self,
        inode: InodeT,
        attr: EntryAttributes,
        fields: SetattrFields,
        fh: FileHandleT | None,
        ctx: RequestContext,
    ) -> EntryAttributes:
        """Change the size. Owner, mode and times are taken without effect: objects have none."""
        caller = self._caller(ctx)
        number = InodeNo(inode)
        await self._fs.require_changes(number)
        if not fields.update_size:
            return self._entry(await self._fs.getattr(number, caller))
        if fh is None:  # with a handle, open has decided already
            _require(self._rules.allow_file(ctx, Permission.WRITE))
        handle = None if fh is None else HandleId(fh)
        return self._entry(await self._fs.set_size(number, attr.st_size, handle, caller))

    @answers("ACCESS")
    async def access(self, inode: InodeT, mode: ModeT, ctx: RequestContext) -> bool:
        """Answer access(2) and chdir(2)."""
        attributes = await self._fs.getattr(InodeNo(inode), self._caller(ctx))
        wanted = Permission(mode & 7)
        if wanted & Permission.WRITE:
            await self._fs.require_changes(InodeNo(inode))
        if attributes.is_directory:
            return self._rules.allow_directory(ctx, wanted)
        return self._rules.allow_file(ctx, wanted)

    @answers("STATFS")
    async def statfs(self, ctx: RequestContext) -> StatvfsData:
        self._caller(ctx)
        return plenty_of_room()

    # Extended attributes: after one ENOSYS the kernel never asks again. Anything else makes it ask
    # for security.capability before every single write.

    @answers("GETXATTR")
    async def getxattr(self, inode: InodeT, name: XAttrNameT, ctx: RequestContext) -> bytes:
        found = (await self._xattrs(inode, ctx)).get(name)
        if found is None:
            raise FUSEError(errno.ENODATA)
        return found

    @answers("SETXATTR")
    async def setxattr(
        self, inode: InodeT, name: XAttrNameT, value: bytes, ctx: RequestContext
    ) -> Never:
        self._caller(ctx)
        raise FUSEError(errno.EOPNOTSUPP if self._has_xattrs else errno.ENOSYS)

    @answers("LISTXATTR")
    async def listxattr(self, inode: InodeT, ctx: RequestContext) -> Sequence[XAttrNameT]:
        return list(await self._xattrs(inode, ctx))

    @answers("REMOVEXATTR")
    async def removexattr(self, inode: InodeT, name: XAttrNameT, ctx: RequestContext) -> Never:
        self._caller(ctx)
        raise FUSEError(errno.EOPNOTSUPP if self._has_xattrs else errno.ENOSYS)

    async def _xattrs(self, inode: InodeT, ctx: RequestContext) -> dict[XAttrNameT, bytes]:
        caller = self._caller(ctx)
        if not self._has_xattrs:
            raise FUSEError(errno.ENOSYS)
        await self._fs.getattr(InodeNo(inode), caller)  # as old as `stat` may be
        return xattrs_of(self._fs.describe(InodeNo(inode)))

    # Files

    @answers("OPEN")
    async def open(self, inode: InodeT, flags: FlagT, ctx: RequestContext) -> FileInfo:
        caller, intent = _arrival(ctx), open_intent(flags)
        _require(self._rules.allow_file(ctx, needed_for(intent)))
        return file_info(await self._fs.open(InodeNo(inode), intent, caller))

    @answers("CREATE")
    async def create(
        self, parent_inode: InodeT, name: FileNameT, mode: ModeT, flags: FlagT, ctx: RequestContext
    ) -> tuple[FileInfo, EntryAttributes]:
        caller, intent = _arrival(ctx), open_intent(flags)
        _require(self._rules.allow_directory(ctx, CHANGE_DIRECTORY))
        parent, text = InodeNo(parent_inode), decoded(name)
        handle, attributes = await self._fs.create(parent, text, intent, caller)
        return file_info(handle), self._entry(attributes)

    @answers("READ", moves_data=True)
    async def read(self, fh: FileHandleT, off: int, size: int) -> Buffer:  # type: ignore[override]
        # pyfuse3 takes any buffer: a slice of a prefetched part is sent without a copy.
        return await self._fs.read(HandleId(fh), off, size)

    @answers("WRITE", moves_data=True)
    async def write(self, fh: FileHandleT, off: int, buf: bytes) -> int:
        return await self._fs.write(HandleId(fh), off, buf)

    @answers("FLUSH", moves_data=True)
    async def flush(self, fh: FileHandleT) -> None:
        await self._fs.flush(HandleId(fh))

    @answers("FSYNC", moves_data=True)
    async def fsync(self, fh: FileHandleT, datasync: bool) -> None:
        await self._fs.fsync(HandleId(fh))

    @answers("RELEASE")
    async def release(self, fh: FileHandleT) -> None:
        """Drop the handle. No program hears an error of this; the guard logs it."""
        await self._fs.release(HandleId(fh))

    # Directories

    @answers("OPENDIR")
    async def opendir(self, inode: InodeT, ctx: RequestContext) -> FileHandleT:
        caller = self._caller(ctx)
        _require(self._rules.allow_directory(ctx, Permission.READ))
        return FileHandleT(await self._fs.opendir(InodeNo(inode), caller))

    @answers("READDIR")
    async def readdir(self, fh: FileHandleT, start_id: int, token: ReaddirToken) -> None:
        """Answer with the entries at hand, as many as fit; none of them ends the listing."""
        # No await from here on: an answer is given whole, or the kernel holds no reference of it.
        for entry in await self._fs.readdir(HandleId(fh), start_id):
            shown = self._entry(entry.attributes)
            if not self._reply_entry(token, entry.name.encode(), shown, entry.next_id):
                return
            self._fs.remember(entry.attributes.number)

    @answers("RELEASEDIR")
    async def releasedir(self, fh: FileHandleT) -> None:
        await self._fs.releasedir(HandleId(fh))

    @answers("FSYNCDIR")
    async def fsyncdir(self, fh: FileHandleT, datasync: bool) -> None:
        """Names are in the store before the call that changes them returns: nothing is left."""
