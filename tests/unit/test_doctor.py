"""Every check of `ucfuse doctor`, well and not: each names what mends it."""

import os
import socket
import threading
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from email.utils import formatdate
from pathlib import Path

import pytest

from tests.fs.stores import ScriptedStore
from ucfuse.config import Source, StoreOptions
from ucfuse.doctor import machine as checks
from ucfuse.doctor.bucket import examine_store, look_at_bucket, look_at_clock
from ucfuse.doctor.findings import Finding, Level
from ucfuse.doctor.machine import Machine, examine_machine
from ucfuse.errors import AccessDenied, StoreRefused
from ucfuse.kernel.mountinfo import MountEntry
from ucfuse.store.api import Condition, Fetched
from ucfuse.store.clock import clock_skew_s
from ucfuse.store.memory import MemoryStore
from ucfuse.volume import ETag, Key

SOURCE = Source("bucket", "p/")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A machine on which all is well, for a user that is not root."""
    (tmp_path / "fuse").touch()
    (tmp_path / "fuse.conf").write_text("# users\nuser_allow_other\n")
    (tmp_path / "proc/77/fdinfo").mkdir(parents=True)
    (tmp_path / "proc/77/fdinfo/0").write_text("pos: 0\n")
    return Machine(
        state_dir=tmp_path / "state",
        is_root=False,
        user=os.geteuid() + 1,
        device=tmp_path / "fuse",
        fuse_conf=tmp_path / "fuse.conf",
        sysfs=tmp_path / "sys",
        proc=tmp_path / "proc",
        find_program=lambda name: f"/usr/bin/{name}",
        mounts=list,
    )


def assert_says(finding: Finding, level: Level, word: str) -> None:
    assert finding.level is level, finding
    assert word in f"{finding.subject}: {finding.detail}"
    assert bool(finding.mend) == (level is not Level.OK)


def test_all_checks_are_made_and_leave_nothing_behind(machine: Machine) -> None:
    findings = list(examine_machine(machine))
    assert len(findings) == 6
    assert [finding.level for finding in findings].count(Level.FAIL) == 0
    assert os.listdir(machine.state_dir) == []


def test_the_fuse_device(machine: Machine, tmp_path: Path) -> None:
    assert_says(checks.look_at_device(machine), Level.OK, "usable")
    missing = replace(machine, device=tmp_path / "none")
    assert_says(checks.look_at_device(missing), Level.FAIL, "missing")


def test_a_fuse_device_without_permission(machine: Machine) -> None:
    locked = replace(machine, may=lambda *_: False)
    assert_says(checks.look_at_device(locked), Level.FAIL, "no permission")


def test_fusermount3(machine: Machine) -> None:
    assert_says(checks.look_at_fusermount(machine), Level.OK, "/usr/bin/fusermount3")
    without = replace(machine, find_program=lambda _: None)
    assert_says(checks.look_at_fusermount(without), Level.FAIL, "not found")
    assert_says(checks.look_at_fusermount(replace(without, is_root=True)), Level.WARN, "not found")


def test_user_allow_other(machine: Machine) -> None:
    assert_says(checks.look_at_allow_other(machine), Level.OK, "fuse.conf")
    machine.fuse_conf.write_text("#user_allow_other\n")
    assert_says(checks.look_at_allow_other(machine), Level.WARN, "no --allow-other")
    machine.fuse_conf.unlink()
    assert_says(checks.look_at_allow_other(machine), Level.WARN, "no --allow-other")
    assert_says(checks.look_at_allow_other(replace(machine, is_root=True)), Level.OK, "root")


def test_kernel_limits_that_a_user_cannot_raise(machine: Machine) -> None:
    assert_says(checks.look_at_kernel_limits(machine), Level.WARN, "plain user")
    (machine.sysfs / "class/bdi").mkdir(parents=True)
    assert_says(checks.look_at_kernel_limits(replace(machine, is_root=True)), Level.OK, "raised")


def test_kernel_limits_without_a_writable_sys(machine: Machine) -> None:
    assert_says(
        checks.look_at_kernel_limits(replace(machine, is_root=True)), Level.WARN, "read-only"
    )


def test_kernel_limits_of_a_mount_that_were_not_raised(machine: Machine) -> None:
    mount = MountEntry(1, "0:55", Path("/mnt"), "fuse.ucfuse", "s3://b/", False)
    bdi, connection = machine.sysfs / "class/bdi/0:55", machine.sysfs / "fs/fuse/connections/55"
    for folder in (bdi, connection):
        folder.mkdir(parents=True)
    (bdi / "read_ahead_kb").write_text("128\n")
    (connection / "max_background").write_text("1024\n")
    mounted = replace(machine, is_root=True, mounts=lambda: [mount])

    assert_says(checks.look_at_kernel_limits(mounted), Level.WARN, "/mnt: read_ahead_kb is 128")

    (bdi / "read_ahead_kb").write_text("1024\n")
    assert_says(checks.look_at_kernel_limits(mounted), Level.OK, "raised")


def test_descriptors_of_other_users(machine: Machine) -> None:
    """README, doctor: whether other users' /proc/PID/fdinfo can be read."""
    assert_says(checks.look_at_descriptors(machine), Level.OK, "readable")
    for path in (machine.proc / "77/fdinfo/0", machine.proc / "77/fdinfo"):
        path.unlink() if path.is_file() else path.rmdir()
    assert_says(checks.look_at_descriptors(machine), Level.WARN, "not readable")
    (machine.proc / "77").rmdir()
    assert_says(checks.look_at_descriptors(machine), Level.OK, "no process")
    gone = replace(machine, proc=machine.proc / "none")
    assert_says(checks.look_at_descriptors(gone), Level.WARN, "No such file")


