"""Whatever a catalog answers: the errno that the README says, in time, and one line in the log."""

import errno
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.servers.unity import Kind, Trouble, UnityServer

from .harness import Mount, MountCatalog
from .programs import eventually, fails_with
from .witness import Bucket

DEADLINE_S = 1.0
# A machine under load needs time beside that.
LENIENCE_S = 8.0

WORK: dict[str, tuple[Kind, Callable[[Path], object]]] = {
    "ls": (Kind.LIST, lambda top: os.listdir(top / "main")),
    "open": (Kind.READ, lambda top: (top / "main/default/images/f").read_bytes()),
    "write": (Kind.WRITE, lambda top: (top / "main/default/images/new").write_bytes(b"x")),
}
"""What a program does, and which question of it is answered badly."""

ERRNOS: dict[str, tuple[int, int, int]] = {
    "UNAUTHENTICATED": (errno.EACCES, errno.EACCES, errno.EACCES),
    "DENIED": (errno.EACCES, errno.EACCES, errno.EROFS),
    "MISSING": (errno.ENOENT, errno.ENOENT, errno.ENOENT),
    "THROTTLED": (errno.EAGAIN, errno.EAGAIN, errno.EAGAIN),
    "FAILING": (errno.EAGAIN, errno.EAGAIN, errno.EAGAIN),
    "STALL": (errno.EAGAIN, errno.EAGAIN, errno.EAGAIN),
    "DIE": (errno.EAGAIN, errno.EAGAIN, errno.EAGAIN),
    "NONSENSE": (errno.EIO, errno.EIO, errno.EIO),
    "AZURE": (0, errno.EOPNOTSUPP, errno.EOPNOTSUPP),
    "down": (errno.EAGAIN, errno.EAGAIN, errno.EAGAIN),
    "file": (0, errno.EOPNOTSUPP, errno.EOPNOTSUPP),
}
"""For ls, open and write; 0: it succeeds, since that is not asked there."""


@pytest.fixture
def governed_mount(governed: Bucket, mount_catalog: MountCatalog) -> Mount:
    governed.put("f", b"data")
    return mount_catalog("--metadata-ttl=0s", f"--metadata-timeout={DEADLINE_S:g}s")


def troubled(unity: UnityServer, trouble: str, kind: Kind) -> AbstractContextManager[None]:
    return unity.down() if trouble == "down" else unity.troubled(Trouble[trouble], kind)


def news(mount: Mount, start: int) -> list[str]:
    """Return the lines that the log has since then, but for those that tell of no trouble."""
    lines = mount.log_path.read_text()[start:].splitlines()
    return [line for line in lines if " WARNING " in line or " ERROR " in line]


def fails_in_time(code: int, work: Callable[[Path], object], mount: Mount) -> list[str]:
    """Let a program fail so; return the lines of the log that tell of it."""
    start, began = len(mount.log_path.read_text()), time.monotonic()
    with fails_with(code):
        work(mount.path)
    assert time.monotonic() - began < DEADLINE_S + LENIENCE_S
    return news(mount, start)


@pytest.mark.promise("P59")
@pytest.mark.parametrize("trouble", [name for name in ERRNOS if name != "file"])
def test_every_failure_has_its_errno_in_time_and_one_line_in_the_log(
    unity: UnityServer, governed_mount: Mount, trouble: str
) -> None:
    """README, Governed volumes: the table of failures."""
    for (title, (kind, work)), code in zip(WORK.items(), ERRNOS[trouble], strict=True):
        if title == "write" and trouble != "AZURE":
            eventually("an open volume", lambda: works(governed_mount, WORK["open"][1]))
        with troubled(unity, trouble, kind):
            if not code:
                work(governed_mount.path)
                continue
            lines = fails_in_time(code, work, governed_mount)
        assert len(lines) == 1, (title, lines)
        assert "uc://" in lines[0] or "'main'" in lines[0], (title, lines)
    eventually("its end", lambda: works(governed_mount, WORK["open"][1]))


def works(mount: Mount, work: Callable[[Path], object]) -> bool:
    """Say whether it works; what fails is told the same again for a moment."""
    try:
        work(mount.path)
    except OSError:
        return False
    return True


@pytest.mark.promise("P59")
def test_a_volume_that_lies_on_no_s3_shows_and_cannot_be_opened(
    unity: UnityServer, governed_mount: Mount
) -> None:
    """README, Governed volumes: what cannot be mounted."""
    places = {
        "local": "file:///tmp/volume",
        "azure": "abfss://c@a.dfs.core.windows.net/v",
        "odd": "s3://b/a//b",
    }
    for name, location in places.items():
        unity.add(f"main.default.{name}", location=location)
    default = governed_mount.path / "main/default"

    assert sorted(os.listdir(default)) == ["azure", "images", "local", "odd"]
    for name in places:
        lines = fails_in_time(
            errno.EOPNOTSUPP, lambda _, at=name: os.listdir(default / at), governed_mount
        )
        assert len(lines) == 1, lines
        with fails_with(errno.EOPNOTSUPP):
            (default / name / "new").write_bytes(b"x")
    assert (default / "images/f").read_bytes() == b"data"
    problems = {volume["name"]: volume["problem"] for volume in governed_mount.status()["volumes"]}
    assert "it lies at file:, and only s3: can be mounted" in problems["main.default.local"]
    assert "it lies at abfss:" in problems["main.default.azure"]
