"""The journal of a session: what it says after a crash, whenever that comes."""

import errno
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from ucfuse.errors import StagingFull
from ucfuse.volume import ETag, Key
from ucfuse.writing.area import StagingArea
from ucfuse.writing.journal import COMPACT_BYTES, REFRESH_S, Entry, Journal
from ucfuse.writing.leftovers import Standing, find_leftovers, hold, settle
from ucfuse.writing.records import LOG_NAME, Head, Origin, Record, Stage, head_line, read_log
from ucfuse.writing.session_directory import SessionDirectory, hold_if_dead, tidy

ORIGIN = Origin(endpoint="http://store/b", bucket="b", mountpoint="/mnt/b", region="r")
KEY = Key("dir/käse\n.bin")


class File:
    """A staging file as the journal sees it."""

    def __init__(self, path: Path, data: bytes = b"") -> None:
        self.path = path
        self.size = self.base_size = 0
        self.written: list[tuple[int, int]] = []
        path.touch(mode=0o600)
        if data:
            self.put(data)

    def put(self, data: bytes) -> None:
        with self.path.open("ab") as file:
            file.write(data)
        self.size += len(data)
        self.written = [(0, self.size)]


@pytest.fixture
def session(tmp_path: Path) -> Iterator[SessionDirectory]:
    directory = SessionDirectory(tmp_path / "staging")
    yield directory
    directory.close()


@pytest.fixture
def directory(session: SessionDirectory) -> Path:
    return session.path


@pytest.fixture
def journal(directory: Path) -> Iterator[Journal]:
    journal = Journal(directory, ORIGIN, wall_s=lambda: 1000.0)
    yield journal
    journal.close()


@pytest.fixture
def file(directory: Path) -> File:
    return File(directory / "x.000001")


def said(directory: Path, name: str = "x.000001") -> Record:
    return read_log(directory).records[name]


def crash(session: SessionDirectory) -> None:
    """Drop the lock as the kernel does when the process dies."""
    os.close(session._lock_fd)
    session._lock_fd = -1


# --- what is said --------------------------------------------------------------------------------


async def test_every_step_can_be_read_after_it_was_taken(
    journal: Journal, file: File, directory: Path
) -> None:
    entry = journal.begin(file, KEY, base_etag=None, nonce="n1")
    assert said(directory).nonce == "n1"
    assert said(directory).stage is Stage.WRITING

    file.put(b"abc")
    entry.upload_begins("u1")
    assert (said(directory).upload, said(directory).size) == ("u1", 3)
    assert said(directory).ranges == ((0, 3),)

    entry.commit_begins(ETag('"e"'), base_etag=ETag('"p"'), parts=[ETag('"1"'), ETag('"2"')])
    record = said(directory)
    assert record.stage is Stage.COMMITTING
    assert (record.key, record.base_etag, record.expected_etag) == (KEY, '"p"', '"e"')
    assert record.parts == ('"1"', '"2"')
    assert record.written_s == 1000.0

    entry.confirmed()
    log = read_log(directory)
    assert not log.records
    assert log.done == {"x.000001"}
    assert log.head is not None
    assert log.head.origin == ORIGIN
    assert log.head.pid == os.getpid()


async def test_a_write_after_a_failed_commit_takes_back_that_it_had_begun(
    journal: Journal, file: File, directory: Path
) -> None:
    """Else bytes that were never synced would be committed by the next mount."""
    entry = journal.begin(file, KEY, base_etag=None)
    entry.changes()
    entry.commit_begins(ETag('"e"'), base_etag=None)

    entry.changes()

    assert said(directory).stage is Stage.WRITING
    assert said(directory).expected_etag is None


async def test_what_was_written_is_known_a_second_later(
    journal: Journal,
    file: File,
    directory: Path,
    autojump_clock: MockClock,
    nursery: trio.Nursery,
) -> None:
    """Also if the program then waits: nothing but the journal itself has to go on."""
    nursery.start_soon(journal.keep_fresh)
    entry = journal.begin(file, KEY, base_etag=None)
    for data in (b"abc", b"de"):
        file.put(data)
        entry.changed()
        assert said(directory).size == file.size - len(data)
        await trio.sleep(REFRESH_S + 0.01)
        assert said(directory).ranges == ((0, file.size),)
    nursery.cancel_scope.cancel()


async def test_a_moved_file_has_its_new_key_and_no_placeholder(
    journal: Journal, file: File, directory: Path
) -> None:
    entry = journal.begin(file, KEY, base_etag=None, nonce="n1")
    entry.moved(Key("new"), base_etag=ETag('"b"'), is_replacement=True)
    record = said(directory)
    assert (record.key, record.base_etag, record.nonce) == ("new", '"b"', None)
    assert record.is_replacement


