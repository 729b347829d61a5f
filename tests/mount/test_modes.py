"""Every operation that is not portable, in every mode: refused as documented, or done and reported.

The cases are system calls and programs of every day. Each runs in a directory of its own of one
volume; a second volume is beside it.
"""

import errno
import json
import mmap
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.modes_table import errno_in, rows
from ucfuse.kernel.errnos import EMULATED_ERRNOS
from ucfuse.portability import Emulation, Operation

from .harness import ROOT, Mount, MountCatalog, MountVolume, ucfuse
from .programs import eventually, fails_with, shell
from .witness import Bucket

MODES = tuple(mode.value for mode in Emulation)
VOLUMES = "".join(
    f'[volumes."main.default.{name}"]\nsource = "memory:"\n' for name in ("one", "two")
)
DONE = 0
Act = Callable[[Path], object]


@dataclass(frozen=True)
class Case:
    """One cell of each mode. `posix`: the errno there, or `DONE`."""

    operation: Operation
    act: Act
    posix: int = DONE
    path: str = "f"
    """What the report names, from the directory of the case on."""


def other_volume(place: Path) -> Path:
    return place.parents[1] / "two"


def write_old(place: Path) -> Path:
    (place / "f").write_bytes(b"0123456789")
    return place / "f"


# --- system calls --------------------------------------------------------------------------------


def with_open(place: Path, flags: int, *uses: Callable[[int], object]) -> None:
    """Open, use, and close; whatever fails first is raised."""
    fd = os.open(place / "f", flags, 0o666)
    try:
        for use in uses:
            use(fd)
    finally:
        os.close(fd)


def append(place: Path) -> None:
    write_old(place)
    with_open(place, os.O_WRONLY | os.O_APPEND, lambda fd: os.write(fd, b"more"))


def write_behind_the_end(place: Path) -> None:
    write_old(place)
    with_open(place, os.O_WRONLY, lambda fd: os.pwrite(fd, b"more", 10))


def seek_back(place: Path) -> None:
    new = os.O_WRONLY | os.O_CREAT
    with_open(place, new, lambda fd: os.write(fd, b"0" * 99), lambda fd: os.pwrite(fd, b"x", 3))


def change_in_place(place: Path) -> None:
    write_old(place)
    with_open(place, os.O_RDWR, lambda fd: os.pwrite(fd, b"x", 3))


def write_far(place: Path) -> None:
    with_open(place, os.O_WRONLY | os.O_CREAT, lambda fd: os.pwrite(fd, b"x", 4096))


def extend_open_file(place: Path) -> None:
    with_open(place, os.O_WRONLY | os.O_CREAT, lambda fd: os.ftruncate(fd, 4096))


def change_a_mapping(place: Path) -> None:
    with write_old(place).open("r+b", buffering=0) as file, mmap.mmap(file.fileno(), 0) as pages:
        pages[3:5] = b"xx"
        pages.flush()


def extend_by_path(place: Path) -> None:
    os.truncate(write_old(place), 4096)


def shorten(place: Path) -> None:
    os.truncate(write_old(place), 3)


def link(place: Path) -> None:
    os.link(write_old(place), place / "hard")


def symlink(place: Path) -> None:
    (place / "soft").symlink_to("f")


def rename_across(place: Path) -> None:
    write_old(place).rename(other_volume(place) / place.name)


# --- programs ------------------------------------------------------------------------------------


