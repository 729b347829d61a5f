"""The daemon's own door: a unix socket per mount, for `ucfuse status`, `umount` and `abort`.

`mount` opens a `ControlServer`; the command line finds it again through the record beside the
socket. One JSON object per line, in both directions. The daemon does the work and tells; what is
said to people is the command line's business. Nothing here knows FUSE or a store.

Concurrency: connections are tasks of the nursery that the server was given, each with a deadline
for everything that the other side can delay. A request to unmount is dropped when its sender is
gone, so that Ctrl-C in `ucfuse umount` leaves the mount where it is.
"""

import json
import logging
import select
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

import trio

from ucfuse.errors import ConfigError
from ucfuse.fs.caller import Uncommitted
from ucfuse.registry import (
    MountRecord,
    connect,
    forget_record,
    name_of,
    short_path,
    write_record,
)
from ucfuse.tasks import Pending

__all__ = ["HEARTBEAT_S", "ControlServer", "Controlled", "Refusal", "User"]

log = logging.getLogger(__name__)

T = TypeVar("T")
Reply = Mapping[str, object]

# While a commit runs the client hears from us this often, and can tell it from a hang.
HEARTBEAT_S = 1.0
# A request is one short line that its sender has ready; a client that does not read is not waited
# for. Both chosen by feel.
CLIENT_DEADLINE_S = 5.0
MAX_REQUEST_BYTES = 4096


