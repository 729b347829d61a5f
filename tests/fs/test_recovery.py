"""What a mount does with the files of one that crashed, and what the user may do with the rest."""

import errno
import hashlib
import json
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio

from tests.fs.kernel import bytes_in, keys_in
from tests.fs.stores import ScriptedStore
from ucfuse.budget import MemoryBudget
from ucfuse.config import MountConfig
from ucfuse.errors import ConfigError, ObjectChanged, OutcomeUnclear, StoreUnavailable
from ucfuse.fs.creations import CREATE_METADATA
from ucfuse.fs.recovery import Recovery, open_area
from ucfuse.store.api import ABSENT
from ucfuse.store.memory import MemoryStore
from ucfuse.volume import ETag, Key, MiB
from ucfuse.writing.area import StagingArea
from ucfuse.writing.journal import Entry
from ucfuse.writing.leftovers import Leftover, find_leftovers, hold
from ucfuse.writing.records import LOG_NAME, Origin, Record, Stage, read_log
from ucfuse.writing.staging import Staging
from ucfuse.writing.upload import Uploader

ORIGIN = Origin(endpoint="http://store/b", bucket="b", mountpoint="/mnt/b")
KEY = Key("data/f")


def md5(data: bytes) -> ETag:
    return ETag(f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"')


@dataclass
class Crashed:
    """A session that a test lets write, and then crash."""

    area: StagingArea
    entries: list[Entry] = field(default_factory=list)

    async def wrote(
        self, data: bytes, *, offset: int = 0, base: tuple[ETag, int] | None = None, key: Key = KEY
    ) -> tuple[Staging, Entry]:
        """Begin a file, an update if it has a base, and write to it."""
        staging = self.area.new(key, base[1] if base else 0)
        entry = self.area.journal.begin(
            staging, key, base_etag=base[0] if base else None, is_replacement=base is None
        )
        if data:
            await staging.write(offset, data)
            entry.write()
        self.entries.append(entry)
        return staging, entry

    async def closed(self, data: bytes, key: Key = KEY) -> None:
        """Write a new file up to the point where its one PUT is sent."""
        _, entry = await self.wrote(data, key=key)
        entry.commit_begins(md5(data), base_etag=None)

    def crash(self) -> None:
        """Drop the lock as the kernel does when the process dies."""
        session = self.area._session
        os.close(session._lock_fd)
        session._lock_fd = -1


@pytest.fixture
def crashed(staging_dir: Path) -> Crashed:
    return Crashed(StagingArea(staging_dir, origin=ORIGIN))


@asynccontextmanager
async def mounted(
    store: ScriptedStore, staging_dir: Path, origin: Origin = ORIGIN
) -> AsyncIterator[Recovery]:
    """The next mount, as far as it recovers."""
    with StagingArea(staging_dir, origin=origin) as area:
        async with trio.open_nursery() as nursery:
            uploader = Uploader(store, MemoryBudget(64 * MiB), nursery, commit_timeout_s=5.0)
            yield Recovery(store, uploader, area, nursery)
            nursery.cancel_scope.cancel()


async def replay(store: ScriptedStore, staging_dir: Path, origin: Origin = ORIGIN) -> None:
    async with mounted(store, staging_dir, origin) as recovery:
        await recovery.replay("data/")


def the_only(staging_dir: Path) -> Leftover:
    [leftover] = find_leftovers(staging_dir)
    return leftover


def the_record(staging_dir: Path) -> Record:
    record = the_only(staging_dir).record
    assert record is not None
    return record


@contextmanager
def held(staging_dir: Path) -> Iterator[Leftover]:
    """The only leftover, which nobody else may touch in the block."""
    with hold(the_only(staging_dir)) as leftover:
        assert leftover is not None
        yield leftover


def nothing_is_left(staging_dir: Path) -> bool:
    return not find_leftovers(staging_dir) and not list(staging_dir.glob("session-*"))


# --- by itself -----------------------------------------------------------------------------------


@pytest.mark.promise("P41")
async def test_a_commit_that_was_cut_off_is_finished(
    crashed: Crashed, store: ScriptedStore, memory: MemoryStore, staging_dir: Path
) -> None:
    await crashed.closed(b"whole")
    crashed.crash()
    await replay(store, staging_dir)
    assert await bytes_in(memory, KEY) == b"whole"
    assert nothing_is_left(staging_dir)


async def test_a_commit_that_was_carried_out_is_forgotten(
    crashed: Crashed, store: ScriptedStore, memory: MemoryStore, staging_dir: Path
) -> None:
    await crashed.closed(b"whole")
    await memory.put(KEY, b"whole")
    crashed.crash()
    store.fail("PUT", StoreUnavailable(KEY))
    await replay(store, staging_dir)
    assert nothing_is_left(staging_dir)


async def test_a_newer_version_of_another_client_stays(
    crashed: Crashed, store: ScriptedStore, memory: MemoryStore, staging_dir: Path
) -> None:
    await crashed.closed(b"old run")
    await memory.put(KEY, b"newer")
    crashed.crash()
    await replay(store, staging_dir)
    assert await bytes_in(memory, KEY) == b"newer"
    assert the_record(staging_dir).stage is Stage.KEPT
    assert the_only(staging_dir).path.read_bytes() == b"old run"


async def test_a_version_that_comes_in_between_stays(
    crashed: Crashed, store: ScriptedStore, memory: MemoryStore, staging_dir: Path
) -> None:
    """Between the question and the commit of the replay: the condition holds the commit back."""
    await crashed.closed(b"old run")
    crashed.crash()
    async with store.hold("PUT", KEY).met_by(replay, store, staging_dir):
        await memory.put(KEY, b"newer")
    assert await bytes_in(memory, KEY) == b"newer"
    assert the_only(staging_dir).path.read_bytes() == b"old run"


async def test_a_request_of_the_dead_session_that_arrives_late_is_recognised(
    crashed: Crashed, store: ScriptedStore, memory: MemoryStore, staging_dir: Path
) -> None:
    await crashed.closed(b"whole")
    crashed.crash()
    async with store.hold("PUT", KEY).met_by(replay, store, staging_dir):
        await memory.put(KEY, b"whole", condition=ABSENT)
    assert nothing_is_left(staging_dir)


@pytest.mark.promise("P41")
async def test_a_file_that_was_not_closed_is_never_committed(
    crashed: Crashed, store: ScriptedStore, memory: MemoryStore, staging_dir: Path
) -> None:
    await crashed.wrote(b"half")
    crashed.crash()
    for _ in range(2):
        await replay(store, staging_dir)
    assert await keys_in(memory) == []
    assert the_only(staging_dir).path.read_bytes() == b"half"


async def test_what_was_written_after_a_failed_commit_is_not_committed(
    crashed: Crashed, store: ScriptedStore, memory: MemoryStore, staging_dir: Path
) -> None:
    staging, entry = await crashed.wrote(b"synced")
    entry.commit_begins(md5(b"synced"), base_etag=None)
    entry.changes()
    await staging.write(6, b" and not")
    crashed.crash()
    await replay(store, staging_dir)
    assert await keys_in(memory) == []
    assert the_only(staging_dir).extent().byte_count == 14


async def test_what_a_program_was_told_is_kept_waits_for_the_user(
    crashed: Crashed, store: ScriptedStore, memory: MemoryStore, staging_dir: Path
) -> None:
    _, entry = await crashed.wrote(b"told")
    entry.commit_begins(md5(b"told"), base_etag=None)
    await entry.promise("the store was away")
    crashed.crash()
    await replay(store, staging_dir)
    assert await keys_in(memory) == []
    assert the_record(staging_dir).reason == "the store was away"


async def test_a_file_without_a_byte_is_not_kept(
    crashed: Crashed, store: ScriptedStore, staging_dir: Path
) -> None:
    await crashed.wrote(b"")
    crashed.crash()
    await replay(store, staging_dir)
    assert nothing_is_left(staging_dir)


async def test_an_update_is_finished_with_the_bytes_of_its_base(
    crashed: Crashed, store: ScriptedStore, memory: MemoryStore, staging_dir: Path
) -> None:
    etag = await memory.put(KEY, b"0123456789")
    _, entry = await crashed.wrote(b"ab", offset=3, base=(etag, 10))
    entry.commit_begins(None, base_etag=etag)
    crashed.crash()
    await replay(store, staging_dir)
    assert await bytes_in(memory, KEY) == b"012ab56789"
    assert nothing_is_left(staging_dir)


async def test_an_update_whose_base_is_gone_is_kept(
    crashed: Crashed, store: ScriptedStore, memory: MemoryStore, staging_dir: Path
) -> None:
    etag = await memory.put(KEY, b"0123456789")
    _, entry = await crashed.wrote(b"ab", offset=3, base=(etag, 10))
    entry.commit_begins(None, base_etag=etag)
    await memory.put(KEY, b"theirs")
    crashed.crash()
    await replay(store, staging_dir)
    assert await bytes_in(memory, KEY) == b"theirs"
    assert the_only(staging_dir).extent().ranges == ((3, 5),)


async def test_a_large_file_is_finished_in_parts_and_its_old_upload_is_gone(
    crashed: Crashed, store: ScriptedStore, memory: MemoryStore, staging_dir: Path
) -> None:
    data = os.urandom(9 * MiB)
    old = await memory.create_upload(KEY)
    _, entry = await crashed.wrote(data)
    entry.upload_begins(old)
    entry.commit_begins(None, base_etag=None)
    crashed.crash()
    await replay(store, staging_dir)
    assert await bytes_in(memory, KEY) == data
    assert memory._bucket._uploads == {}
    assert nothing_is_left(staging_dir)


async def test_only_uploads_that_the_journal_names_are_aborted(
    crashed: Crashed, store: ScriptedStore, memory: MemoryStore, staging_dir: Path
) -> None:
    ours, theirs = await memory.create_upload(KEY), await memory.create_upload(KEY)
    _, entry = await crashed.wrote(b"half")
    entry.upload_begins(ours)
    crashed.crash()
    await replay(store, staging_dir)
    assert list(memory._bucket._uploads) == [theirs]
    assert the_record(staging_dir).upload is None


async def test_the_placeholder_of_an_unfinished_file_is_removed(
    crashed: Crashed, store: ScriptedStore, memory: MemoryStore, staging_dir: Path
) -> None:
    staging = crashed.area.new(KEY, 0)
    crashed.area.journal.begin(staging, KEY, base_etag=None, nonce="n1")
    await memory.put(KEY, b"", metadata={CREATE_METADATA: "n1"})
    crashed.crash()
    await replay(store, staging_dir)
    assert await keys_in(memory) == []
    assert nothing_is_left(staging_dir)


@pytest.mark.parametrize("metadata", [{CREATE_METADATA: "other"}, {}])
async def test_an_empty_object_of_another_client_stays(
    crashed: Crashed,
    store: ScriptedStore,
    memory: MemoryStore,
    staging_dir: Path,
    metadata: dict[str, str],
) -> None:
    staging = crashed.area.new(KEY, 0)
    crashed.area.journal.begin(staging, KEY, base_etag=None, nonce="n1")
    await memory.put(KEY, b"", metadata=metadata)
    crashed.crash()
    await replay(store, staging_dir)
    assert await keys_in(memory) == [KEY]


async def test_a_cut_off_commit_over_its_placeholder_is_finished(
    crashed: Crashed, store: ScriptedStore, memory: MemoryStore, staging_dir: Path
) -> None:
    staging = crashed.area.new(KEY, 0)
    entry = crashed.area.journal.begin(staging, KEY, base_etag=None, nonce="n1")
    etag = await memory.put(KEY, b"", metadata={CREATE_METADATA: "n1"})
    await staging.write(0, b"whole")
    entry.commit_begins(md5(b"whole"), base_etag=etag)
    crashed.crash()
    await replay(store, staging_dir)
    assert await bytes_in(memory, KEY) == b"whole"
    assert nothing_is_left(staging_dir)


async def test_what_is_only_there_for_reads_goes(
    crashed: Crashed, store: ScriptedStore, staging_dir: Path
) -> None:
    _, entry = await crashed.wrote(b"committed")
    entry.confirmed()
    crashed.crash()
    await replay(store, staging_dir)
    assert nothing_is_left(staging_dir)


# --- what is left alone --------------------------------------------------------------------------


@pytest.mark.parametrize("field_name", ["host", "boot_id", "place"])
async def test_sessions_of_elsewhere_or_before_are_not_committed(
    crashed: Crashed,
    store: ScriptedStore,
    memory: MemoryStore,
    staging_dir: Path,
    field_name: str,
) -> None:
    await crashed.closed(b"whole")
    crashed.crash()
    log = crashed.area.path / LOG_NAME
    head, *lines = log.read_bytes().split(b"\n")
    changed = json.dumps({**json.loads(head), field_name: "other"}).encode()
    log.write_bytes(b"\n".join([changed, *lines]))

    await replay(store, staging_dir)

    assert await keys_in(memory) == []
    assert the_only(staging_dir).path.read_bytes() == b"whole"


@pytest.mark.parametrize(
    "origin",
    [
        Origin(endpoint="http://other/b", bucket="b", mountpoint="/mnt/b"),
        Origin(endpoint="http://store/b", bucket="c", mountpoint="/mnt/b"),
    ],
)
async def test_files_of_another_store_wait_for_its_own_mount(
    crashed: Crashed, store: ScriptedStore, memory: MemoryStore, staging_dir: Path, origin: Origin
) -> None:
    await crashed.closed(b"whole")
    crashed.crash()
    await replay(store, staging_dir, origin)
    assert await keys_in(memory) == []
    await replay(store, staging_dir)
    assert await bytes_in(memory, KEY) == b"whole"


async def test_keys_outside_the_mounted_prefix_wait_for_their_own_mount(
    crashed: Crashed, store: ScriptedStore, memory: MemoryStore, staging_dir: Path
) -> None:
    await crashed.closed(b"whole", key=Key("elsewhere/f"))
    crashed.crash()
    await replay(store, staging_dir)
    assert await keys_in(memory) == []
    assert the_only(staging_dir).path.read_bytes() == b"whole"


async def test_a_living_session_is_left_alone(
    crashed: Crashed, store: ScriptedStore, memory: MemoryStore, staging_dir: Path
) -> None:
    await crashed.closed(b"whole")
    await replay(store, staging_dir)
    assert await keys_in(memory) == []
    assert read_log(crashed.area.path).records
    crashed.crash()


async def test_an_outage_leaves_all_to_the_next_mount(
    crashed: Crashed, store: ScriptedStore, memory: MemoryStore, staging_dir: Path
) -> None:
    await crashed.closed(b"one", key=Key("data/1"))
    await crashed.closed(b"two", key=Key("data/2"))
    crashed.crash()
    store.fail("HEAD", StoreUnavailable("data/1"), "data/1")
    store.fail("PUT", OutcomeUnclear("data/2"), "data/2", carried_out=True)
    await replay(store, staging_dir)
    assert len(find_leftovers(staging_dir)) == 2
    await replay(store, staging_dir)
    assert await bytes_in(memory, "data/1") == b"one"
    assert await bytes_in(memory, "data/2") == b"two"
    assert nothing_is_left(staging_dir)


# --- on the user's word --------------------------------------------------------------------------


async def test_the_user_commits_what_was_kept(
    crashed: Crashed, store: ScriptedStore, memory: MemoryStore, staging_dir: Path
) -> None:
    await crashed.wrote(b"half")
    crashed.crash()
    async with mounted(store, staging_dir) as recovery:
        with held(staging_dir) as leftover:
            await recovery.commit(leftover, force=False)
    assert await bytes_in(memory, KEY) == b"half"
    assert not find_leftovers(staging_dir)


async def test_the_user_replaces_another_version_only_by_force(
    crashed: Crashed, store: ScriptedStore, memory: MemoryStore, staging_dir: Path
) -> None:
    await crashed.wrote(b"half")
    await memory.put(KEY, b"theirs")
    crashed.crash()
    async with mounted(store, staging_dir) as recovery:
        with held(staging_dir) as leftover, pytest.raises(ObjectChanged):
            await recovery.commit(leftover, force=False)
        assert await bytes_in(memory, KEY) == b"theirs"
        assert the_record(staging_dir).stage is Stage.WRITING
        with held(staging_dir) as leftover:
            await recovery.commit(leftover, force=True)
    assert await bytes_in(memory, KEY) == b"half"


async def test_force_cannot_make_up_for_a_base_that_is_gone(
    crashed: Crashed, store: ScriptedStore, memory: MemoryStore, staging_dir: Path
) -> None:
    etag = await memory.put(KEY, b"0123456789")
    await crashed.wrote(b"ab", offset=3, base=(etag, 10))
    await memory.put(KEY, b"theirs")
    crashed.crash()
    async with mounted(store, staging_dir) as recovery:
        with held(staging_dir) as leftover, pytest.raises(ObjectChanged):
            await recovery.commit(leftover, force=True)
    assert await bytes_in(memory, KEY) == b"theirs"
    assert the_only(staging_dir).extent().ranges == ((3, 5),)


async def test_discarding_takes_the_upload_and_the_placeholder_along(
    crashed: Crashed, store: ScriptedStore, memory: MemoryStore, staging_dir: Path
) -> None:
    staging = crashed.area.new(KEY, 0)
    entry = crashed.area.journal.begin(staging, KEY, base_etag=None, nonce="n1")
    await memory.put(KEY, b"", metadata={CREATE_METADATA: "n1"})
    await staging.write(0, b"half")
    entry.upload_begins(await memory.create_upload(KEY))
    crashed.crash()
    async with mounted(store, staging_dir) as recovery:
        with held(staging_dir) as leftover:
            await recovery.discard(leftover)
    assert await keys_in(memory) == []
    assert memory._bucket._uploads == {}
    assert not find_leftovers(staging_dir)


async def test_an_export_has_the_bytes_of_the_base_in_their_places(
    crashed: Crashed,
    store: ScriptedStore,
    memory: MemoryStore,
    staging_dir: Path,
    tmp_path: Path,
) -> None:
    etag = await memory.put(KEY, b"0123456789")
    await crashed.wrote(b"ab", offset=3, base=(etag, 10))
    crashed.crash()
    target = tmp_path / "out"
    target.write_bytes(b"...ab.....")
    async with mounted(store, staging_dir) as recovery:
        with target.open("r+b") as file:
            await recovery.merge_base(the_only(staging_dir), file)
    assert target.read_bytes() == b"012ab56789"


# --- the disk ------------------------------------------------------------------------------------


def test_a_state_directory_that_cannot_be_used_is_said_at_the_mount(config: MountConfig) -> None:
    config.state_dir.mkdir()
    (config.state_dir / "staging").write_bytes(b"a file where a directory belongs")
    with pytest.raises(ConfigError, match="choose another with --state-dir"):
        open_area(config)


def test_a_full_disk_is_said_at_the_mount(
    config: MountConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(ConfigError, match="No space left on device"):
        open_area(config)
