"""Every fault at every kind of request that changes the store: an honest errno, or success.

Never does a call say success for bytes that the store does not have, and what failed is there to
be tried again.
"""

import errno
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.servers.server import Server

from .harness import Mount, MountVolume
from .programs import fails_with
from .requestproxy import Fault, RequestProxy
from .witness import Bucket

MIB = 1 << 20
BLOCK = bytes(range(256)) * 4096
HONEST = {errno.EIO, errno.EACCES, errno.EAGAIN, errno.ESTALE}

FAULTS = pytest.mark.parametrize("fault", list(Fault), ids=lambda fault: fault.name.lower())


@dataclass(frozen=True)
class Place:
    """A directory of a mount whose store is behind a proxy."""

    path: Path
    bucket: Bucket
    proxy: RequestProxy
    mount: Mount


@pytest.fixture(scope="module")
def proxy(server: Server) -> Iterator[RequestProxy]:
    with RequestProxy(server.address) as running:
        yield running


@pytest.fixture(scope="module")
def behind_proxy(
    scratch: Path, environment: dict[str, str], whole_bucket: Bucket, proxy: RequestProxy
) -> Iterator[Mount]:
    over = {**environment, "AWS_ENDPOINT_URL": proxy.url}
    work = Path(tempfile.mkdtemp(dir=scratch))
    options = ["--commit-timeout=2s", "--metadata-timeout=2s", "--read-timeout=2s"]
    mount = Mount(whole_bucket.below(work.name), work, over, options).start()
    yield mount
    assert mount.status()["memory"]["reserved_bytes"] == 0
    mount.close()
    complaints = mount.complaints()
    assert not complaints, complaints


@pytest.fixture
def place(
    behind_proxy: Mount, proxy: RequestProxy, request: pytest.FixtureRequest
) -> Iterator[Place]:
    behind_proxy.watch_again()
    name = "".join(c if c.isalnum() else "-" for c in request.node.name)
    (behind_proxy.path / name).mkdir()
    yield Place(behind_proxy.path / name, behind_proxy.bucket.below(name), proxy, behind_proxy)
    proxy.was_met()


def attempt(action: Callable[[], object]) -> bool:
    """Do it; False if it failed with an errno that tells the truth."""
    try:
        action()
    except OSError as error:
        if error.errno not in HONEST:
            raise
        return False
    return True


def write_all(fd: int, blocks: int) -> None:
    for _ in range(blocks):
        assert os.write(fd, BLOCK) == MIB


@pytest.mark.promise("P16")
@FAULTS
@pytest.mark.parametrize(
    ("kind", "skip"), [("PART", 0), ("PART", 1), ("COMPLETE", 0), ("CREATE", 0)]
)
def test_a_large_file(place: Place, kind: str, skip: int, fault: Fault) -> None:
    keeper = os.open(place.path / "f", os.O_RDWR | os.O_CREAT, 0o644)
    writer = os.open(place.path / "f", os.O_WRONLY)
    place.proxy.spoil(kind, fault, skip=skip)
    is_written = attempt(lambda: write_all(writer, 20))
    is_closed = attempt(lambda: os.close(writer))
    assert place.proxy.was_met()
    if is_written and is_closed:
        assert fault is not Fault.AWAY
        assert place.bucket.get("f") == BLOCK * 20
    else:
        os.lseek(keeper, 0, os.SEEK_SET)
        write_all(keeper, 20)
        os.fsync(keeper)
        assert place.bucket.get("f") == BLOCK * 20
    os.close(keeper)


@FAULTS
@pytest.mark.parametrize("kind", ["PARTCOPY", "COMPLETE", "PART"])
def test_an_append_to_a_large_file(place: Place, kind: str, fault: Fault) -> None:
    place.bucket.put("f", BLOCK * 12)
    keeper = os.open(place.path / "f", os.O_RDWR)
    writer = os.open(place.path / "f", os.O_WRONLY | os.O_APPEND)
    place.proxy.spoil(kind, fault)
    os.write(writer, b"one line")
    is_closed = attempt(lambda: os.close(writer))
    assert place.proxy.was_met()
    assert not (is_closed and fault is Fault.AWAY)
    if not is_closed:
        assert place.bucket.get("f") in (BLOCK * 12, BLOCK * 12 + b"one line")
        os.fsync(keeper)
    assert place.bucket.get("f") == BLOCK * 12 + b"one line"
    os.close(keeper)


@pytest.mark.promise("P16")
@FAULTS
def test_a_small_file(place: Place, fault: Fault) -> None:
    keeper = os.open(place.path / "f", os.O_RDWR | os.O_CREAT, 0o644)
    writer = os.open(place.path / "f", os.O_WRONLY)
    os.write(writer, b"precious")
    place.proxy.spoil("PUT", fault)
    is_closed = attempt(lambda: os.close(writer))
    assert place.proxy.was_met()
    assert not (is_closed and fault is Fault.AWAY)
    if not is_closed:
        os.fsync(keeper)
    assert place.bucket.get("f") == b"precious"
    os.close(keeper)