def program(*words: str | Path) -> None:
    """Run a program; if it fails, raise the error of which it tells."""
    done = subprocess.run(
        [str(word) for word in words],
        env={**os.environ, "LC_ALL": "C", "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode == 0:
        return
    if "to a subdirectory of itself" in done.stdout:  # mv's words for EINVAL
        raise OSError(errno.EINVAL, done.stdout)
    for code in sorted(errno.errorcode):
        if os.strerror(code) in done.stdout or f"Errno {code}]" in done.stdout:
            raise OSError(code, done.stdout)
    raise AssertionError(done.stdout)


def python(script: str, place: Path) -> None:
    program(sys.executable, "-c", script, place / "f")


ZIP = """
import sys, zipfile
with zipfile.ZipFile(sys.argv[1], "w") as archive:
    for name in "abc":
        archive.writestr(name, name.encode() * 50_000)
"""
EXCEL = """
import sys, pandas
pandas.DataFrame({"a": range(3000)}).to_excel(sys.argv[1] + ".xlsx")
"""
SAFETENSORS = """
import sys, torch
from safetensors.torch import save_file
save_file({"t": torch.zeros(1000)}, sys.argv[1])
"""
LOG = """
import logging, sys
for _ in range(2):
    logging.basicConfig(filename=sys.argv[1], force=True)
    logging.warning("a line")
"""
HDF5 = """
import sys, h5py
with h5py.File(sys.argv[1], "w") as file:
    file["a"] = range(5000)
    file["b"] = range(5000)
"""


CASES = {
    "append": Case(Operation.APPEND, append),
    "write behind the end": Case(Operation.APPEND, write_behind_the_end),
    "seek back": Case(Operation.OVERWRITE, seek_back),
    "change in place": Case(Operation.OVERWRITE, change_in_place),
    "change a mapping": Case(Operation.OVERWRITE, change_a_mapping),
    "write far": Case(Operation.SPARSE, write_far),
    "extend an open file": Case(Operation.SPARSE, extend_open_file),
    "extend by path": Case(Operation.SPARSE, extend_by_path),
    "shorten": Case(Operation.SHORTEN, shorten),
    "link": Case(Operation.LINK, link, errno.EPERM, path="hard"),
    "link across": Case(
        Operation.LINK,
        lambda place: os.link(write_old(place), other_volume(place) / place.name),
        errno.EXDEV,
    ),
    "symlink": Case(Operation.SYMLINK, symlink, errno.EPERM, path="soft"),
    "mkdir in a schema": Case(
        Operation.MKDIR,
        lambda place: (place.parents[1] / f"new-{place.name}").mkdir(),
        errno.EOPNOTSUPP,
    ),
    "mkdir in a catalog": Case(
        Operation.MKDIR,
        lambda place: (place.parents[2] / f"new-{place.name}").mkdir(),
        errno.EOPNOTSUPP,
    ),
    "mkdir at the top": Case(
        Operation.MKDIR,
        lambda place: (place.parents[3] / f"new-{place.name}").mkdir(),
        errno.EOPNOTSUPP,
    ),
    "rename across": Case(Operation.RENAME, rename_across, errno.EXDEV),
    "program >>": Case(
        Operation.APPEND, lambda place: program("bash", "-c", f"echo more >> {write_old(place)}")
    ),
    "program zipfile": Case(Operation.OVERWRITE, lambda place: python(ZIP, place)),
    "program to_excel": Case(
        Operation.OVERWRITE, lambda place: python(EXCEL, place), path="f.xlsx"
    ),
    "program logging": Case(Operation.APPEND, lambda place: python(LOG, place)),
    "program h5py": Case(Operation.SPARSE, lambda place: python(HDF5, place)),
    "program ln": Case(
        Operation.LINK,
        lambda place: program("ln", write_old(place), place / "hard"),
        errno.EPERM,
        path="hard",
    ),
    "program ln -s": Case(
        Operation.SYMLINK,
        lambda place: program("ln", "-s", "f", place / "soft"),
        errno.EPERM,
        path="soft",
    ),
    "program mkdir": Case(
        Operation.MKDIR,
        lambda place: program("mkdir", place.parents[1] / f"new-{place.name}"),
        errno.EOPNOTSUPP,
    ),
    "program mv": Case(
        Operation.RENAME,
        lambda place: program("mv", write_old(place), other_volume(place) / place.name),
    ),
    "program dd": Case(
        Operation.OVERWRITE,
        lambda place: program(
            *("dd", "if=/dev/zero", f"of={write_old(place)}", "bs=1", "count=2", "seek=4"),
            "conv=notrunc",
        ),
    ),
    "program truncate": Case(
        Operation.SPARSE, lambda place: program("truncate", "-s", "1M", place / "f")
    ),
}
PROGRAMS = {"program >>": "bash", "program zipfile": None, "program h5py": None}


def program_name(title: str) -> str | None:
    """What the report calls who ran the case; None: some Python."""
    if not title.startswith("program ") or title in PROGRAMS:
        return PROGRAMS.get(title)
    name = title.split()[1]
    return name if name in ("ln", "mkdir", "mv", "dd", "truncate") else None


# --- the mounts ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mounts(scratch: Path, environment: dict[str, str]) -> Iterator[dict[str, Mount]]:
    """One mount for each mode, in the daemon's own memory."""
    started: dict[str, Mount] = {}
    try:
        for mode in MODES:
            work = Path(tempfile.mkdtemp(dir=scratch))
            mount = Mount(None, work, environment, [f"--emulate={mode}"], VOLUMES)
            started[mode] = mount.start()
        yield started
    finally:
        for mount in started.values():
            mount.close()
    assert not [complaint for each in started.values() if (complaint := each.complaints())]


@pytest.fixture
def places(mounts: dict[str, Mount]) -> dict[str, Path]:
    """A fresh directory on each mount, all of one name."""
    for mount in mounts.values():
        mount.watch_again()
    name = next(tempfile._get_candidate_names())  # type: ignore[attr-defined]
    found = {mode: mount.path / "main/default/one" / name for mode, mount in mounts.items()}
    for place in found.values():
        place.mkdir()
    return found


def report(mount: Mount) -> dict[str, Any]:
    done = ucfuse("status", "--portability", "--json", environment=mount.environment)
    assert done.returncode == 0, done.stderr
    (found,) = [each for each in json.loads(done.stdout) if each["mountpoint"] == str(mount.path)]
    told: dict[str, Any] = found
    return told


def errno_of(act: Act, place: Path) -> int:
    try:
        act(place)
    except OSError as error:
        return error.errno or -1
    return DONE


def seen_by_programs(operation: Operation, mode: str) -> int:
    """The kernel makes EPERM of a link's ENOSYS."""
    code = EMULATED_ERRNOS[operation][Emulation(mode)]
    return errno.EPERM if operation is Operation.LINK else code


@pytest.mark.promise("P52", "P53")
@pytest.mark.parametrize("title", CASES)
def test_each_operation_in_each_mode(
    mounts: dict[str, Mount], places: dict[str, Path], title: str
) -> None:
    """README, Modes: what a strict mode refuses is in the report of posix mode."""
    case = CASES[title]
    answers = {mode: errno_of(case.act, place) for mode, place in places.items()}

    assert answers == {
        "posix": case.posix,
        **{mode: seen_by_programs(case.operation, mode) for mode in MODES if mode != "posix"},
    }
    place = places["posix"]
    found = [
        met
        for met in report(mounts["posix"])["operations"]
        if place.name in met["path"] and met["operation"] == case.operation.value
    ]
    assert found, report(mounts["posix"])
    if case.operation is not Operation.MKDIR and title != "link across":
        assert found[0]["path"] == f"main/default/one/{place.name}/{case.path}"
    assert found[0]["errnos"] == {
        mode.value: code for mode, code in EMULATED_ERRNOS[case.operation].items()
    }
    assert found[0]["count"] >= 1
    assert program_name(title) in (None, found[0]["program"])


def test_the_cases_are_those_of_the_readme() -> None:
    table = rows()
    assert {case.operation.value for case in CASES.values()} == set(table)
    for title, case in CASES.items():
        # mv copies where it is told EXDEV, and so does not fail; a link across volumes is both.
        if title not in ("program mv", "link across"):
            assert case.posix == errno_in(table[case.operation.value]["posix"]), title


@pytest.mark.promise("P52")
@pytest.mark.parametrize("mode", ["databricks", "serverless"])
def test_a_refusal_sticks_to_the_handle_up_to_its_close(
    mounts: dict[str, Mount], places: dict[str, Path], mode: str
) -> None:
    """README, Modes: of a file that was refused a write nothing is stored."""
    path = places[mode] / "f"
    code = EMULATED_ERRNOS[Operation.OVERWRITE][Emulation(mode)]
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    os.write(fd, b"0123456789")
    with fails_with(code):
        os.pwrite(fd, b"x", 0)
    with fails_with(code):
        os.pwrite(fd, b"goes on in order", 10)
    with fails_with(code):
        os.fsync(fd)
    with fails_with(code):
        os.close(fd)

    assert not path.exists()
    assert os.listdir(places[mode]) == []
    assert mounts[mode].status()["uncommitted"] == []
    path.write_bytes(b"the next try")
    assert path.read_bytes() == b"the next try"


@pytest.mark.promise("P52")
@pytest.mark.parametrize("mode", ["databricks", "serverless"])
@pytest.mark.parametrize("change", [change_in_place, change_a_mapping, append, shorten])
def test_programs_read_the_bytes_before_after_a_refusal(
    places: dict[str, Path], mode: str, change: Act
) -> None:
    """Also where the kernel had the refused bytes in its pages."""
    assert errno_of(change, places[mode]) != DONE

    assert (places[mode] / "f").read_bytes() == b"0123456789"
    assert os.listdir(places[mode]) == ["f"]


@pytest.mark.promise("P52")
@pytest.mark.parametrize("mode", ["databricks", "serverless"])
def test_what_databricks_lets_programs_do_is_done(places: dict[str, Path], mode: str) -> None:
    place = places[mode]
    data = os.urandom(9 << 20)
    (place / "d/e").mkdir(parents=True)
    os.makedirs(place / "d/e", exist_ok=True)
    (place / "f").write_bytes(data)
    (place / "f").write_bytes(data[::-1])
    assert (place / "f").read_bytes() == data[::-1]
    with (place / "log").open("a") as log:
        log.write("a new file may be appended to,\n")
        log.flush()
        os.fsync(log.fileno())
        log.write("in order")
    (place / "f").chmod(0o600)
    os.chown(place / "f", 1, 1)
    os.utime(place / "f", (1, 1))
    (place / "f").rename(place / "d/g")
    (place / "d").rename(place / "h")
    os.replace(place / "log", place / "h/g")
    assert (place / "h/g").read_text() == "a new file may be appended to,\nin order"
    with (place / "h/g").open("r+b") as file:
        assert file.read(5) == b"a new"
    os.truncate(place / "h/g", 0)
    shell(f"cp -r {place}/h {place}/i; tar -cf {place}/t.tar -C {place} i; rm -r {place}/h")
    shell(f"mkdir -p {place}/a/b/c; touch {place}/a/b/c/x; rsync -r --inplace {place}/a/ {place}/z")


@pytest.mark.parametrize("mode", ["databricks", "serverless"])
def test_owner_and_modes_are_those_of_databricks(places: dict[str, Path], mode: str) -> None:
    place = places[mode]
    (place / "f").write_bytes(b"x")
    for path in (place / "f", place, *place.parents[:4]):
        found = path.stat()
        assert (found.st_mode & 0o7777, found.st_uid, found.st_gid) == (0o777, 65534, 65534)


def test_the_report_for_people_and_the_log(
    mounts: dict[str, Mount], places: dict[str, Path]
) -> None:
    mount, place = mounts["posix"], places["posix"]
    for _ in range(2):
        program("bash", "-c", f"echo more >> {write_old(place)}")

    done = ucfuse("status", "--portability", environment=mount.environment)
    (line, errnos) = done.stdout.split(f"main/default/one/{place.name}/f ")[-1].split("\n")[:2]
    assert line.startswith("(2 times, ")
    assert errnos.strip() == (
        "databricks EOPNOTSUPP (95, Operation not supported), serverless ESPIPE (29, Illegal seek)"
    )
    assert mount.log().count(": append, by bash: Databricks") == 1


def test_the_mode_is_in_the_status_and_owner_options_do_not_go_with_it(
    mounts: dict[str, Mount], scratch: Path, environment: dict[str, str]
) -> None:
    assert {mode: mount.status()["emulate"] for mode, mount in mounts.items()} == {
        mode: mode for mode in MODES
    }
    for option in ("--uid=1", "--file-mode=600", "--metadata-ttl=2s"):
        done = ucfuse(
            *("mount", "--emulate=databricks", option, "memory:", scratch / "none"),
            environment=environment,
        )
        assert done.returncode == 2
        assert "--emulate databricks" in done.stderr


@pytest.mark.promise("P53")
def test_a_governed_mount_reports_and_refuses_alike(
    mount_catalog: MountCatalog, governed: Bucket
) -> None:
    governed.put("f", b"0123456789")
    mount = mount_catalog("--emulate=databricks")
    with fails_with(errno.EOPNOTSUPP):
        os.truncate(mount.path / "main/default/images/f", 3)
    with fails_with(errno.EOPNOTSUPP):
        (mount.path / "main/default/new").mkdir()
    assert [(met["operation"], met["path"]) for met in report(mount)["operations"]] == [
        ("shorten", "main/default/images/f"),
        ("mkdir above", "main/default/new"),
    ]


@pytest.mark.parametrize("mode", ["databricks", "serverless"])
def test_attributes_are_a_second_old_at_most(
    mount_volume: MountVolume, bucket: Bucket, mode: str
) -> None:
    mount = mount_volume(f"--emulate={mode}")
    bucket.put("f", b"short")
    assert (mount.path / "f").stat().st_size == 5

    bucket.put("f", b"much longer")

    eventually("the new size", lambda: (mount.path / "f").stat().st_size == 11, 2)