async def test_a_promise_syncs_the_bytes_before_it_says_so(
    journal: Journal, file: File, directory: Path
) -> None:
    entry = journal.begin(file, KEY, base_etag=ETag('"b"'))
    file.put(b"abc")
    await entry.promise("lost")
    record = said(directory)
    assert (record.stage, record.reason, record.is_synced) == (Stage.KEPT, "lost", True)
    assert record.ranges == ((0, 3),)


async def test_a_further_try_after_a_promise_is_a_commit_like_any_other(
    journal: Journal, file: File, directory: Path
) -> None:
    entry = journal.begin(file, KEY, base_etag=None)
    entry.promise_now("the store was away")
    entry.commit_begins(ETag('"e"'), base_etag=None)
    assert said(directory).stage is Stage.COMMITTING
    entry.confirmed()
    assert not read_log(directory).records


async def test_the_end_of_an_old_entry_leaves_a_new_one_of_the_file_alone(
    journal: Journal, file: File, directory: Path
) -> None:
    """A committed file may become dirty again while its last upload is still being tidied up."""
    old = journal.begin(file, KEY, base_etag=None)
    journal.begin(file, KEY, base_etag=ETag('"new"'))
    old.confirmed()
    assert said(directory).base_etag == '"new"'


async def test_what_is_expected_of_the_same_bytes_is_remembered(
    journal: Journal, file: File, directory: Path
) -> None:
    """The answer to an earlier try may have been lost while the store carried it out."""
    entry = journal.begin(file, KEY, base_etag=None)
    entry.commit_begins(ETag('"e"'), base_etag=None)
    entry.commit_begins(None, base_etag=None)
    assert said(directory).expected_etag == '"e"'


# --- the log -------------------------------------------------------------------------------------


async def test_a_torn_last_line_counts_as_never_written(
    journal: Journal, file: File, directory: Path
) -> None:
    """A process may be killed anywhere within the write of a line."""
    entry = journal.begin(file, KEY, base_etag=None)
    before = (directory / LOG_NAME).read_bytes()
    entry.commit_begins(ETag('"e"'), base_etag=None)
    whole = (directory / LOG_NAME).read_bytes()

    for length in range(len(before), len(whole)):
        (directory / LOG_NAME).write_bytes(whole[:length])
        assert said(directory).stage is Stage.WRITING

    (directory / LOG_NAME).write_bytes(whole)
    assert said(directory).stage is Stage.COMMITTING


async def test_garbled_lines_are_passed_over(journal: Journal, file: File, directory: Path) -> None:
    journal.begin(file, KEY, base_etag=None)
    with (directory / LOG_NAME).open("ab") as log:
        log.write(b'{"file":"x.000001"}\n\0\0\0\n[1]\n{"done"\n')
    assert said(directory).key == KEY


async def test_a_record_that_names_a_file_elsewhere_is_not_believed(
    journal: Journal, file: File, directory: Path
) -> None:
    journal.begin(file, KEY, base_etag=None)
    log = directory / LOG_NAME
    log.write_bytes(log.read_bytes().replace(b"x.000001", b"../../x"))
    assert not read_log(directory).records


def test_nobody_else_can_read_a_session(directory: Path) -> None:
    assert directory.stat().st_mode & 0o777 == 0o700


def test_a_log_of_another_form_is_not_read(directory: Path) -> None:
    line = json.loads(head_line(Head.of(ORIGIN, directory, 1)))
    line["form"] = 99
    (directory / LOG_NAME).write_bytes(json.dumps(line).encode() + b"\n")
    assert read_log(directory).head is None


async def test_the_log_stays_small_and_keeps_what_is_open(
    journal: Journal, file: File, directory: Path
) -> None:
    journal.begin(file, KEY, base_etag=None)
    written = 0
    other = File(directory / "y.000002")
    while written < 2 * COMPACT_BYTES:
        before = (directory / LOG_NAME).stat().st_size
        entry = journal.begin(other, Key("k" * 1000), base_etag=None)
        entry.commit_begins(None, base_etag=None)
        entry.confirmed()
        written += max(0, (directory / LOG_NAME).stat().st_size - before)

    assert (directory / LOG_NAME).stat().st_size < COMPACT_BYTES + 10_000
    assert said(directory).key == KEY
    assert (directory / LOG_NAME).stat().st_mode & 0o777 == 0o600


