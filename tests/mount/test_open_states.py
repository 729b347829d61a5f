"""What happens to an open file when its name or its object changes: a table, and every cell.

The README shows the same table in words; each test also compares its cell.
"""

import errno
import json
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.servers.server import Server

from .harness import ROOT, Mount
from .programs import eventually, run_python, start_python
from .requestproxy import Fault, RequestProxy
from .witness import Bucket

OLD, NEW, OTHER = b"o" * 8192, b"n" * 8192, b"g" * 8192
CHANGED = b"dirty" + OLD[5:]
STALE = errno.ESTALE

STATES = ["open for reading", "open for writing, clean", "written to", "mapped, changed"]
COMMITTING = "being committed"


@dataclass(frozen=True)
class Cell:
    """What README says, what the file then reads, what its end says, and what the store has."""

    words: str
    reads: bytes
    ends: int
    left: dict[str, bytes]


def row(words: list[str], reads: list[bytes], ends: list[int], left: list[bytes], key: str) -> dict:
    """One event: cells in the order of the states. An empty `left`: no object."""
    return {
        state: Cell(text, seen, code, {key: data} if data else {})
        for state, text, seen, code, data in zip(
            [*STATES, COMMITTING], words, reads, ends, left, strict=True
        )
    }


OKAY, LOST = [0] * 5, [0, STALE, STALE, STALE, STALE]
GOES_ON = [OLD, OLD, CHANGED, CHANGED, CHANGED]
KEEPS, HERE, ITS = "keeps its bytes", "keeps its bytes, here alone", "goes to the new name"
FAILS = "close: ESTALE; bytes in `recover`"
TABLE: dict[str, dict[str, Cell]] = {
    "unlink": row(
        [KEEPS, HERE, HERE, HERE, "the removal comes after it"],
        GOES_ON, OKAY, [b""] * 5, "d/f",
    ),
    "rename away": row(
        [KEEPS, ITS, ITS, ITS, "the rename comes after it"],
        GOES_ON, OKAY, [OLD, CHANGED, CHANGED, CHANGED, CHANGED], "d/g",
    ),
    "rename over it": row(
        [KEEPS, HERE, HERE, HERE, "the rename comes after it"],
        GOES_ON, OKAY, [OTHER] * 5, "d/f",
    ),
    "truncate by path": row(
        ["is cut at once", "is cut, stored at close", "is cut, stored at close",
         "is cut at once", "is cut after it"],
        [OLD[:3], OLD[:3], b"dir", b"dir", b"dir"], OKAY,
        [OLD[:3], b"dirty", b"dir", b"dir", b"dir"], "d/f",
    ),
    "O_TRUNC and write by another process": row(
        ["reads the new bytes", "reads and changes the new bytes", "loses what it wrote",
         "loses what it changed", "the new bytes come after it"],
        [NEW] * 5, OKAY, [NEW, b"dirty" + NEW[5:], NEW, NEW, NEW], "d/f",
    ),
    "overwritten elsewhere": row(
        [KEEPS, FAILS, FAILS, "msync: ESTALE; bytes in `recover`", FAILS],
        GOES_ON, LOST, [NEW] * 5, "d/f",
    ),
    "deleted elsewhere": row(
        [KEEPS, FAILS, FAILS, "msync: ESTALE; bytes in `recover`", FAILS],
        GOES_ON, LOST, [b""] * 5, "d/f",
    ),
    "directory renamed": row(
        [KEEPS, ITS, ITS, ITS, "the rename comes after it"],
        GOES_ON, OKAY, [OLD, CHANGED, CHANGED, CHANGED, CHANGED], "e/f",
    ),
}  # fmt: skip


@dataclass
class Place:
    """A directory of a mount behind a proxy that can hold a commit up."""

    mount: Mount
    proxy: RequestProxy
    path: Path
    bucket: Bucket
    ended: list[int] = field(default_factory=list)


@pytest.fixture(scope="module")
def watched(
    scratch: Path, environment: dict[str, str], whole_bucket: Bucket, server: Server
) -> Iterator[tuple[Mount, RequestProxy]]:
    with RequestProxy(server.address) as proxy:
        over = {**environment, "AWS_ENDPOINT_URL": proxy.url}
        work = Path(tempfile.mkdtemp(dir=scratch))
        mount = Mount(whole_bucket.below(work.name), work, over).start()
        yield mount, proxy
        mount.close()
        complaints = mount.complaints()
        assert not complaints, complaints


@pytest.fixture
def place(watched: tuple[Mount, RequestProxy]) -> Place:
    mount, proxy = watched
    mount.watch_again()
    path = Path(tempfile.mkdtemp(dir=mount.path))
    bucket = mount.bucket.below(path.name)
    bucket.put("d/f", OLD)
    return Place(mount, proxy, path, bucket)


def truncate_and_write(path: str, letter: str) -> None:
    with open(path, "wb") as file:
        file.write(letter.encode() * 8192)


