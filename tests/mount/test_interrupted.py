"""Ctrl-C while a command works: one line says so, and nothing is half-done. Cells of `mistakes`."""

import json
import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.servers.server import Server
from ucfuse.registry import MountRecord, short_path, write_record

from .conftest import Scopes
from .faultproxy import FaultProxy, Link
from .harness import Mount, MountVolume, is_mounted
from .mistakes import (
    Cell,
    Never,
    Table,
    Words,
    call,
    cells_of,
    interrupt,
    processes_naming,
    started,
)
from .programs import Conversation, eventually, start_python

CODE = 130
MOUNTS_NOTHING = "interrupted; nothing was mounted"
AGAIN = Words("interrupted; run it again", CODE)
REPEAT = Words("interrupted; 0 files were copied, repeat it", CODE)

# A store that never answers holds these up.
SILENT_STORE: Table = {
    "mount": [
        Cell(["s3://mounts", "{tmp}/mnt"], Words(f"mount {MOUNTS_NOTHING}", CODE)),
        Cell(
            ["--catalog-url", "{url}", "{tmp}/mnt"],
            Words(f"mount {MOUNTS_NOTHING}", CODE),
            "of a catalog",
        ),
    ],
    "doctor": [Cell(["s3://mounts"], Words("interrupted; run it again", CODE, after_report=True))],
    "cp": [
        Cell(["--quiet", "s3://mounts/f", "{tmp}/d"], REPEAT),
    ],
    "sync": [
        Cell(["--quiet", "{tmp}/d", "s3://mounts/d"], REPEAT),
    ],
    "mount.ucfuse": [Cell(["s3://mounts", "{tmp}/mnt"], Words(MOUNTS_NOTHING, 8))],
}

# A daemon that never answers holds these up.
SILENT_DAEMON: Table = {
    "status": [
        Cell([], AGAIN),
        Cell(["--portability"], AGAIN, "portability"),
    ],
    "abort": [Cell(["{tmp}/mnt"], Words("abort interrupted; run it again", CODE))],
    "umount": [
        Cell(["{tmp}/mnt"], Words("`ucfuse status` says what is still mounted", CODE), "hung"),
    ],
}

# What an ended mount kept waits for a store that does not answer.
KEPT = Words("`ucfuse recover list` says what is still kept", CODE)
SILENT_RECOVERY: Table = {
    "recover": [
        Cell(["--state-dir", "{state}", "commit", "{new}"], KEPT, "commit"),
        Cell(["--state-dir", "{state}", "discard", "{new}"], KEPT, "discard"),
        Cell(["--state-dir", "{state}", "export", "{changed}", "{tmp}/out"], KEPT, "export"),
    ],
}

ELSEWHERE: Table = {
    "run": Never("test_a_script_that_runs_gets_ctrl_c_itself"),
    "completion": Never("it waits for nothing; of what all import: test_cli"),
}

CTRL_C: Table = {**SILENT_STORE, **SILENT_DAEMON, **SILENT_RECOVERY, **ELSEWHERE}


