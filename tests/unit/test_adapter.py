"""The kernel adapter with a small fake behind it: words in, answers, references and errnos out."""

import errno
import logging
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pyfuse3
import pytest
import trio
from pyfuse3 import FUSEError, ReaddirToken, RequestContext, SetattrFields

from ucfuse.config import MountConfig, Source
from ucfuse.errors import NotFound, NotPermitted, NotSupported, StoreUnavailable, VolumeError
from ucfuse.fs.caller import Caller, DirectoryEntry, OpenIntent
from ucfuse.fs.filesystem import VolumeFilesystem
from ucfuse.kernel.adapter import FuseOperations
from ucfuse.metrics import Metrics
from ucfuse.store.api import Buffer
from ucfuse.volume import Attributes, HandleId, InodeNo, MiB

OWNER, GROUP, STRANGER = 1000, 1000, 4242
ROOT, FILE, HANDLE = InodeNo(1), InodeNo(7), HandleId(3)
TOKEN = ReaddirToken()


def attributes_of(number: int, *, size: int = 0, is_directory: bool = False) -> Attributes:
    return Attributes(InodeNo(number), is_directory, size, 1_700_000_000 * 10**9, 1, 0.5)


@dataclass
class FakeFilesystem:
    """Knows one directory with some files; notes what it is asked, fails when told to."""

    names: dict[str, Attributes] = field(default_factory=dict)
    fails_with: Exception | None = None
    breaks_off: bool = False
    never_answers: bool = False
    fixed: set[int] = field(default_factory=set)
    references: dict[int, int] = field(default_factory=dict)
    ended_tickets: list[int] = field(default_factory=list)
    ended_lookups: list[int] = field(default_factory=list)
    asked: list[tuple[Any, ...]] = field(default_factory=list)

    def _note(self, *what: Any) -> None:
        self.asked.append(what)
        if self.fails_with:
            raise self.fails_with

    async def lookup(self, parent: InodeNo, name: str, caller: Caller) -> Attributes:
        self._note("lookup", parent, name, caller)
        return self.names[name]

    async def getattr(self, number: InodeNo, caller: Caller) -> Attributes:
        self._note("getattr", number)
        return attributes_of(number, is_directory=number == ROOT)

    async def require_changes(self, number: InodeNo) -> None:
        if number in self.fixed:
            raise NotSupported(str(number))

    async def set_size(
        self, number: InodeNo, size: int, handle: HandleId | None, caller: Caller
    ) -> Attributes:
        self._note("set_size", number, size, handle)
        return attributes_of(number, size=size)

    async def open(self, number: InodeNo, intent: OpenIntent, caller: Caller) -> HandleId:
        self._note("open", number, intent, caller)
        return HANDLE

    async def create(
        self, parent: InodeNo, name: str, intent: OpenIntent, caller: Caller
    ) -> tuple[HandleId, Attributes]:
        self._note("create", parent, name, intent)
        return HANDLE, attributes_of(9)

    async def mknod(self, parent: InodeNo, name: str, caller: Caller) -> Attributes:
        self._note("mknod", parent, name)
        return attributes_of(9)

    async def symlink(self, parent: InodeNo, name: str, caller: Caller) -> None:
        self._note("symlink", parent, name)
        await self.require_changes(parent)
        raise NotPermitted(name)

    async def link(self, number: InodeNo, parent: InodeNo, name: str, caller: Caller) -> Attributes:
        self._note("link", number, parent, name)
        await self.require_changes(parent)
        raise NotPermitted(name)

    async def rename(
        self,
        old_parent: InodeNo,
        old_name: str,
        new_parent: InodeNo,
        new_name: str,
        *,
        no_replace: bool,
        caller: Caller,
    ) -> None:
        self._note("rename", old_name, new_name, no_replace)

    async def read(self, handle: HandleId, offset: int, length: int) -> Buffer:
        self._note("read", handle, offset, length)
        if self.never_answers:
            await trio.sleep_forever()
        return memoryview(b"x" * length)

    async def release(self, handle: HandleId) -> None:
        self._note("release", handle)

    async def readdir(self, handle: HandleId, start: int) -> Iterator[DirectoryEntry]:
        if self.breaks_off:
            raise StoreUnavailable("dir/", "listing broke off")
        return iter(
            [
                DirectoryEntry(name, attributes, position + 1)
                for position, (name, attributes) in enumerate(self.names.items())
                if position >= start
            ]
        )

    def remember(self, number: InodeNo) -> None:
        self.references[number] = self.references.get(number, 0) + 1

    def forget(self, number: InodeNo, count: int) -> None:
        self.references[number] -= count

    def end_ticket(self, thread: int) -> None:
        self.ended_tickets.append(thread)

    def end_lookup(self, thread: int) -> None:
        self.ended_lookups.append(thread)