def test_the_state_directory(machine: Machine, tmp_path: Path) -> None:
    finding = checks.look_at_state_directory(machine)
    assert finding.level in (Level.OK, Level.WARN)  # WARN: this disk is nearly full
    assert "free" in finding.detail
    (tmp_path / "file").touch()
    blocked = replace(machine, state_dir=tmp_path / "file/state")
    assert_says(checks.look_at_state_directory(blocked), Level.FAIL, "Not a directory")


# The store


async def findings_of(store: ScriptedStore | MemoryStore) -> dict[str, Finding]:
    return {finding.subject: finding async for finding in look_at_bucket(store, SOURCE)}


async def test_a_store_that_can_all_passes_and_is_left_as_it_was(
    store: ScriptedStore, memory: MemoryStore
) -> None:
    found = await findings_of(store)
    assert list(found) == ["list", "write", "read", "conditional writes", "remove"]
    assert {finding.level for finding in found.values()} == {Level.OK}
    assert (await memory.list_page("", delimited=False)).objects == []


async def test_what_is_interrupted_leaves_no_object(memory: MemoryStore) -> None:
    findings = look_at_bucket(memory, SOURCE)
    assert isinstance(findings, AsyncGenerator)
    while (await anext(findings)).subject != "write":
        pass
    with pytest.raises(KeyboardInterrupt):
        await findings.athrow(KeyboardInterrupt())
    assert (await memory.list_page("", delimited=False)).objects == []


async def test_a_bucket_that_cannot_be_listed(store: ScriptedStore) -> None:
    store.fail("LIST", AccessDenied("p/", "AccessDenied"))
    found = await findings_of(store)
    assert list(found) == ["list"]
    assert_says(found["list"], Level.FAIL, "AccessDenied")
    assert "s3:ListBucket" in found["list"].mend


async def test_a_bucket_that_cannot_be_written_may_still_be_read(
    store: ScriptedStore, memory: MemoryStore
) -> None:
    await memory.put(Key("p/a"), b"x")
    store.fail("PUT", AccessDenied("p/", "AccessDenied"))
    found = await findings_of(store)
    assert_says(found["write"], Level.FAIL, "AccessDenied")
    assert "--read-only" in found["write"].mend
    assert_says(found["read"], Level.OK, "p/a")


async def test_an_empty_bucket_that_cannot_be_written_cannot_be_tried(store: ScriptedStore) -> None:
    store.fail("PUT", StoreRefused("p/", "501"))
    found = await findings_of(store)
    assert_says(found["write"], Level.FAIL, "501")
    assert_says(found["read"], Level.WARN, "nothing there")


