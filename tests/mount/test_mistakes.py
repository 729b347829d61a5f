"""Mistakes of the machine and of people: one line says what is wrong and what mends it."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

import pytest

from tests.servers.identities import READER, credentials_of
from tests.servers.server import Server

from .conftest import Scopes
from .harness import ROOT, Mount, Volume, is_mounted, ucfuse
from .mistakes import (
    ALL_COMMANDS,
    Cell,
    Never,
    Table,
    Words,
    call,
    cells_of,
    ended,
    processes_naming,
    started,
)
from .mistakes_table import (
    DEAD,
    LOCKED,
    NO_MOUNT,
    NO_PERMISSION,
    NOT_OURS,
    READ_ONLY,
    WRONG_PATH,
)
from .test_interrupted import CTRL_C
from .witness import Bucket

CAP_DAC_READ_SEARCH = 2

# In a mount namespace of its own: a /dev with no fuse in it, or with one that nobody may open.
DEV_WITHOUT_FUSE = """
set -e
mount -t tmpfs none "$1"
for name in null zero random urandom; do
    touch "$1/$name"
    mount --bind "/dev/$name" "$1/$name"
done
mount --rbind "$1" /dev
shift
exec "$@"
"""


@pytest.fixture
def machine(scratch: Path) -> tuple[Path, Path]:
    """A mount point, and a directory that becomes /dev."""
    if os.geteuid() != 0:
        pytest.skip("only root makes a /dev without fuse")
    work = scratch / f"machine-{os.urandom(3).hex()}"
    for name in ("mnt", "dev"):
        (work / name).mkdir(parents=True)
    return work / "mnt", work / "dev"


def ucfuse_without_fuse(
    *arguments: str | Path, dev: Path, environment: dict[str, str]
) -> "subprocess.CompletedProcess[str]":
    """Run a command where `/dev` is the directory `dev`."""
    command = [sys.executable, "-m", "ucfuse", *arguments]
    return subprocess.run(
        ["unshare", "--mount", "sh", "-c", DEV_WITHOUT_FUSE, "sh", dev, *command],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_missing_fuse_device_is_one_line_with_the_mend(
    machine: tuple[Path, Path], environment: dict[str, str]
) -> None:
    """README, When something goes wrong: `/dev/fuse: missing`."""
    mountpoint, dev = machine

    done = ucfuse_without_fuse("mount", "memory:", mountpoint, dev=dev, environment=environment)

    assert one_line(done).startswith("ucfuse: /dev/fuse: missing; run `modprobe fuse`")
    assert not is_mounted(mountpoint)


def test_doctor_says_so_too(machine: tuple[Path, Path], environment: dict[str, str]) -> None:
    done = ucfuse_without_fuse("doctor", dev=machine[1], environment=environment)

    assert done.returncode == 1
    assert "fail  /dev/fuse: missing; run `modprobe fuse`" in done.stdout


def one_line(done: "subprocess.CompletedProcess[str]") -> str:
    assert (done.returncode, done.stdout) == (1, ""), done
    (line,) = done.stderr.splitlines()
    assert line.startswith("ucfuse: ")
    return line


def test_a_daemon_that_hangs_is_named_in_one_line(mount: Mount, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x")
    os.kill(mount.pid, signal.SIGSTOP)
    words = Words(f"`kill -9 {mount.pid}`")
    try:
        with ExitStack() as stack:  # all at once: each waits for five seconds
            for arguments in (
                ("abort", mount.path),
                ("cp", tmp_path / "f", mount.path / "f"),
                ("status", "--file", mount.path / "f"),
            ):
                line = [sys.executable, "-m", "ucfuse", *arguments]
                process = stack.enter_context(started(line, mount.environment))
                stack.callback(lambda process=process: words.check(ended(process)))
    finally:
        os.kill(mount.pid, signal.SIGCONT)


# --- the table ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mistake", "table"),
    [
        ("wrong path", WRONG_PATH),
        ("no mount", NO_MOUNT),
        ("dead daemon", DEAD),
        ("no permission", NO_PERMISSION),
        ("Ctrl-C", CTRL_C),
    ],
)
def test_the_table_has_a_cell_or_a_reason_for_every_command(mistake: str, table: Table) -> None:
    missing = set(ALL_COMMANDS) - set(table)
    assert not missing, f"{mistake}: no test, and no reason why it cannot happen"
    assert all(cells.reason if isinstance(cells, Never) else cells for cells in table.values())


class Try(Protocol):
    """Make the mistake of a cell, as `who` says it; the cell's words must be what is said."""

    def __call__(
        self,
        command: str,
        cell: Cell,
        who: Sequence[str] = ...,
        *,
        over: Mapping[str, str] = ...,
        theirs: Path | None = ...,
    ) -> None: ...