@dataclass
class Page:
    """The answer to one READDIR, with room for so many entries."""

    room: int
    names: list[bytes] = field(default_factory=list)

    def reply(
        self, token: ReaddirToken, name: bytes, attr: pyfuse3.EntryAttributes, next_id: int
    ) -> bool:
        if len(self.names) == self.room:
            return False
        self.names.append(name)
        return True


@dataclass(frozen=True)
class FakeContext:
    """Stands in for `RequestContext`, which only pyfuse3 can fill."""

    uid: int = OWNER
    gid: int = GROUP
    pid: int = 77


@dataclass(frozen=True)
class FakeFields:
    """Stands in for `SetattrFields`, likewise."""

    update_size: bool = False


def ctx(uid: int = OWNER, gid: int = GROUP, pid: int = 77) -> RequestContext:
    return cast(RequestContext, FakeContext(uid, gid, pid))


def fields(*, update_size: bool) -> SetattrFields:
    return cast(SetattrFields, FakeFields(update_size))


def operations(
    fs: FakeFilesystem,
    *,
    page: Page | None = None,
    metrics: Metrics | None = None,
    file_mode: int = 0o644,
    dir_mode: int = 0o755,
) -> FuseOperations:
    config = MountConfig(
        source=Source(None),
        mountpoint=Path("/mnt"),
        state_dir=Path("/state"),
        uid=OWNER,
        gid=GROUP,
        file_mode=file_mode,
        dir_mode=dir_mode,
    )
    return FuseOperations(
        cast(VolumeFilesystem, fs),
        config,
        metrics or Metrics(),
        reply_entry=(page or Page(room=100)).reply,
    )


async def test_attributes_show_owner_mode_and_the_time_they_are_valid() -> None:
    """The kernel's own defaults (valid for 300 s) would hide changes made elsewhere."""
    fs = FakeFilesystem({"a": attributes_of(7, size=1025)})

    entry = await operations(fs).lookup(ROOT, b"a", ctx())

    assert (entry.st_ino, entry.st_size, entry.st_blocks) == (7, 1025, 3)
    assert (entry.st_uid, entry.st_gid) == (OWNER, GROUP)
    assert entry.st_mode == stat.S_IFREG | 0o644
    assert entry.entry_timeout == entry.attr_timeout == 0.5
    assert entry.st_blksize == MiB
    assert entry.st_mtime_ns == entry.st_ctime_ns == entry.st_atime_ns == 1_700_000_000 * 10**9


async def test_directories_show_the_directory_mode() -> None:
    entry = await operations(FakeFilesystem(), dir_mode=0o750).getattr(ROOT, ctx())
    assert entry.st_mode == stat.S_IFDIR | 0o750


async def test_names_arrive_as_text_with_the_time_of_arrival(autojump_clock: Any) -> None:
    fs = FakeFilesystem({"grün": attributes_of(7)})
    await trio.sleep(5)

    await operations(fs).lookup(ROOT, "grün".encode(), ctx(pid=12))

    assert fs.asked == [("lookup", ROOT, "grün", Caller(12, trio.current_time()))]


