"""A FUSE file system that shows a local directory, counts requests, and spoils one of them.

    python -m tests.data.faultdir BACKING MOUNTPOINT

It answers each line of standard input with a line of JSON:

    arm N ACTION   the N-th request from now on is spoilt (0: none); counts begin anew
    release        what stalls goes on
    counts         requests by kind, bytes read, whether the request was spoilt
    quit           unmount and end

ACTION is the name of an errno, `stall` (no answer until `release`), or `kill`: SIGKILL to the
process that asked. Only requests that can fail are counted. `fsync` is not passed on.
"""

import errno
import json
import os
import signal
import stat
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyfuse3
import trio

ROOT = pyfuse3.ROOT_INODE


class FaultDirectory(pyfuse3.Operations):
    """Passes everything on, but for the request that it is told to spoil."""

    supports_dot_lookup = False
    enable_writeback_cache = False

    def __init__(self, backing: str) -> None:
        super().__init__()
        self._paths = {ROOT: backing}
        self._inodes = {backing: ROOT}
        self._callers: dict[int, int] = {}
        self._listings: dict[int, list[str]] = {}
        self._last = ROOT
        self._released = trio.Event()
        self.counts: Counter[str] = Counter()
        self.arm(0, "none")

    def arm(self, number: int, action: str) -> None:
        """Spoil the `number`-th request from now on."""
        self._left = number
        self._action = action
        self.counts.clear()
        self.spoilt = False
        self._released = trio.Event()

    def let_go(self) -> None:
        """Let the request that stalls go on."""
        self._released.set()

    async def _count(self, kind: str, caller: int = 0) -> None:
        self.counts[kind] += 1
        self._left -= 1
        if self._left != 0:
            return
        self.spoilt = True
        if self._action == "stall":
            await self._released.wait()
        elif self._action == "kill":
            os.kill(caller, signal.SIGKILL)
            raise pyfuse3.FUSEError(errno.EIO)
        else:
            raise pyfuse3.FUSEError(getattr(errno, self._action))

    def _inode_of(self, path: str) -> int:
        if path not in self._inodes:
            self._last += 1
            self._inodes[path] = self._last
            self._paths[self._last] = path
        return self._inodes[path]

    def _forget_path(self, path: str) -> None:
        inode = self._inodes.pop(path, None)
        if inode is not None:
            self._paths[inode] = ""

    def _child(self, parent: int, name: bytes) -> str:
        return os.path.join(self._paths[parent], os.fsdecode(name))

    def _attributes(self, inode: int, path: str | int) -> pyfuse3.EntryAttributes:
        entry = pyfuse3.EntryAttributes()
        found = os.stat(path)
        for name in ("mode", "nlink", "uid", "gid", "size", "atime_ns", "mtime_ns", "ctime_ns"):
            setattr(entry, f"st_{name}", getattr(found, f"st_{name}"))
        entry.st_ino = inode
        entry.st_blksize = 4096
        entry.st_blocks = (found.st_size + 511) // 512
        entry.entry_timeout = entry.attr_timeout = 0
        return entry

    async def lookup(self, parent: int, name: bytes, ctx: Any) -> pyfuse3.EntryAttributes:
        await self._count("lookup", ctx.pid)
        path = self._child(parent, name)
        with _errors():
            os.stat(path)
            return self._attributes(self._inode_of(path), path)

    async def forget(self, inodes: Any) -> None:
        pass

    async def getattr(self, inode: int, ctx: Any) -> pyfuse3.EntryAttributes:
        await self._count("getattr", ctx.pid)
        with _errors():
            return self._attributes(inode, self._paths[inode])

    async def setattr(
        self, inode: int, attr: Any, fields: Any, fh: int | None, ctx: Any
    ) -> pyfuse3.EntryAttributes:
        await self._count("setattr", ctx.pid)
        with _errors():
            if fields.update_size:
                os.truncate(self._paths[inode] if fh is None else fh, attr.st_size)
            return self._attributes(inode, self._paths[inode])

    async def mkdir(self, parent: int, name: bytes, mode: int, ctx: Any) -> Any:
        await self._count("mkdir", ctx.pid)
        path = self._child(parent, name)
        with _errors():
            os.mkdir(path, mode & ~ctx.umask)
            return self._attributes(self._inode_of(path), path)

    async def rmdir(self, parent: int, name: bytes, ctx: Any) -> None:
        await self._count("rmdir", ctx.pid)
        path = self._child(parent, name)
        with _errors():
            os.rmdir(path)
        self._forget_path(path)

    async def unlink(self, parent: int, name: bytes, ctx: Any) -> None:
        await self._count("unlink", ctx.pid)
        path = self._child(parent, name)
        with _errors():
            os.unlink(path)
        self._forget_path(path)

    async def rename(
        self, parent: int, name: bytes, to_parent: int, to_name: bytes, flags: int, ctx: Any
    ) -> None:
        await self._count("rename", ctx.pid)
        source, target = self._child(parent, name), self._child(to_parent, to_name)
        with _errors():
            os.rename(source, target)
        self._forget_path(target)
        inode = self._inodes.pop(source)
        self._inodes[target] = inode
        self._paths[inode] = target

    async def open(self, inode: int, flags: int, ctx: Any) -> pyfuse3.FileInfo:
        await self._count("open", ctx.pid)
        with _errors():
            return self._opened(os.open(self._paths[inode], flags), ctx)

    async def create(self, parent: int, name: bytes, mode: int, flags: int, ctx: Any) -> Any:
        await self._count("create", ctx.pid)
        path = self._child(parent, name)
        with _errors():
            opened = self._opened(os.open(path, flags | os.O_CREAT, mode & ~ctx.umask), ctx)
            return opened, self._attributes(self._inode_of(path), path)

    def _opened(self, fd: int, ctx: Any) -> pyfuse3.FileInfo:
        self._callers[fd] = ctx.pid
        return pyfuse3.FileInfo(fh=fd, keep_cache=False)

    async def read(self, fh: int, offset: int, size: int) -> bytes:
        await self._count("read", self._callers[fh])
        with _errors():
            data = os.pread(fh, size, offset)
        self.counts["bytes read"] += len(data)
        return data

    async def write(self, fh: int, offset: int, data: bytes) -> int:
        await self._count("write", self._callers[fh])
        with _errors():
            return os.pwrite(fh, data, offset)

    async def flush(self, fh: int) -> None:
        await self._count("flush", self._callers[fh])

    async def fsync(self, fh: int, datasync: bool) -> None:
        await self._count("fsync", self._callers[fh])

    async def release(self, fh: int) -> None:
        del self._callers[fh]
        os.close(fh)

    async def opendir(self, inode: int, ctx: Any) -> int:
        await self._count("opendir", ctx.pid)
        with _errors():
            fd = os.open(self._paths[inode], os.O_RDONLY | os.O_DIRECTORY)
        self._callers[fd] = ctx.pid
        self._listings[fd] = sorted(os.listdir(fd))
        self._listings[fd].insert(0, self._paths[inode])
        return fd

    async def readdir(self, fh: int, start: int, token: Any) -> None:
        await self._count("readdir", self._callers[fh])
        directory, *names = self._listings[fh]
        for number, name in enumerate(names[start:], start):
            path = os.path.join(directory, name)
            try:
                attributes = self._attributes(self._inode_of(path), path)
            except FileNotFoundError:
                continue
            if not pyfuse3.readdir_reply(token, os.fsencode(name), attributes, number + 1):
                break

    async def fsyncdir(self, fh: int, datasync: bool) -> None:
        await self._count("fsyncdir", self._callers[fh])

    async def releasedir(self, fh: int) -> None:
        del self._listings[fh]
        await self.release(fh)

    async def statfs(self, ctx: Any) -> pyfuse3.StatvfsData:
        data = pyfuse3.StatvfsData()
        data.f_bsize = data.f_frsize = 4096
        data.f_blocks = data.f_bfree = data.f_bavail = 1 << 30
        data.f_namemax = 255
        return data

    def answer(self, command: str, *words: str) -> object:
        """Do what the test asks for."""
        if command == "arm":
            self.arm(int(words[0]), words[1])
        elif command == "release":
            self.let_go()
        return {"counts": dict(self.counts), "spoilt": self.spoilt}


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise pyfuse3.FUSEError(error.errno or errno.EIO) from None


async def _obey(files: FaultDirectory, commands: Any) -> None:
    async for line in trio.wrap_file(commands):
        words = line.split()
        if words == ["quit"]:
            break
        sys.stdout.write(json.dumps(files.answer(*words)) + "\n")
        sys.stdout.flush()
    files.let_go()
    pyfuse3.terminate()


async def _serve(files: FaultDirectory) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_obey, files, sys.stdin)
        await pyfuse3.main()
        nursery.cancel_scope.cancel()


def main(backing: str, mountpoint: str) -> None:
    """Serve until told to quit."""
    assert stat.S_ISDIR(os.stat(backing).st_mode)
    files = FaultDirectory(backing)
    options = {*pyfuse3.default_options, "fsname=faultdir"}
    pyfuse3.init(files, mountpoint, options)
    try:
        trio.run(_serve, files)
    finally:
        pyfuse3.close(unmount=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
