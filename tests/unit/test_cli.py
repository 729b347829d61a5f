"""The command line without a mount: options, places, what is printed, exit codes."""

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ucfuse import __main__
from ucfuse.cli import default_paths
from ucfuse.cli.launch import launch
from ucfuse.cli.main import main
from ucfuse.cli.mount_request import MountRequest, parse_mount
from ucfuse.config import Source
from ucfuse.control import _listen
from ucfuse.errors import ConfigError
from ucfuse.portability import Emulation
from ucfuse.registry import MountRecord, connect, list_records, write_record

ENVIRONMENT = {"XDG_STATE_HOME": "/state", "XDG_DATA_HOME": "/data"}


def parse(*arguments: str) -> MountRequest:
    return parse_mount(arguments, ENVIRONMENT)


# Options


def test_source_and_mount_point_may_stand_among_options() -> None:
    request = parse("--read-only", "s3://bucket/a", "--region=eu", "/mnt", "--foreground")

    assert request.config.source == Source("bucket", "a/")
    assert request.config.mountpoint == Path("/mnt")
    assert request.config.read_only
    assert request.config.store.region == "eu"
    assert request.foreground
    assert not request.dev


@pytest.mark.parametrize("mode", [Emulation.DATABRICKS, Emulation.SERVERLESS])
def test_a_strict_mode_decides_owner_and_modes(mode: Emulation) -> None:
    config = parse(f"--emulate={mode.value}", "memory:", "/mnt").config

    assert config.emulation is mode
    assert (config.uid, config.gid) == (65534, 65534)
    assert (config.file_mode, config.dir_mode) == (0o777, 0o777)
    assert config.metadata_ttl_s <= 1


@pytest.mark.parametrize("option", ["--uid=0", "--gid=1", "--file-mode=644", "--metadata-ttl=2s"])
def test_a_strict_mode_leaves_no_choice(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse("--emulate=databricks", option, "memory:", "/mnt")

    assert ended.value.code == 2
    assert "--emulate databricks" in capsys.readouterr().err


def test_without_a_mode_everything_is_ours_and_works() -> None:
    config = parse("memory:", "/mnt").config

    assert config.emulation is Emulation.POSIX
    assert (config.uid, config.gid) == (os.getuid(), os.getgid())
    assert (config.file_mode, config.dir_mode) == (0o755, 0o755)
    assert not config.hardlinks_copy
    assert parse("--hardlinks=copy", "memory:", "/mnt").config.hardlinks_copy


def test_dev_needs_a_mount_point_alone() -> None:
    request = parse("--dev", "/mnt")

    assert request.dev
    assert request.config.source.bucket


def test_every_option_reaches_the_configuration() -> None:
    config = parse(
        *("--endpoint-url=http://h", "--region=r", "--profile=p", "--no-sign-request"),
        *("--allow-other", "--uid=1", "--gid=2", "--file-mode=640", "--dir-mode=750"),
        *("--metadata-ttl=250ms", "--memory-limit=64MiB", "--state-dir=/s"),
        "--freshness=2s",
        *("--metadata-timeout=1s", "--read-timeout=2s", "--commit-timeout=1h"),
        *("--disk-cache=2GiB", "--cache-dir=/c"),
        *("--log-level=debug", "memory:", "/mnt"),
    ).config

    store = config.store
    assert (store.endpoint_url, store.region, store.profile) == ("http://h", "r", "p")
    assert not store.sign_requests
    assert (config.uid, config.gid, config.file_mode, config.dir_mode) == (1, 2, 0o640, 0o750)
    assert (config.metadata_ttl_s, config.memory_limit_bytes) == (0.25, 64 << 20)
    assert config.freshness_s == 2.0
    assert config.state_dir == Path("/s")
    assert (config.metadata_timeout_s, config.read_timeout_s) == (1.0, 2.0)
    assert config.commit_timeout_s == 3600.0
    assert (config.disk_cache_bytes, config.cache_dir) == (2 << 30, Path("/c"))
    assert config.log_level == "debug"
    assert config.allow_other


def test_defaults_are_those_of_the_user_who_mounts() -> None:
    config = parse("memory:", "/mnt").config

    assert (config.uid, config.gid) == (os.getuid(), os.getgid())
    assert config.allow_other == (os.geteuid() == 0)
    assert config.state_dir == Path("/state/ucfuse")
    assert 0 < config.memory_limit_bytes <= 1 << 30
    assert not parse("--no-allow-other", "memory:", "/mnt").config.allow_other
    assert config.disk_cache_bytes is None
    assert parse("--disk-cache=1GiB", "memory:", "/mnt").config.cache_dir is not None


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["/mnt"],
        ["s3://bucket"],
        ["bucket", "/mnt"],
        ["s3://bucket", "/mnt", "/more"],
        ["--dev", "s3://bucket", "/mnt"],
        ["--dev", "--endpoint-url=http://h", "/mnt"],
        ["--metadata-ttl=5", "memory:", "/mnt"],
        ["--memory-limit=512MB", "memory:", "/mnt"],
        ["--file-mode=888", "memory:", "/mnt"],
        ["--file-mode=7777", "memory:", "/mnt"],
        ["--uid=me", "memory:", "/mnt"],
        ["--log-level=loud", "memory:", "/mnt"],
        ["--metadata=5s", "memory:", "/mnt"],
        ["--disk-cache=1MiB", "memory:", "/mnt"],
        ["--cache-dir=/c", "memory:", "/mnt"],
        ["--disk-cache=1GiB", "--cache-dir=/mnt/c", "memory:", "/mnt"],
    ],
)
def test_command_line_that_makes_no_sense_exits_with_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["mount", *arguments])

    assert exit_.value.code == 2
    assert "Traceback" not in capsys.readouterr().err