@FAULTS
@pytest.mark.parametrize("kind", ["COPY", "DELETE"])
def test_a_rename(place: Place, kind: str, fault: Fault) -> None:
    (place.path / "old").write_bytes(b"precious")
    place.proxy.spoil(kind, fault)
    is_renamed = attempt(lambda: os.rename(place.path / "old", place.path / "new"))
    assert place.proxy.was_met()
    there = {name: place.bucket.get(name) for name in place.bucket.files()}
    assert set(there.values()) == {b"precious"}
    if is_renamed:
        assert set(there) == {"new"}
        assert os.listdir(place.path) == ["new"]


@FAULTS
def test_an_unlink(place: Place, fault: Fault) -> None:
    (place.path / "f").write_bytes(b"old")
    place.proxy.spoil("DELETE", fault)
    is_removed = attempt(lambda: os.unlink(place.path / "f"))
    assert place.proxy.was_met()
    if is_removed:
        assert not place.bucket.has("f")


@FAULTS
def test_a_whole_small_file_is_read_as_it_is_or_not_at_all(place: Place, fault: Fault) -> None:
    """A bit that was turned over on the way is noticed: the bytes are asked for once more."""
    place.bucket.put("f", b"precious" * 1000)
    os.listdir(place.path)
    place.proxy.spoil("GET", fault)

    def read() -> None:
        assert (place.path / "f").read_bytes() == b"precious" * 1000

    attempt(read)
    assert place.proxy.was_met()
    read()


OUTAGE_S = 10.0


def write_large(path: Path) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    write_all(fd, 20)
    os.close(fd)


def append_to(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"one line")


def rename(path: Path) -> None:
    path.rename(path.with_name(path.name + "-new"))


SURVIVORS: list[tuple[str, str, int, Callable[[Path], None], str, bytes]] = [
    ("first-part", "PART", 0, write_large, "first-part", BLOCK * 20),
    ("middle-part", "PART", 1, write_large, "middle-part", BLOCK * 20),
    ("completion", "COMPLETE", 0, write_large, "completion", BLOCK * 20),
    ("part-copy", "PARTCOPY", 0, append_to, "part-copy", BLOCK * 12 + b"one line"),
    ("copy", "COPY", 0, rename, "copy-new", b"precious"),
    ("delete", "DELETE", 0, rename, "delete-new", b"precious"),
]


def test_503_for_ten_seconds_at_any_change_is_survived(
    mount_volume: MountVolume, proxy: RequestProxy
) -> None:
    """All at once, each at a file of its own."""
    mount = mount_volume(over={"AWS_ENDPOINT_URL": proxy.url})
    mount.bucket.put("x-part-copy", BLOCK * 12)
    for name in ("x-copy", "x-delete"):
        mount.bucket.put(name, b"precious")
    begun_at = time.monotonic()
    with ThreadPoolExecutor(len(SURVIVORS)) as pool:
        works = []
        for name, kind, skip, work, _, _ in SURVIVORS:
            proxy.spoil(kind, Fault.AWAY, skip=skip, name=f"x-{name}", lasting_s=OUTAGE_S)
            works.append(pool.submit(work, mount.path / f"x-{name}"))
        for each in works:
            each.result(60)

    assert proxy.was_met()
    assert time.monotonic() - begun_at >= OUTAGE_S
    expected = {f"x-{name}": data for *_, name, data in SURVIVORS}
    assert {name: mount.bucket.get(name) for name in mount.bucket.files()} == expected


# As AWS does it


def test_an_update_that_another_write_overtook_fails(place: Place) -> None:
    place.bucket.put("f", BLOCK * 12)
    fd = os.open(place.path / "f", os.O_RDWR)
    for _ in range(12):
        os.write(fd, BLOCK)
    place.bucket.put("f", b"theirs")
    place.proxy.changed_elsewhere(f"{place.bucket.name}/{place.bucket.prefix}f")
    with fails_with(errno.ESTALE):
        os.close(fd)

    assert place.bucket.get("f") == b"theirs"
    assert (place.path / "f").read_bytes() == b"theirs"


@pytest.mark.promise("P21")
@pytest.mark.parametrize("change", ["put", "delete"])
def test_a_close_says_success_only_if_the_store_serves_its_bytes(place: Place, change: str) -> None:
    place.bucket.put("f", b"old")
    os.listdir(place.path)
    fd = os.open(place.path / "f", os.O_WRONLY | os.O_TRUNC)
    write_all(fd, 20)
    if change == "put":
        place.bucket.put("f", b"theirs")
    else:
        place.bucket.delete("f")
    place.proxy.changed_elsewhere(f"{place.bucket.name}/{place.bucket.prefix}f")
    os.close(fd)

    assert place.bucket.get("f") == BLOCK * 20
    assert (place.path / "f").read_bytes() == BLOCK * 20