async def test_a_full_disk_is_an_error_and_leaves_no_half_line(
    directory: Path, file: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    rooms = iter([True, False])
    journal = Journal(directory, ORIGIN, make_room=lambda: next(rooms))
    entry = journal.begin(file, KEY, base_etag=None)
    real_write = os.write

    def half(fd: int, data: bytes) -> int:
        if len(data) > 30:
            return real_write(fd, data[:20])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", half)
    with pytest.raises(StagingFull):
        entry.commit_begins(ETag('"e"'), base_etag=None)
    monkeypatch.undo()

    assert said(directory).stage is Stage.WRITING
    entry.commit_begins(ETag('"e"'), base_etag=None)
    assert said(directory).stage is Stage.COMMITTING
    journal.close()


# --- after the end of the session ----------------------------------------------------------------


async def test_a_session_that_ended_well_leaves_nothing(tmp_path: Path) -> None:
    with StagingArea(tmp_path / "staging", origin=ORIGIN) as area:
        staging = area.new("f", 0)
        entry = area.journal.begin(staging, KEY, base_etag=None)
        await staging.write(0, b"abc")
        entry.confirmed()
        staging.close()
        assert not find_leftovers(tmp_path / "staging")
    assert [path.name for path in (tmp_path / "staging").iterdir()] == ["lock"]


async def test_dirty_files_of_a_living_session_are_not_leftovers(
    journal: Journal, file: File, directory: Path
) -> None:
    entry = journal.begin(file, KEY, base_etag=None)
    assert not find_leftovers(directory.parent)

    entry.promise_now("lost")
    [leftover] = find_leftovers(directory.parent)
    assert leftover.standing is Standing.IN_USE
    with hold(leftover) as held:
        assert held is None

    entry.released()
    [leftover] = find_leftovers(directory.parent)
    assert leftover.standing is Standing.RELEASED
    with hold(leftover) as held:
        assert held is not None
        settle(held)
    assert not find_leftovers(directory.parent)


async def _crashed(tmp_path: Path) -> tuple[Path, Entry]:
    session = SessionDirectory(tmp_path / "staging")
    file = File(session.path / "x.000001", b"abc")
    entry = Journal(session.path, ORIGIN).begin(file, KEY, base_etag=None)
    entry.commit_begins(ETag('"e"'), base_etag=None)
    crash(session)
    return session.path, entry


async def test_a_crashed_session_is_ours_if_it_ran_here(tmp_path: Path) -> None:
    directory, _ = await _crashed(tmp_path)
    [leftover] = find_leftovers(directory.parent)
    assert leftover.standing is Standing.OURS
    assert leftover.name == f"{directory.name.removeprefix('session-')}.1"
    assert leftover.extent().ranges == ((0, 3),)


async def test_a_copy_of_a_session_is_foreign(tmp_path: Path) -> None:
    directory, _ = await _crashed(tmp_path)
    shutil.copytree(directory, directory.parent / "session-copy")
    standings = {
        leftover.directory.name: leftover.standing for leftover in find_leftovers(directory.parent)
    }
    assert standings == {directory.name: Standing.OURS, "session-copy": Standing.FOREIGN}


@pytest.mark.parametrize(
    ("field", "standing"), [("host", Standing.FOREIGN), ("boot_id", Standing.RESTARTED)]
)
async def test_another_host_or_another_start_of_it_is_told_apart(
    tmp_path: Path, field: str, standing: Standing
) -> None:
    directory, _ = await _crashed(tmp_path)
    head, *lines = (directory / LOG_NAME).read_bytes().split(b"\n")
    changed = json.dumps({**json.loads(head), field: "other"}).encode()
    (directory / LOG_NAME).write_bytes(b"\n".join([changed, *lines]))
    [leftover] = find_leftovers(directory.parent)
    assert leftover.standing is standing


async def test_one_leftover_is_held_by_one_at_a_time(tmp_path: Path) -> None:
    directory, _ = await _crashed(tmp_path)
    [leftover] = find_leftovers(directory.parent)
    with hold(leftover) as held:
        assert held is not None
        with hold(leftover) as second, hold_if_dead(directory) as is_dead:
            assert second is None
            assert not is_dead
        settle(held)
    with hold(leftover) as held:
        assert held is None
    with hold_if_dead(directory):
        tidy(directory)
    assert not directory.exists()


async def test_what_was_appended_to_the_base_counts_though_the_record_is_late(
    tmp_path: Path,
) -> None:
    session = SessionDirectory(tmp_path / "staging")
    file = File(session.path / "x.000001")
    file.size = file.base_size = 2
    Journal(session.path, ORIGIN).begin(file, KEY, base_etag=ETag('"b"'))
    file.path.write_bytes(b"\0\0later")
    crash(session)

    [leftover] = find_leftovers(session.path.parent)
    extent = leftover.extent()

    assert (extent.size, extent.ranges, extent.from_base) == (7, ((2, 7),), [(0, 2)])


async def test_a_file_without_a_record_is_shown_and_not_understood(tmp_path: Path) -> None:
    session = SessionDirectory(tmp_path / "staging")
    (session.path / "x.000001").write_bytes(b"abc")
    crash(session)
    [leftover] = find_leftovers(session.path.parent)
    assert leftover.standing is Standing.UNKNOWN
    assert leftover.extent().byte_count == 3