def test_reason_for_a_refused_option_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse("--memory-limit=512MB", "memory:", "/mnt")

    assert "512MiB" in capsys.readouterr().err


# Places


def test_places_follow_the_xdg_directories() -> None:
    assert default_paths.state_dir(ENVIRONMENT) == Path("/state/ucfuse")
    assert default_paths.data_dir(ENVIRONMENT) == Path("/data/ucfuse/dev")


def test_relative_xdg_directory_is_ignored() -> None:
    assert default_paths.state_dir({"XDG_STATE_HOME": "here"}) == default_paths.state_dir({})
    assert default_paths.data_dir({"XDG_DATA_HOME": "here"}) == default_paths.data_dir({})


def test_private_directory_is_for_its_owner_alone(tmp_path: Path) -> None:
    default_paths.make_private(tmp_path / "a")

    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o700


def test_directory_that_cannot_be_made_is_an_error_with_a_mend(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(ConfigError, match="--state-dir"):
        default_paths.make_private(tmp_path / "file" / "a")


# Status and umount, with a daemon that answers from a script


class ScriptedDaemon:
    """A thread that answers every connection with the same bytes; None: not at all."""

    def __init__(self, runtime_dir: Path, record: MountRecord, answer: bytes | None) -> None:
        runtime_dir.mkdir(parents=True, exist_ok=True)
        self._listening = _listen(runtime_dir, record.mountpoint)
        self._answer = answer
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        write_record(runtime_dir, record)

    def _serve(self) -> None:
        while True:
            connection, _ = self._listening.accept()
            with connection:
                if connection.recv(4096) == b"end":
                    return
                if self._answer is None:
                    connection.recv(1)  # until the client gives up
                else:
                    connection.sendall(self._answer)

    def end(self, runtime_dir: Path, mountpoint: str) -> None:
        with connect(runtime_dir, mountpoint, 5.0) as connection:
            connection.sendall(b"end")
        self._thread.join()
        self._listening.close()


StartDaemon = Callable[[bytes | None], MountRecord]


@pytest.fixture
def runtime_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return default_paths.runtime_dir(os.environ)


@pytest.fixture
def start_daemon(runtime_dir: Path, tmp_path: Path) -> Iterator[StartDaemon]:
    daemons: list[tuple[ScriptedDaemon, str]] = []

    def start(answer: bytes | None) -> MountRecord:
        record = MountRecord(
            mountpoint=str(tmp_path / "mnt"),
            source="s3://bucket/",
            pid=os.getpid(),
            version="1",
            commit_timeout_s=1.0,
        )
        daemons.append((ScriptedDaemon(runtime_dir, record, answer), record.mountpoint))
        return record

    yield start
    for daemon, mountpoint in daemons:
        daemon.end(runtime_dir, mountpoint)


def line(**reply: Any) -> bytes:
    return json.dumps(reply).encode() + b"\n"


STATUS = {
    "mountpoint": "/mnt",
    "source": "s3://bucket/",
    "version": "1",
    "pid": 7,
    "uptime_s": 303.5,
    "store_requests": {"GET": 3, "LIST": 0},
    "store_bytes_sent": 0,
    "store_bytes_received": 5 << 20,
    "skipped_keys": 2,
    "fuse_requests": {"LOOKUP": 4},
    "memory": {"limit_bytes": 1 << 30, "reserved_bytes": 1 << 20},
    "disk_cache": {
        "limit_bytes": 1 << 30,
        "used_bytes": 3 << 20,
        "hits": 21,
        "misses": 22,
        "bytes_read": 4 << 20,
        "bytes_written": 6 << 20,
    },
    "uncommitted": [{"path": "/a", "bytes": 10, "age_s": 12.0, "error": "denied"}],
    "kept": 7,
    "warnings": ["slow"],
}


@pytest.mark.usefixtures("runtime_dir")
def test_status_without_mounts_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status"]) == 0
    assert main(["status", "--json"]) == 0

    assert capsys.readouterr().out == "no mounts\n[]\n"


def test_status_prints_what_the_daemon_says(
    start_daemon: StartDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    record = start_daemon(line(**STATUS))

    assert main(["status"]) == 0
    text = capsys.readouterr().out
    for part in ("up 5m03s", "GET 3", "5.0MiB received", "1.0MiB of 1.0GiB", "2 keys", "denied"):
        assert part in text
    assert "LIST" not in text
    assert "7 files" in text
    assert "3.0MiB of 1.0GiB; hits 21, misses 22; 4.0MiB read, 6.0MiB written" in text
    assert main(["status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{**STATUS, "mountpoint": record.mountpoint}]


def test_status_lists_volumes_and_says_which_is_away(
    start_daemon: StartDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    """README, Many volumes: `status` shows them."""
    volume = {"name": "a.b.c", "source": "s3://b/", "read_only": True, "is_away": False}
    away = {"name": "a.b.d", "source": "s3://d/", "read_only": False, "is_away": True}
    start_daemon(line(**STATUS, volumes=[volume, away]))

    assert main(["status"]) == 0
    text = capsys.readouterr().out
    assert "a.b.c is s3://b/, read-only" in text
    assert "away       s3://d/" in text
    assert text.count("away") == 1


def test_volumes_take_one_place_and_their_file_is_read_at_once(tmp_path: Path) -> None:
    path = tmp_path / "volumes.toml"
    path.write_text('[volumes."a.b.c"]\nsource = "s3://bucket"\n')
    request = parse("--volumes", str(path), "/Volumes", "--region=eu")
    assert [volume.name for volume in request.config.volumes] == ["a.b.c"]
    assert request.config.volumes[0].store.region == "eu"
    assert request.config.label == str(path)
    for nonsense in (("--volumes", str(path)), ("--volumes", str(path), "s3://b", "/mnt")):
        with pytest.raises(SystemExit):
            parse(*nonsense)
    with pytest.raises(SystemExit):
        parse("--dev", "--volumes", str(path), "/mnt")
    with pytest.raises(ConfigError, match="No such file"):
        parse("--volumes", str(tmp_path / "none"), "/mnt")


def test_daemon_that_does_not_answer_is_shown_and_fails_the_command(
    start_daemon: StartDaemon, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ucfuse.cli.client.ANSWER_TIMEOUT_S", 0.05)
    record = start_daemon(None)

    assert main(["status", "--json"]) == 1
    (shown,) = json.loads(capsys.readouterr().out)
    assert shown["mountpoint"] == record.mountpoint
    assert "does not answer" in shown["problem"]


def test_record_of_a_mount_that_is_gone_disappears(
    runtime_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runtime_dir.mkdir(parents=True)
    record = MountRecord(
        mountpoint=str(tmp_path / "mnt"),
        source="memory:",
        pid=os.getpid(),
        version="1",
        commit_timeout_s=1.0,
        boot_id="an earlier one",
    )
    write_record(runtime_dir, record)

    assert main(["status"]) == 0

    assert capsys.readouterr().out == "no mounts\n"
    assert list_records(runtime_dir) == []


@pytest.mark.usefixtures("runtime_dir")
def test_umount_of_a_plain_directory_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["umount", str(tmp_path)]) == 1

    (error,) = capsys.readouterr().err.splitlines()
    assert error.startswith(f"ucfuse: {tmp_path}: not a ucfuse mount")


def test_umount_prints_each_thing_that_it_waits_for_once(
    start_daemon: StartDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    file = {"path": "/a", "bytes": 1 << 20, "age_s": 1.0, "error": None}
    waiting = line(waiting=[file]) + line(waiting=[file]) + line(waiting=[])
    record = start_daemon(waiting + line(refused="busy", users=[{"pid": 7, "command": "vi"}]))

    assert main(["umount", record.mountpoint]) == 1

    said = capsys.readouterr()
    assert said.out == "waiting for /a to be committed (1.0MiB)\n"
    assert "busy: in use by process 7 (vi)" in said.err


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (line(unsaved=[{"path": "/a", "error": "denied"}]), "/a: denied"),
        (line(refused="busy: another user's", users=[]), "another user's"),
        (line(error="unknown command"), "still mounted"),
        (b"", "still mounted"),
        (b"not JSON\n", "does not answer"),
    ],
)
def test_umount_that_did_not_happen_says_why_in_one_line(
    start_daemon: StartDaemon, capsys: pytest.CaptureFixture[str], answer: bytes, reason: str
) -> None:
    record = start_daemon(answer)

    assert main(["umount", record.mountpoint]) == 1

    (error,) = capsys.readouterr().err.splitlines()
    assert reason in error


# The daemon leaves the terminal. These fork, and the child never returns into pytest.


def launch_here(serve: Callable[[Callable[[], None]], int], log_file: Path) -> int:
    parent = os.getpid()
    try:
        return launch(serve, log_file, "info")
    finally:
        if os.getpid() != parent:
            os._exit(0)


def test_command_returns_when_the_mount_is_usable_and_the_daemon_stays(tmp_path: Path) -> None:
    ended, end = os.pipe()

    def serve(on_usable: Callable[[], None]) -> int:
        (tmp_path / "pid").write_text(str(os.getpid()))
        on_usable()
        os.read(ended, 1)
        os.write(1, b"the daemon's last words")
        return 0

    assert launch_here(serve, tmp_path / "log") == 0

    os.write(end, b"x")
    os.waitpid(int((tmp_path / "pid").read_text()), 0)
    os.close(ended)
    os.close(end)
    assert "last words" in (tmp_path / "log").read_text()


def test_reason_why_the_daemon_cannot_serve_reaches_the_terminal(tmp_path: Path) -> None:
    def serve(on_usable: Callable[[], None]) -> int:
        raise ConfigError("s3://bucket: no such bucket; create it")

    with pytest.raises(ConfigError, match="no such bucket"):
        launch_here(serve, tmp_path / "log")


def test_daemon_that_dies_at_start_is_an_error_that_names_the_log(tmp_path: Path) -> None:
    def serve(on_usable: Callable[[], None]) -> int:
        os.kill(os.getpid(), signal.SIGKILL)
        return 0

    with pytest.raises(ConfigError, match=f"signal 9.*{tmp_path / 'log'}"):
        launch_here(serve, tmp_path / "log")


def test_log_that_cannot_be_written_is_an_error_with_its_path(tmp_path: Path) -> None:
    def serve(on_usable: Callable[[], None]) -> int:
        return 0

    with pytest.raises(ConfigError, match="missing/log"):
        launch_here(serve, tmp_path / "missing/log")


@pytest.mark.parametrize(
    ("begin", "module", "code"),
    [
        (__main__.main, "ucfuse.cli.main", 130),
        (__main__.mount_ucfuse, "ucfuse.cli.mounthelper", 8),
    ],
)
def test_ctrl_c_before_anything_has_begun_is_one_line(
    begin: Callable[[], int],
    module: str,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """README, Options: exit codes; a command takes some tenths of a second to be imported."""

    class Interrupting:
        def find_spec(self, name: str, *_: object) -> None:
            if name == module:
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupting(), *sys.meta_path])
    assert begin() == code
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("ucfuse: interrupted before it began")