@pytest.mark.parametrize(
    ("name", "answer"), [(b"\xff", errno.EILSEQ), (b"n" * 256, errno.ENAMETOOLONG)]
)
async def test_names_that_cannot_be_keys_never_reach_the_file_system(
    name: bytes, answer: int
) -> None:
    fs = FakeFilesystem()
    with pytest.raises(FUSEError) as refusal:
        await operations(fs).lookup(ROOT, name, ctx())
    assert refusal.value.errno == answer
    assert fs.asked == []


@pytest.mark.parametrize(
    ("flags", "intent"),
    [
        (os.O_RDONLY, OpenIntent(True, False, False, False, False)),
        (os.O_WRONLY | os.O_TRUNC, OpenIntent(False, True, True, False, False)),
        (os.O_RDWR | os.O_APPEND | os.O_DIRECT, OpenIntent(True, True, False, True, False)),
    ],
)
async def test_open_flags_become_an_intent_and_pages_are_kept(
    flags: int, intent: OpenIntent
) -> None:
    """An inode shows one version, so its cached pages are always right."""
    fs = FakeFilesystem()
    info = await operations(fs).open(FILE, flags, ctx())
    assert fs.asked[0][:3] == ("open", FILE, intent)
    assert (info.fh, info.keep_cache, info.direct_io) == (HANDLE, True, False)


async def test_create_passes_exclusive_on() -> None:
    fs = FakeFilesystem()
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    info, entry = await operations(fs).create(ROOT, b"new", 0o600, flags, ctx())
    assert fs.asked == [("create", ROOT, "new", OpenIntent(False, True, False, False, True))]
    assert (info.fh, entry.st_ino) == (HANDLE, 9)


async def test_reads_pass_a_memoryview_without_a_copy() -> None:
    assert isinstance(await operations(FakeFilesystem()).read(HANDLE, 0, 4), memoryview)


async def test_requests_end_the_ticket_of_their_thread_but_a_repeated_open_does_not() -> None:
    """The kernel repeats an open as LOOKUP and OPEN or CREATE; anything else means it is over."""
    fs = FakeFilesystem({"a": attributes_of(7)})
    ops = operations(fs)

    await ops.lookup(ROOT, b"a", ctx(pid=5))
    await ops.open(FILE, os.O_RDONLY, ctx(pid=5))
    await ops.create(ROOT, b"new", 0o600, os.O_WRONLY, ctx(pid=5))
    assert fs.ended_tickets == []

    await ops.getattr(ROOT, ctx(pid=5))
    await ops.statfs(ctx(pid=6))
    assert fs.ended_tickets == [5, 6]


async def test_store_away_is_eio_for_a_read_and_eagain_for_an_open() -> None:
    ops = operations(FakeFilesystem(fails_with=StoreUnavailable("key")))
    with pytest.raises(FUSEError) as of_read:
        await ops.read(HANDLE, 0, 4)
    with pytest.raises(FUSEError) as of_open:
        await ops.open(FILE, os.O_RDONLY, ctx())
    assert (of_read.value.errno, of_open.value.errno) == (errno.EIO, errno.EAGAIN)