EVENTS: dict[str, Callable[[Place], object]] = {
    "unlink": lambda place: os.unlink(place.path / "d/f"),
    "rename away": lambda place: os.rename(place.path / "d/f", place.path / "d/g"),
    "rename over it": lambda place: os.rename(place.path / "d/g", place.path / "d/f"),
    "truncate by path": lambda place: os.truncate(place.path / "d/f", 3),
    "O_TRUNC and write by another process": lambda place: run_python(
        truncate_and_write, place.path / "d/f", "n"
    ),
    "overwritten elsewhere": lambda place: place.bucket.put("d/f", NEW),
    "deleted elsewhere": lambda place: place.bucket.delete("d/f"),
    "directory renamed": lambda place: os.rename(place.path / "d", place.path / "e"),
}


def code_of(act: Callable[[], object]) -> int:
    try:
        act()
    except OSError as error:
        return error.errno or -1
    return 0


def an_open_file(place: Place, state: str, event: Callable[[], object]) -> tuple[bytes, int]:
    """Have the file open, let the event happen; return what it reads then and how it ends."""
    fd = os.open(place.path / "d/f", os.O_RDONLY if state == STATES[0] else os.O_RDWR)
    assert os.pread(fd, 9000, 0) == OLD
    if state == "written to":
        os.pwrite(fd, b"dirty", 0)
    event()
    try:
        seen = os.pread(fd, 9000, 0)
    except OSError as error:
        if error.errno != STALE:
            raise
        seen = b"ESTALE"
    if state == "open for writing, clean":
        os.pwrite(fd, b"dirty", 0)
    return seen, code_of(lambda: os.close(fd))


def map_and_change(path: str) -> None:
    """Change a mapping, let the event happen, tell what it shows then and how msync ends."""
    import json
    import mmap
    import os
    import sys

    fd = os.open(path, os.O_RDWR)
    with mmap.mmap(fd, 8192) as mapped:
        os.close(fd)
        mapped[:5] = b"dirty"
        sys.stdout.write("changed\n")
        sys.stdout.flush()
        sys.stdin.readline()
        # The file may be shorter than the mapping by now: only its first page is sure to be there.
        seen, code = mapped[:4096].rstrip(b"\0").decode(), 0
        try:
            mapped.flush()
        except OSError as error:
            code = error.errno or -1
        sys.stdout.write(json.dumps([seen, code]) + "\n")
        sys.stdout.flush()


def a_mapped_file(place: Place, event: Callable[[], object]) -> tuple[bytes, int]:
    # In a process of its own: a page fault here would stop the proxy's threads.
    with start_python(map_and_change, place.path / "d/f") as program:
        assert program.hear() == "changed"
        event()
        program.say()
        seen, code = json.loads(program.hear())
        program.end()
    return seen.encode(), code


def a_commit_under_way(place: Place, event: Callable[[], object]) -> tuple[bytes, int]:
    fd = os.open(place.path / "d/f", os.O_RDWR)
    os.pwrite(fd, b"dirty", 0)
    reader = os.open(place.path / "d/f", os.O_RDONLY)
    codes: list[int] = []
    closing = threading.Thread(target=lambda: codes.append(code_of(lambda: os.close(fd))))
    sent = place.proxy.counts["PUT"]
    place.proxy.spoil("PUT", Fault.SLOW)
    closing.start()
    eventually("the commit is on its way", lambda: place.proxy.counts["PUT"] > sent)
    event()
    closing.join()
    seen = os.pread(reader, 9000, 0)
    os.close(reader)
    return seen, codes[0]


def words_in_readme(event: str, state: str) -> str:
    """Return the cell of the README's table."""
    lines = (ROOT / "README.md").read_text().splitlines()
    start = next(at for at, line in enumerate(lines) if line.startswith("| an open file"))
    columns = [cell.strip() for cell in lines[start].strip("|").split("|")]
    for line in lines[start + 2 :]:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0] == event:
            return cells[columns.index(state)]
    raise AssertionError(f"no row {event!r}")


@pytest.mark.promise("P47")
@pytest.mark.parametrize("state", [*STATES, COMMITTING])
@pytest.mark.parametrize("event", TABLE)
def test_an_open_file_behaves_as_the_table_says(place: Place, event: str, state: str) -> None:
    cell = TABLE[event][state]
    if event == "rename over it":
        place.bucket.put("d/g", OTHER)
    kept_before = place.mount.status()["kept"] if cell.ends else 0

    def happens() -> None:
        EVENTS[event](place)

    if state == "mapped, changed":
        seen, code = a_mapped_file(place, happens)
    elif state == COMMITTING:
        seen, code = a_commit_under_way(place, happens)
    else:
        seen, code = an_open_file(place, state, happens)

    expected = cell.reads[:4096] if state == "mapped, changed" else cell.reads
    if cell.ends and seen == b"ESTALE":
        expected = seen  # what it did not write is gone with the version that it grew from
    assert (seen[: len(expected)], code) == (expected, cell.ends)
    eventually(f"the store has {list(cell.left)}", lambda: stored(place) == cell.left, 5)
    assert {name: (place.path / name).read_bytes() for name in cell.left} == cell.left
    if cell.ends:
        assert place.mount.status()["kept"] > kept_before
    assert words_in_readme(event, state) == cell.words


def stored(place: Place) -> dict[str, bytes]:
    return {name: place.bucket.get(name) for name in place.bucket.files()}
