"""The control socket: what a client hears, and what becomes of records whose daemon has died."""

import json
import os
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from ucfuse.cli.client import Silent, ask
from ucfuse.control import ControlServer, Refusal, User
from ucfuse.errors import ConfigError
from ucfuse.fs.caller import Uncommitted
from ucfuse.registry import MountRecord, connect, find_record, forget_record, list_records

MOUNTPOINT = "/Volumes/main/default/demo"
DIRTY = Uncommitted("/a", 3, 1.0, None)


class FakeMount:
    """A mount that commits when it is told to, and unmounts unless it is in use."""

    def __init__(self) -> None:
        self.in_use_by: list[User] = []
        self.commits_now = trio.Event()
        self.commits_now.set()
        self.cannot_commit: list[Uncommitted] = []
        self.refusal: Refusal | None = None
        self.mounted = True
        self.broken = False

    def status(self) -> dict[str, object]:
        if self.broken:
            raise RuntimeError("a bug")
        return {"mountpoint": MOUNTPOINT, "uncommitted": []}

    async def users(self) -> Sequence[User]:
        return self.in_use_by

    async def commit_all(
        self, on_wait: Callable[[list[Uncommitted]], None]
    ) -> Sequence[Uncommitted]:
        on_wait([DIRTY])
        await self.commits_now.wait()
        return self.cannot_commit

    async def unmount(self, *, lazy: bool = False) -> Refusal | None:
        self.mounted = self.refusal is not None
        return self.refusal

    async def abort(self) -> int:
        return 3

    def file(self, number: int) -> dict[str, object]:
        return {"inode": number}


def record_of(mountpoint: str = MOUNTPOINT, pid: int | None = None, **changes: Any) -> MountRecord:
    return MountRecord(
        mountpoint=mountpoint,
        source="memory:",
        pid=os.getpid() if pid is None else pid,
        version="1",
        commit_timeout_s=300.0,
        **changes,
    )


def ended_process() -> int:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return pid


@asynccontextmanager
async def serving(runtime_dir: Path, mount: FakeMount) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        control = ControlServer(runtime_dir, record_of(), mount, nursery)
        control.open()
        try:
            yield
        finally:
            await control.aclose()
            nursery.cancel_scope.cancel()


async def replies(runtime_dir: Path, command: str, **more: object) -> list[dict[str, Any]]:
    return await trio.to_thread.run_sync(
        lambda: list(ask(runtime_dir, record_of(), command, **more)), abandon_on_cancel=True
    )


async def test_abort_and_file_are_answered_by_the_mount(tmp_path: Path) -> None:
    async with serving(tmp_path, FakeMount()):
        assert await replies(tmp_path, "abort") == [{"ended": 3}]
        assert await replies(tmp_path, "file", inode=7) == [{"inode": 7}]
        (answer,) = await replies(tmp_path, "file")
        assert "error" in answer


async def test_a_lazy_unmount_of_a_busy_mount_leaves_its_name_to_others(tmp_path: Path) -> None:
    """README, umount --lazy: the mount point is free at once, and the daemon is still shown."""
    mount = FakeMount()
    mount.in_use_by = [User(12, "python")]
    async with serving(tmp_path, mount):
        (answer,) = await replies(tmp_path, "umount", lazy=True)
        assert answer == {"unmounted": True, "users": [{"pid": 12, "command": "python"}]}
        assert not mount.mounted
        assert find_record(tmp_path, MOUNTPOINT) is None
        (record,) = list_records(tmp_path)
        assert record.mountpoint.startswith(f"{MOUNTPOINT} (detached")
        status = partial(ask, tmp_path, record, "status")
        assert await trio.to_thread.run_sync(lambda: list(status())) == [mount.status()]
        async with serving(tmp_path, FakeMount()):
            assert len(list_records(tmp_path)) == 2
    assert list_records(tmp_path) == []


async def test_a_refused_lazy_unmount_keeps_its_name(tmp_path: Path) -> None:
    mount = FakeMount()
    mount.refusal = Refusal("not permitted")
    async with serving(tmp_path, mount):
        (answer,) = await replies(tmp_path, "umount", lazy=True)
        assert answer["refused"] == "not permitted"
        assert find_record(tmp_path, MOUNTPOINT) is not None


async def test_status_is_what_the_mount_says(tmp_path: Path) -> None:
    mount = FakeMount()
    async with serving(tmp_path, mount):
        answers = await replies(tmp_path, "status")

    assert answers == [mount.status()]


async def test_long_path_of_the_runtime_directory_does_not_matter(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 120)
    async with serving(deep, FakeMount()):
        answers = await replies(deep, "status")

    assert len(answers) == 1


async def test_only_the_owner_may_connect(tmp_path: Path) -> None:
    async with serving(tmp_path / "run", FakeMount()):
        modes = {
            entry.suffix: entry.stat().st_mode & 0o777 for entry in (tmp_path / "run").iterdir()
        }
        directory_mode = (tmp_path / "run").stat().st_mode & 0o777

    assert modes[".sock"] == 0o600
    assert directory_mode == 0o700


async def test_umount_commits_and_unmounts(tmp_path: Path) -> None:
    mount = FakeMount()
    async with serving(tmp_path, mount):
        answers = await replies(tmp_path, "umount")

    assert answers == [{"unmounted": True}]
    assert not mount.mounted


async def test_umount_tells_what_it_waits_for(tmp_path: Path) -> None:
    mount = FakeMount()
    mount.commits_now = trio.Event()
    async with serving(tmp_path, mount):
        with await trio.to_thread.run_sync(partial(connect, tmp_path, MOUNTPOINT, 5.0)) as client:
            client.sendall(b'{"command": "umount"}\n')
            first = await trio.to_thread.run_sync(client.recv, 4096)
            mount.commits_now.set()
            last = await trio.to_thread.run_sync(client.recv, 4096)

    waiting = json.loads(first)["waiting"]
    assert [file["path"] for file in waiting] == ["/a"]
    assert json.loads(last.splitlines()[-1]) == {"unmounted": True}