@dataclass(frozen=True, slots=True)
class User:
    """A process that has something of the mount open."""

    pid: int
    command: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why the mount cannot be unmounted now, and who is in the way if that is known."""

    reason: str
    users: Sequence[User] = ()


class Controlled(Protocol):
    """What the door leads to: the mount, as `mount` built it."""

    def status(self) -> Reply:
        """Return what `ucfuse status --json` prints of this mount."""
        ...

    def histograms(self) -> Reply:
        """Return how many requests took how long, by kind."""
        ...

    def portability(self) -> Reply:
        """Return what `ucfuse status --portability --json` prints of this mount."""
        ...

    async def users(self) -> Sequence[User]:
        """Return the processes that keep the mount from being unmounted, as far as we may see."""
        ...

    async def commit_all(
        self, on_wait: Callable[[list[Uncommitted]], None]
    ) -> Sequence[Uncommitted]:
        """Commit everything dirty and return what could not be."""
        ...

    async def unmount(self, *, lazy: bool = False) -> Refusal | None:
        """Unmount, after which the daemon ends by itself; or say why it stays mounted.

        `lazy`: also while it is in use; the daemon then ends with the last use.
        """
        ...

    async def abort(self) -> int:
        """End what waits; return how many requests of programs that were."""
        ...

    def file(self, number: int) -> Reply:
        """Return what `ucfuse status --file` prints of an inode."""
        ...


class ControlServer:
    """The socket and record of one mount. Owner: `mount`, which opens and closes it."""

    def __init__(
        self,
        runtime_dir: Path,
        record: MountRecord,
        mount: Controlled,
        nursery: trio.Nursery,
    ) -> None:
        self._runtime_dir = runtime_dir
        self._record = record
        self._mount = mount
        self._nursery = nursery
        self._connection_count = 0
        self._connection_ended = trio.Event()
        self._accepting = trio.CancelScope()

    def open(self) -> None:
        """Begin to answer. Raises `ConfigError`: another daemon answers for this mount point."""
        self._runtime_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._refuse_second_daemon()
        listening = trio.socket.from_stdlib_socket(
            _listen(self._runtime_dir, self._record.mountpoint)
        )
        self._nursery.start_soon(self._accept, trio.SocketListener(listening))
        write_record(self._runtime_dir, self._record)

    async def aclose(self) -> None:
        """Take the record back, and give the answers under way the time to leave."""
        self._accepting.cancel()
        forget_record(self._runtime_dir, self._record)
        with trio.move_on_after(CLIENT_DEADLINE_S):
            while self._connection_count:
                self._connection_ended = trio.Event()
                await self._connection_ended.wait()

    def _refuse_second_daemon(self) -> None:
        with suppress(OSError):
            connect(self._runtime_dir, self._record.mountpoint, CLIENT_DEADLINE_S).close()
            raise ConfigError(
                f"{self._record.mountpoint}: a ucfuse daemon serves it already;"
                f" run `ucfuse umount {self._record.mountpoint}` first"
            )

    async def _accept(self, listener: trio.SocketListener) -> None:
        with self._accepting:
            await trio.serve_listeners(self._answer, [listener], handler_nursery=self._nursery)

    async def _answer(self, stream: trio.SocketStream) -> None:
        self._connection_count += 1
        try:
            async with stream:
                await _log_bugs("a control command", partial(self._converse, _Line(stream)))
        finally:
            self._connection_count -= 1
            self._connection_ended.set()

    async def _converse(self, line: "_Line") -> None:
        try:
            request = await line.receive()
            match request:
                case {"command": "status"}:
                    await line.send(self._mount.status())
                case {"command": "histograms"}:
                    await line.send(self._mount.histograms())
                case {"command": "portability"}:
                    await line.send(self._mount.portability())
                case {"command": "file", "inode": int(number)}:
                    await line.send(self._mount.file(number))
                case {"command": "umount", "lazy": True}:
                    await self._umount_lazily(line)
                case {"command": "umount"}:
                    await self._umount(line)
                case {"command": "abort"}:
                    await line.send({"ended": await self._mount.abort()})
                case _:
                    await line.send({"error": f"unknown command {request.get('command')!r}"})
        except (trio.BrokenResourceError, trio.TooSlowError):
            log.debug("a control connection ended before its answer")

    async def _umount(self, line: "_Line") -> None:
        """Commit, unmount, and tell every second what is waited for, at the end the outcome."""
        if users := await self._mount.users():
            await line.send(_refused(Refusal("busy", users)))
            return
        waiting: list[Uncommitted] = []

        def note(files: list[Uncommitted]) -> None:
            waiting[:] = files

        if unsaved := await self._wait(line, partial(self._mount.commit_all, note), waiting):
            await line.send({"unsaved": [asdict(file) for file in unsaved]})
            return
        line.require_listener()
        if refusal := await self._wait(line, self._mount.unmount, waiting):
            await line.send(_refused(refusal))
        else:
            await line.send({"unmounted": True})

    async def _umount_lazily(self, line: "_Line") -> None:
        """Take the mount out of the tree at once, and tell who still uses it."""
        users = await self._mount.users()
        if refusal := await self._mount.unmount(lazy=True):
            await line.send(_refused(refusal))
            return
        self._give_up_name()
        await line.send({"unmounted": True, "users": [asdict(user) for user in users]})

    def _give_up_name(self) -> None:
        """Leave the mount point to another mount; `status` still finds this one."""
        old, folder = self._record, self._runtime_dir
        new = replace(old, mountpoint=f"{old.mountpoint} (detached, pid {old.pid})")
        before, after = (folder / f"{name_of(each.mountpoint)}.sock" for each in (old, new))
        with suppress(FileNotFoundError):  # nobody used the mount, so this is the end
            before.rename(after)
            write_record(folder, new)
            forget_record(folder, old)
            self._record = new

    async def _wait(
        self, line: "_Line", work: Callable[[], Awaitable[T]], waiting: Sequence[Uncommitted]
    ) -> T:
        """Return the result of `work`, telling the client every second that it goes on.

        If the client leaves, the work ends all the same, but nothing follows it.
        """
        pending = Pending(self._nursery, work)
        while True:
            with trio.move_on_after(HEARTBEAT_S):
                return await pending.wait()
            await line.send({"waiting": [asdict(file) for file in waiting]})


class _Line:
    """One connection as JSON lines."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream

    async def receive(self) -> Mapping[str, object]:
        """Return the one request. Raises `TooSlowError`, `BrokenResourceError`."""
        received = b""
        with trio.fail_after(CLIENT_DEADLINE_S):
            while not received.endswith(b"\n"):
                chunk = await self._stream.receive_some(MAX_REQUEST_BYTES)
                received += chunk
                if not chunk or len(received) > MAX_REQUEST_BYTES:
                    raise trio.BrokenResourceError
        with suppress(ValueError):
            request = json.loads(received)
            if isinstance(request, dict):
                return request
        return {}

    def require_listener(self) -> None:
        """Raise `BrokenResourceError` if the other side has left. A reply would tell, but later."""
        left = select.poll()
        left.register(self._stream.socket.fileno(), select.POLLRDHUP)
        if left.poll(0):
            raise trio.BrokenResourceError

    async def send(self, reply: Reply) -> None:
        """Send one reply. Raises `TooSlowError`, `BrokenResourceError`."""
        with trio.fail_after(CLIENT_DEADLINE_S):
            await self._stream.send_all(json.dumps(reply).encode() + b"\n")


def _refused(refusal: Refusal) -> Reply:
    return {"refused": refusal.reason, "users": [asdict(user) for user in refusal.users]}


async def _log_bugs(what: str, work: Callable[[], Awaitable[None]]) -> None:
    """Run `work`; what it raises is a bug, and must not end the mount."""
    try:
        await work()
    except Exception:
        log.exception("%s failed", what)


def _listen(runtime_dir: Path, mountpoint: str) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with short_path(runtime_dir, mountpoint) as path:
        Path(path).unlink(missing_ok=True)
        listening.bind(path)
        Path(path).chmod(0o600)  # the directory is private already; this is for the careful
    listening.listen()
    return listening