async def test_a_bucket_that_cannot_be_read(store: ScriptedStore, memory: MemoryStore) -> None:
    store.fail("GET", AccessDenied("p/", "AccessDenied"))
    assert_says((await findings_of(store))["read"], Level.FAIL, "AccessDenied")
    await memory.put(Key("p/a"), b"x")
    store.fail("PUT", AccessDenied("p/", "AccessDenied"))
    store.fail("GET", AccessDenied("p/", "AccessDenied"))
    assert_says((await findings_of(store))["read"], Level.FAIL, "AccessDenied")


async def test_a_store_that_damages_bytes(memory: MemoryStore) -> None:
    class Damages(ScriptedStore):
        async def get(self, key: Key, start: int, stop: int, **_: object) -> Fetched:  # type: ignore[override]
            found = await memory.get(key, start, stop)
            assert isinstance(found, Fetched)
            return replace(found, data=b"other!")

    assert_says((await findings_of(Damages(memory)))["read"], Level.FAIL, "other bytes")


@pytest.mark.parametrize("ignored", ["If-None-Match", "If-Match"])
async def test_a_store_that_ignores_conditions(memory: MemoryStore, ignored: str) -> None:
    class Ignores(ScriptedStore):
        async def put(  # type: ignore[override]
            self, key: Key, body: bytes, *, condition: Condition = None, **_: object
        ) -> ETag:
            is_match = isinstance(condition, str)
            heeded = None if is_match == (ignored == "If-Match") else condition
            return await memory.put(key, body, condition=heeded)

    finding = (await findings_of(Ignores(memory)))["conditional writes"]
    assert_says(finding, Level.WARN, f"{ignored} is ignored")


async def test_conditions_that_cannot_be_tried(store: ScriptedStore) -> None:
    store.fail("PUT", StoreRefused("p/", "501"), skip=1)
    assert_says((await findings_of(store))["conditional writes"], Level.FAIL, "501")


async def test_an_object_that_cannot_be_removed(store: ScriptedStore) -> None:
    store.fail("DELETE", AccessDenied("p/", "AccessDenied"))
    finding = (await findings_of(store))["remove"]
    assert_says(finding, Level.FAIL, "AccessDenied")
    assert "remove p/.ucfuse-probe-" in finding.mend


@pytest.mark.parametrize(
    ("skew_s", "level", "word"),
    [
        (None, Level.OK, "does not tell"),
        (-3.0, Level.OK, "3 s behind"),
        (120.0, Level.WARN, "120 s ahead"),
        (-900.0, Level.FAIL, "900 s behind"),
    ],
)
def test_the_clock(skew_s: float | None, level: Level, word: str) -> None:
    assert_says(look_at_clock(skew_s), level, word)


@contextmanager
def server_whose_answer_has(head: str) -> Iterator[str]:
    """Serve one request; yield the address."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(f"HTTP/1.1 403 No\r\n{head}Content-Length: 0\r\n\r\n".encode())

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        thread.join(10)


async def test_the_time_of_a_store_is_in_its_answer() -> None:
    an_hour_ahead = formatdate(time.time() + 3600, usegmt=True)
    with server_whose_answer_has(f"Date: {an_hour_ahead}\r\n") as url:
        skew_s = await clock_skew_s(SOURCE, StoreOptions(endpoint_url=url))
    assert skew_s is not None
    assert -3605 < skew_s < -3590


@pytest.mark.parametrize("head", ["", "Date: soon\r\n"])
async def test_a_store_may_tell_no_time(head: str) -> None:
    with server_whose_answer_has(head) as url:
        assert await clock_skew_s(SOURCE, StoreOptions(endpoint_url=url)) is None
    assert await clock_skew_s(Source(None), StoreOptions()) is None


async def test_missing_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))

    for source, level in ((None, Level.WARN), (SOURCE, Level.FAIL)):
        (finding,) = [each async for each in examine_store(source, StoreOptions())]
        assert_says(finding, level, "none found")
        assert "AWS_PROFILE" in finding.mend