async def test_umount_of_a_mount_in_use_names_the_processes(tmp_path: Path) -> None:
    mount = FakeMount()
    mount.in_use_by = [User(7, "python")]
    async with serving(tmp_path, mount):
        (answer,) = await replies(tmp_path, "umount")

    assert answer == {"refused": "busy", "users": [{"pid": 7, "command": "python"}]}
    assert mount.mounted


async def test_umount_that_the_kernel_refuses_says_why(tmp_path: Path) -> None:
    mount = FakeMount()
    mount.refusal = Refusal("busy: somebody else")
    async with serving(tmp_path, mount):
        (answer,) = await replies(tmp_path, "umount")

    assert answer == {"refused": "busy: somebody else", "users": []}


async def test_mount_with_a_file_that_cannot_be_committed_stays(tmp_path: Path) -> None:
    mount = FakeMount()
    mount.cannot_commit = [Uncommitted("/a", 3, 1.0, "denied")]
    async with serving(tmp_path, mount):
        (answer,) = await replies(tmp_path, "umount")

    assert answer["unsaved"][0]["error"] == "denied"
    assert mount.mounted


async def test_client_that_leaves_while_it_waits_leaves_the_mount_mounted(tmp_path: Path) -> None:
    mount = FakeMount()
    mount.commits_now = trio.Event()
    async with serving(tmp_path, mount):
        with await trio.to_thread.run_sync(partial(connect, tmp_path, MOUNTPOINT, 5.0)) as client:
            client.sendall(b'{"command": "umount"}\n')
            await trio.to_thread.run_sync(client.recv, 4096)
        # `serving` ends when the connection has: its next word finds nobody.

    assert mount.mounted


@pytest.mark.parametrize("request_line", [b"nonsense\n", b"[]\n", b'{"command": "dance"}\n'])
async def test_unknown_command_is_answered_with_an_error(
    tmp_path: Path, request_line: bytes
) -> None:
    async with serving(tmp_path, FakeMount()):
        with await trio.to_thread.run_sync(partial(connect, tmp_path, MOUNTPOINT, 5.0)) as client:
            client.sendall(request_line)
            answer = await trio.to_thread.run_sync(client.recv, 4096)

    assert "error" in json.loads(answer)


async def test_bug_in_an_answer_does_not_end_the_mount(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mount = FakeMount()
    async with serving(tmp_path, mount):
        mount.broken = True
        nothing = await replies(tmp_path, "status")
        mount.broken = False
        answers = await replies(tmp_path, "status")

    assert nothing == []
    assert len(answers) == 1
    assert "a bug" in caplog.text


async def test_second_daemon_for_a_mount_point_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path, FakeMount()), trio.open_nursery() as nursery:
        second = ControlServer(tmp_path, record_of(), FakeMount(), nursery)
        with pytest.raises(ConfigError, match="already"):
            second.open()
        answers = await replies(tmp_path, "status")

    assert len(answers) == 1


async def test_socket_of_a_dead_daemon_is_replaced(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        async with serving(tmp_path, FakeMount()):
            (name,) = [name for name in os.listdir(tmp_path) if name.endswith(".sock")]
        dead.bind(str(tmp_path / name))

    async with serving(tmp_path, FakeMount()):
        answers = await replies(tmp_path, "status")

    assert len(answers) == 1


async def test_nothing_is_left_of_a_mount_that_ended(tmp_path: Path) -> None:
    async with serving(tmp_path, FakeMount()):
        found = list_records(tmp_path)

    assert found == [record_of()]
    assert os.listdir(tmp_path) == []
    with pytest.raises(Silent):
        await replies(tmp_path, "status")


def leave_record(runtime_dir: Path, record: MountRecord) -> None:
    """Leave what a daemon leaves that was killed."""

    async def open_and_forget_to_close() -> None:
        async with trio.open_nursery() as nursery:
            ControlServer(runtime_dir, record, FakeMount(), nursery).open()
            nursery.cancel_scope.cancel()

    trio.run(open_and_forget_to_close)


def test_record_of_a_dead_daemon_is_found_until_it_is_forgotten(tmp_path: Path) -> None:
    record = record_of(pid=ended_process())
    leave_record(tmp_path, record)

    found = find_record(tmp_path, MOUNTPOINT)
    assert found == record
    assert not record.may_be_running()

    forget_record(tmp_path, record)
    assert find_record(tmp_path, MOUNTPOINT) is None
    assert list(tmp_path.iterdir()) == []


def test_record_that_another_daemon_took_over_is_not_forgotten(tmp_path: Path) -> None:
    leave_record(tmp_path, record_of())

    forget_record(tmp_path, record_of(pid=ended_process()))

    assert find_record(tmp_path, MOUNTPOINT) == record_of()


def test_process_number_of_an_earlier_boot_means_nothing(tmp_path: Path) -> None:
    assert record_of().may_be_running()
    assert not record_of(boot_id="another").may_be_running()


def test_mounts_of_other_hosts_with_the_same_home_are_not_listed(tmp_path: Path) -> None:
    leave_record(tmp_path, record_of(host="elsewhere"))
    leave_record(tmp_path, record_of("/mnt/here"))

    assert [record.mountpoint for record in list_records(tmp_path)] == ["/mnt/here"]


def test_record_of_another_version_in_another_form_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"mountpoint": "/mnt"}')
    (tmp_path / "y.json").write_text("not even JSON")

    assert list_records(tmp_path) == []