@contextmanager
def silent_server(port: int = 0) -> Iterator[socket.socket]:
    """A server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", port)) as silent:
        silent.settimeout(60)
        yield silent


@pytest.mark.parametrize(("command", "cell"), cells_of("ctrl-c", SILENT_STORE))
def test_a_store_that_never_answers(
    environment: dict[str, str], tmp_path: Path, command: str, cell: Cell
) -> None:
    (tmp_path / "mnt").mkdir()
    (tmp_path / "d").mkdir()
    (tmp_path / "d/f").write_bytes(b"x")
    with silent_server() as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        line = cell.line(command, {"tmp": tmp_path, "url": url})
        with started(line, {**environment, "AWS_ENDPOINT_URL": url}) as process:
            connection, _ = silent.accept()
            with connection:
                cell.words.check(interrupt(process))
    assert not is_mounted(tmp_path / "mnt")
    assert not list(processes_naming(tmp_path))
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == [
        "d", "d/f", "mnt",
    ]  # fmt: skip


@pytest.mark.parametrize(("command", "cell"), cells_of("ctrl-c", SILENT_DAEMON))
def test_a_daemon_that_never_answers(
    environment: dict[str, str], tmp_path: Path, command: str, cell: Cell
) -> None:
    runtime_dir = tmp_path / "ucfuse/run"
    runtime_dir.mkdir(parents=True)
    record = MountRecord(
        mountpoint=str(tmp_path / "mnt"),
        source="memory:",
        pid=os.getpid(),
        version="1",
        commit_timeout_s=60,
    )
    write_record(runtime_dir, record)
    with socket.socket(socket.AF_UNIX) as silent:
        with short_path(runtime_dir, record.mountpoint) as path:
            silent.bind(path)
        silent.listen()
        silent.settimeout(60)
        line = cell.line(command, {"tmp": tmp_path})
        with started(line, {**environment, "XDG_STATE_HOME": str(tmp_path)}) as process:
            connection, _ = silent.accept()
            with connection:
                cell.words.check(interrupt(process))


def _write_and_close(path: str) -> None:
    import sys

    with open(path, "wb", buffering=0) as file:
        file.write(b"precious")
        print("written", flush=True)  # noqa: T201
        sys.stdin.readline()


def writing(path: Path) -> Conversation:
    program = start_python(_write_and_close, path)
    assert program.hear() == "written"
    return program


def test_umount_that_waits_for_a_commit_leaves_the_mount_as_it_is(
    mount_volume: MountVolume, server: Server
) -> None:
    with FaultProxy(server.address) as proxy:
        mount = mount_volume(over={"AWS_ENDPOINT_URL": proxy.url})
        with writing(mount.path / "f") as program:
            proxy.become(Link.STALLS)
            program.say()
            eventually("the close", lambda: mount.status()["fuse_requests"].get("FLUSH"))
            line = [sys.executable, "-m", "ucfuse", "umount", mount.path]
            with started(line, mount.environment) as umount:
                assert umount.stdout is not None
                assert umount.stdout.readline().startswith("waiting for f to be committed")
                words = Words("`ucfuse status` says what is still mounted", CODE)
                words.check(interrupt(umount))
            proxy.become(Link.PASSES)
            program.end()
        assert is_mounted(mount.path)
        assert mount.bucket.get("f") == b"precious"
        (mount.path / "g").write_bytes(b"goes on")


@pytest.fixture(scope="module")
def ended(
    scratch: Path, environment: dict[str, str], scopes: Scopes, server: Server
) -> Iterator[tuple[Mount, int]]:
    """A mount that was killed with two files open, and the port at which its store was."""
    place = scopes.fresh()
    with FaultProxy(server.address) as proxy:
        over = {**scopes.environment(place), "AWS_ENDPOINT_URL": proxy.url}
        mount = Mount(place, Path(tempfile.mkdtemp(dir=scratch)), {**environment, **over})
        place.put("changed", b"base")
        mount.start()
        flags = {"new": os.O_CREAT | os.O_EXCL, "changed": os.O_APPEND}
        for name, how in flags.items():
            os.write(os.open(mount.path / name, os.O_WRONLY | how, 0o644), b" and more")
        mount.kill()
        proxy.become(Link.REFUSES)
        yield mount, proxy.port
        mount.close()


def kept(mount: Mount) -> dict[str, str]:
    """Return the names by which `recover` knows what was kept, by file."""
    line = [*(sys.executable, "-m", "ucfuse", "recover"), "--state-dir", mount.state_dir]
    done = call([*line, "list", "--json"], mount.environment)
    return {Path(entry["key"]).name: entry["name"] for entry in json.loads(done.stdout)}


@pytest.mark.parametrize(("command", "cell"), cells_of("ctrl-c", SILENT_RECOVERY))
def test_a_recovery_from_which_nothing_is_lost(
    ended: tuple[Mount, int], tmp_path: Path, command: str, cell: Cell
) -> None:
    mount, port = ended
    names = kept(mount)
    assert sorted(names) == ["changed", "new"]
    with silent_server(port) as silent:
        line = cell.line(command, {"tmp": tmp_path, "state": mount.state_dir, **names})
        with started(line, mount.environment) as process:
            connection, _ = silent.accept()
            with connection:
                cell.words.check(interrupt(process))
    assert kept(mount) == names
    assert mount.bucket.get("changed") == b"base"
    assert list(tmp_path.iterdir()) == []


def test_a_script_that_runs_gets_ctrl_c_itself(tmp_path: Path, environment: dict[str, str]) -> None:
    (tmp_path / "script.py").write_text(
        "import sys, time\n"
        "try:\n    print('up', flush=True)\n    time.sleep(60)\n"
        "except KeyboardInterrupt:\n    sys.exit(7)\n"
    )
    line = [sys.executable, "-m", "ucfuse", "run", tmp_path / "script.py"]
    with started(line, environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        done = interrupt(process)
    assert (done.returncode, done.stdout, done.stderr) == (7, "", "")