@pytest.mark.parametrize(
    ("cause", "level"), [(StoreUnavailable("key", "cut"), "WARNING"), (NotFound("key"), "DEBUG")]
)
async def test_refusals_are_logged_by_how_unusual_they_are(
    cause: VolumeError, level: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with pytest.raises(FUSEError):
        await operations(FakeFilesystem(fails_with=cause)).lookup(ROOT, b"a", ctx())
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [
        (level, f"LOOKUP refused: {cause}")
    ]


async def test_a_bug_is_eio_with_its_traceback_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Any other exception would end the mount."""
    ops = operations(FakeFilesystem(fails_with=ZeroDivisionError()))
    with pytest.raises(FUSEError) as answer:
        await ops.read(HANDLE, 0, 4)
    assert answer.value.errno == errno.EIO
    assert caplog.records[0].exc_info is not None


async def test_cancellation_passes_the_guard() -> None:
    ops = operations(FakeFilesystem(never_answers=True))
    with trio.move_on_after(0) as scope:
        await ops.read(HANDLE, 0, 4)
    assert scope.cancelled_caught


async def test_forget_never_raises_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    fs = FakeFilesystem(references={7: 2})
    await operations(fs).forget([(7, 2), (8, 1)])
    assert fs.references == {7: 0}
    assert "FORGET failed" in caplog.text


async def test_release_logs_what_no_program_can_hear(caplog: pytest.LogCaptureFixture) -> None:
    ops = operations(FakeFilesystem(fails_with=StoreUnavailable("key", "cut")))
    with pytest.raises(FUSEError):
        await ops.release(HANDLE)
    assert "RELEASE refused" in caplog.text


async def test_requests_are_counted_by_their_fuse_names_also_when_refused() -> None:
    metrics = Metrics()
    ops = operations(FakeFilesystem(references={7: 1}), metrics=metrics)
    await ops.read(HANDLE, 0, 4)
    await ops.forget([(7, 1)])
    with pytest.raises(FUSEError):
        await ops.getxattr(FILE, b"security.capability", ctx())
    assert metrics.fuse_requests == {"READ": 1, "FORGET": 1, "GETXATTR": 1}


async def test_listing_counts_references_only_for_what_the_kernel_took() -> None:
    fs = FakeFilesystem({name: attributes_of(10 + n) for n, name in enumerate("abc")})
    page = Page(room=2)
    await operations(fs, page=page).readdir(HANDLE, 0, TOKEN)
    assert page.names == [b"a", b"b"]
    assert fs.references == {10: 1, 11: 1}


async def test_listing_goes_on_where_the_last_page_ended() -> None:
    fs = FakeFilesystem({name: attributes_of(10 + n) for n, name in enumerate("abc")})
    page = Page(room=2)
    await operations(fs, page=page).readdir(HANDLE, 2, TOKEN)
    assert page.names == [b"c"]


async def test_listing_that_breaks_off_is_an_error() -> None:
    """An answer without entries would look like the end, and hide files."""
    fs = FakeFilesystem({"a": attributes_of(10)}, breaks_off=True)
    with pytest.raises(FUSEError) as answer:
        await operations(fs).readdir(HANDLE, 1, TOKEN)
    assert answer.value.errno == errno.EAGAIN
    assert fs.references == {}


@pytest.mark.parametrize(("flags", "no_replace"), [(0, False), (pyfuse3.RENAME_NOREPLACE, True)])
async def test_rename_flags(flags: int, no_replace: bool) -> None:
    fs = FakeFilesystem()
    await operations(fs).rename(ROOT, b"a", ROOT, b"b", flags, ctx())
    assert fs.asked == [("rename", "a", "b", no_replace)]


async def test_exchanging_two_names_is_not_possible() -> None:
    with pytest.raises(FUSEError) as answer:
        await operations(FakeFilesystem()).rename(
            ROOT, b"a", ROOT, b"b", pyfuse3.RENAME_EXCHANGE, ctx()
        )
    assert answer.value.errno == errno.EINVAL


async def test_links_and_devices_are_not_permitted() -> None:
    ops = operations(FakeFilesystem())
    for attempt in (
        ops.link(FILE, ROOT, b"b", ctx()),
        ops.symlink(ROOT, b"b", b"a", ctx()),
        ops.mknod(ROOT, b"b", stat.S_IFIFO | 0o600, 0, ctx()),
    ):
        with pytest.raises(FUSEError) as answer:
            await attempt
        assert answer.value.errno == errno.EPERM


async def test_where_nothing_can_change_every_change_is_refused_alike() -> None:
    """A catalog is read-only: EOPNOTSUPP for what would be EPERM, or without effect, elsewhere."""
    ops = operations(FakeFilesystem(fixed={ROOT}))
    for attempt in (
        ops.link(FILE, ROOT, b"b", ctx()),
        ops.symlink(ROOT, b"b", b"a", ctx()),
        ops.mknod(ROOT, b"b", stat.S_IFIFO | 0o600, 0, ctx()),
        ops.setattr(ROOT, pyfuse3.EntryAttributes(), SetattrFields(), None, ctx()),
        ops.access(ROOT, os.W_OK, ctx()),
    ):
        with pytest.raises(FUSEError) as answer:
            await attempt
        assert answer.value.errno == errno.EOPNOTSUPP
    assert await ops.access(ROOT, os.R_OK, ctx()) is True


async def test_mknod_makes_regular_files() -> None:
    fs = FakeFilesystem()
    await operations(fs).mknod(ROOT, b"b", stat.S_IFREG | 0o600, 0, ctx())
    assert fs.asked == [("mknod", ROOT, "b")]


async def test_extended_attributes_answer_enosys_so_that_the_kernel_stops_asking() -> None:
    ops = operations(FakeFilesystem())
    for attempt in (
        ops.getxattr(FILE, b"user.a", ctx()),
        ops.setxattr(FILE, b"user.a", b"1", ctx()),
        ops.listxattr(FILE, ctx()),
        ops.removexattr(FILE, b"user.a", ctx()),
    ):
        with pytest.raises(FUSEError) as answer:
            await attempt
        assert answer.value.errno == errno.ENOSYS


async def test_only_a_new_size_changes_anything() -> None:
    """chmod, chown and utimes succeed without effect."""
    fs = FakeFilesystem()
    ops, wanted = operations(fs), pyfuse3.EntryAttributes()
    wanted.st_size = 10
    await ops.setattr(FILE, wanted, fields(update_size=False), None, ctx())
    await ops.setattr(FILE, wanted, fields(update_size=True), HANDLE, ctx())
    assert fs.asked == [("getattr", FILE), ("set_size", FILE, 10, HANDLE)]


@pytest.mark.parametrize(
    ("who", "flags", "answer"),
    [
        (ctx(uid=OWNER), os.O_RDWR, None),
        (ctx(uid=0), os.O_RDWR, None),
        (ctx(uid=STRANGER, gid=GROUP), os.O_RDONLY, None),
        (ctx(uid=STRANGER, gid=GROUP), os.O_RDWR, errno.EACCES),
        (ctx(uid=STRANGER, gid=STRANGER, pid=0), os.O_RDONLY, errno.EACCES),
    ],
)
async def test_opens_follow_owner_and_mode(
    who: RequestContext, flags: int, answer: int | None
) -> None:
    """With --allow-other everybody gets through the kernel; --file-mode must still hold."""
    fs = FakeFilesystem()
    ops = operations(fs, file_mode=0o640)
    if answer is None:
        assert (await ops.open(FILE, flags, who)).fh == HANDLE
        return
    with pytest.raises(FUSEError) as refusal:
        await ops.open(FILE, flags, who)
    assert refusal.value.errno == answer
    assert fs.asked == []


async def test_a_closed_directory_mode_protects_files_below_it() -> None:
    """The kernel walks through names that it has cached without asking us."""
    ops = operations(FakeFilesystem(), file_mode=0o644, dir_mode=0o700)
    with pytest.raises(FUSEError) as refusal:
        await ops.open(FILE, os.O_RDONLY, ctx(uid=STRANGER, gid=STRANGER))
    assert refusal.value.errno == errno.EACCES


@pytest.mark.parametrize(
    ("inode", "wanted", "who", "allowed"),
    [
        (FILE, os.R_OK | os.W_OK, ctx(), True),
        (FILE, os.X_OK, ctx(), False),
        (FILE, os.X_OK, ctx(uid=0), False),
        (FILE, os.W_OK, ctx(uid=STRANGER, gid=STRANGER), False),
        (ROOT, os.X_OK, ctx(), True),
        (ROOT, os.W_OK, ctx(uid=STRANGER, gid=STRANGER), False),
    ],
)
async def test_access_says_what_owner_and_mode_say(
    inode: InodeNo, wanted: int, who: RequestContext, allowed: bool
) -> None:
    assert await operations(FakeFilesystem()).access(inode, wanted, who) is allowed


async def test_df_shows_plenty_of_room() -> None:
    room = await operations(FakeFilesystem()).statfs(ctx())
    assert room.f_bavail * room.f_frsize == 1 << 50
    assert room.f_namemax == 255