# --- its cells ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def dead(scratch: Path, environment: dict[str, str], scopes: Scopes) -> Iterator[Mount]:
    """A mount whose daemon was killed while a file was made. Nothing else is mounted."""
    place, work = scopes.fresh(), Path(tempfile.mkdtemp(dir=scratch))
    home = {"XDG_STATE_HOME": str(work / "home")}
    mount = Mount(place, work, {**environment, **scopes.environment(place), **home})
    mount.start()
    os.open(mount.path / "f", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    mount.kill()
    yield mount
    mount.close()


@pytest.fixture(scope="module")
def places(dead: Mount, tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """What the cells name: places of each test's own are added to it."""
    top = tmp_path_factory.mktemp("places")
    (top / "secret").touch(mode=0)
    for name in ("locked", "home/ucfuse/run", "home/ucfuse/staging"):
        (top / name).mkdir(parents=True)
        (top / name).chmod(0)
    done = ucfuse(
        *("recover", "--state-dir", dead.state_dir, "list", "--json"),
        environment=dead.environment,
    )
    (kept,) = json.loads(done.stdout)
    return {
        "secret": top / "secret",
        "locked": top / "locked",
        "unreadable": top / "home",
        "dead": dead.path,
        "state": dead.state_dir,
        "kept": kept["name"],
        "source": dead.bucket.source,
    }


@pytest.fixture
def tried(
    environment: dict[str, str], places: dict[str, object], whole_bucket: Bucket, tmp_path: Path
) -> Iterator[Try]:
    """Make a mistake; in the end nothing must have come of it."""
    local = tmp_path / "local"
    for name in ("mnt", "full"):
        (local / name).mkdir(parents=True)
    for name in ("file", "full/f"):
        (local / name).write_bytes(b"x")
    whole_bucket.put("there/f", b"x")
    before = whole_bucket.names()

    def make(
        command: str,
        cell: Cell,
        who: Sequence[str] = (),
        *,
        over: Mapping[str, str] = MappingProxyType({}),
        theirs: Path | None = None,
    ) -> None:
        known = {**places, "tmp": local, "theirs": theirs}
        home = {"XDG_STATE_HOME": str(tmp_path / "home")}
        given = {**environment, **home, **over, **cell.environment(known)}
        cell.words.check(call([*who, *cell.line(command, known)], given), known)

    yield make
    assert sorted(os.listdir(local)) == ["file", "full", "mnt"]
    assert not is_mounted(local / "mnt")
    assert not list(processes_naming(tmp_path))
    assert whole_bucket.names() == before


@pytest.mark.parametrize(
    ("command", "cell"), cells_of("wrong-path", WRONG_PATH) + cells_of("no-mount", NO_MOUNT)
)
def test_what_is_not_there(tried: Try, command: str, cell: Cell) -> None:
    tried(command, cell)


@pytest.mark.parametrize(("command", "cell"), cells_of("dead-daemon", DEAD))
def test_a_dead_daemon(tried: Try, dead: Mount, command: str, cell: Cell) -> None:
    tried(command, cell, over=dead.environment)
    assert is_mounted(dead.path)


@pytest.mark.parametrize(("command", "cell"), cells_of("no-permission", NOT_OURS))
def test_a_mount_of_another_user(volume: Volume, tried: Try, command: str, cell: Cell) -> None:
    tried(command, cell, another_user(), theirs=volume.mount.path)
    assert volume.mount.is_alive()
    assert os.listdir(volume.path) == []


@pytest.mark.parametrize(("command", "cell"), cells_of("no-permission", LOCKED))
def test_what_one_may_not_use(tried: Try, command: str, cell: Cell) -> None:
    tried(command, cell, without_the_rights_of_root())


@pytest.mark.parametrize(("command", "cell"), cells_of("no-permission", READ_ONLY))
def test_a_store_that_one_may_only_read(
    server: Server, dead: Mount, tried: Try, command: str, cell: Cell
) -> None:
    if server.name != "seaweedfs":
        pytest.skip(f"{server.name}: a server of somebody else does not know our identities")
    tried(command, cell, over={**dead.environment, **credentials_of(READER)})


def another_user() -> list[str]:
    """Return what makes a command run as somebody else, or as ourselves if we are not root.

    He may read everything, or he could not read Python and ucfuse where they are root's alone.
    """
    if not may_read_everything():
        return []
    reads = ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
    return ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *reads]


def may_read_everything() -> bool:
    """Say whether we are root and have the right that we want to pass on; containers may not."""
    status = Path("/proc/self/status").read_text()
    rights = next(line for line in status.splitlines() if line.startswith("CapBnd:"))
    return os.geteuid() == 0 and bool(int(rights.split()[1], 16) & 1 << CAP_DAC_READ_SEARCH)


def without_the_rights_of_root() -> list[str]:
    """Return what makes modes count: root may read and write whatever they say."""
    if os.geteuid() != 0:
        return []
    rights = "-dac_override,-dac_read_search"
    return ["setpriv", f"--bounding-set={rights}", f"--inh-caps={rights}"]
