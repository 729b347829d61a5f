"""Mount points: what is refused, what is created, how mount tables and users are read."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ucfuse.config import MountConfig, Source
from ucfuse.errors import ConfigError
from ucfuse.kernel.mountinfo import mounted_at, mounts_of, parse_mountinfo
from ucfuse.kernel.mountpoint import Health, health_of, our_mount_at, prepare, resolve, users_of
from ucfuse.kernel.session import mount_options
from ucfuse.kernel.tuning import tune

TABLE = rb"""22 1 253:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
61 22 0:52 / /Volumes/my\040data\134x rw,nosuid - fuse.ucfuse s3://b/p\040q/ rw,user_id=0
62 22 0:53 /sub /mnt ro,nodev master:3 propagate_from:1 - fuse.ucfuse memory: rw
"""


def test_mount_tables_are_read_with_their_escapes_and_optional_fields() -> None:
    _, volume, other = parse_mountinfo(TABLE)
    assert volume.target == Path("/Volumes/my data\\x")
    assert (volume.mount_id, volume.device) == (61, "0:52")
    assert (volume.fstype, volume.source) == ("fuse.ucfuse", "s3://b/p q/")
    assert (volume.read_only, other.read_only) == (False, True)
    assert other.source == "memory:"


def test_our_own_table_has_proc_and_its_own_process_sees_the_same() -> None:
    proc = mounted_at(Path("/proc"))
    assert proc is not None
    assert proc.fstype == "proc"
    assert proc in mounts_of(os.getpid())


def test_a_directory_that_is_no_mount_point_has_no_mount(tmp_path: Path) -> None:
    assert mounted_at(tmp_path) is None
    assert our_mount_at(Path("/proc")) is None


def test_an_empty_directory_is_fit(tmp_path: Path) -> None:
    assert prepare(tmp_path) == tmp_path.resolve()


def test_symbolic_links_lead_to_the_real_mount_point(tmp_path: Path) -> None:
    """The mount table knows real paths only."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "again").symlink_to(tmp_path / "link")
    assert prepare(tmp_path / "again") == (tmp_path / "real").resolve()
    assert resolve(Path("/")) == Path("/")


def test_a_missing_directory_is_created_below_volumes_only(tmp_path: Path) -> None:
    volumes = tmp_path / "Volumes"
    target = volumes / "main" / "default" / "demo"
    assert prepare(target, volumes_root=volumes) == target
    assert target.is_dir()
    with pytest.raises(ConfigError, match="mkdir -p"):
        prepare(tmp_path / "elsewhere", volumes_root=volumes)
    assert not (tmp_path / "elsewhere").exists()


def test_a_file_and_a_full_directory_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(ConfigError) as of_file:
        prepare(file)
    with pytest.raises(ConfigError) as of_directory:
        prepare(tmp_path)
    assert str(file) in str(of_file.value)
    assert "not empty" in str(of_directory.value)


def test_a_mount_that_answers_is_alive() -> None:
    assert health_of(Path("/proc")) is Health.ALIVE


def test_users_are_those_with_files_or_their_working_directory_below(tmp_path: Path) -> None:
    wait = "import sys; print(flush=True); sys.stdin.read()"
    (tmp_path / "inside").mkdir()
    held = (tmp_path / "file").open("wb")
    no_files: list[int] = []
    children = [
        subprocess.Popen(
            [sys.executable, "-c", wait],
            cwd=where,
            pass_fds=files,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for where, files in [
            (tmp_path / "inside", no_files),
            (Path("/"), [held.fileno()]),
            (Path("/"), no_files),
        ]
    ]
    held.close()
    try:
        for child in children:
            assert child.stdout is not None
            child.stdout.readline()  # it runs
        in_cwd, with_file, bystander = (child.pid for child in children)
        assert users_of(tmp_path.resolve()) == sorted([in_cwd, with_file])
        assert bystander not in users_of(tmp_path.resolve())
    finally:
        for child in children:
            child.communicate()


def test_a_name_that_only_begins_like_the_mount_point_is_not_below_it(tmp_path: Path) -> None:
    (tmp_path / "ab").mkdir()
    child = subprocess.Popen(["cat"], cwd=tmp_path / "ab", stdin=subprocess.PIPE)
    try:
        assert users_of(tmp_path / "a") == []
    finally:
        child.communicate()


def config(source: Source, *, read_only: bool = False, allow_other: bool = False) -> MountConfig:
    return MountConfig(
        source=source,
        mountpoint=Path("/mnt"),
        state_dir=Path("/state"),
        uid=0,
        gid=0,
        read_only=read_only,
        allow_other=allow_other,
    )


def test_options_carry_source_type_and_what_was_asked_for() -> None:
    assert mount_options(config(Source(None))) == {"fsname=memory:", "subtype=ucfuse"}
    assert mount_options(config(Source("b", "p/"), read_only=True, allow_other=True)) == {
        "fsname=s3://b/p/",
        "subtype=ucfuse",
        "ro",
        "allow_other",
    }


def test_options_are_plain_ascii_without_commas() -> None:
    """libfuse splits at commas: a prefix must not be able to smuggle an option in."""
    options = mount_options(config(Source("b", "ü,allow_other/")))
    assert options == {"fsname=s3://b/%C3%BC%2Callow_other/", "subtype=ucfuse"}


def test_tuning_writes_the_settings_of_our_mount(tmp_path: Path) -> None:
    bdi, connection = tmp_path / "class/bdi/0:52", tmp_path / "fs/fuse/connections/52"
    bdi.mkdir(parents=True)
    connection.mkdir(parents=True)
    assert tune("0:52", tmp_path) == []
    assert (bdi / "read_ahead_kb").read_text() == "1024\n"
    assert (connection / "max_background").read_text() == "1024\n"
    assert (connection / "congestion_threshold").read_text() == "1024\n"


def test_tuning_that_is_not_possible_is_a_warning_each(tmp_path: Path) -> None:
    warnings = tune("0:52", tmp_path / "nothing")
    assert len(warnings) == 3
    assert "read_ahead_kb" in warnings[0]
