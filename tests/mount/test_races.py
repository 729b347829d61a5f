"""Two mounts of one place, and two programs that want the same file at the same moment."""

import errno
import json
import os
import threading
from collections.abc import Callable

import pytest

from .harness import Mount, MountVolume, ucfuse

races = pytest.mark.parametrize(
    "count",
    [100, pytest.param(1000, marks=[pytest.mark.long, pytest.mark.timeout(900)])],
)
PATIENCE_S = 900


@pytest.fixture
def pair(mount_volume: MountVolume) -> tuple[Mount, Mount]:
    first = mount_volume()
    second = mount_volume(place=first.bucket)
    for mount in (first, second):
        mount.watch_again(PATIENCE_S)
    return first, second


def side_by_side(*works: Callable[[], int | None]) -> list[int | None]:
    """Run each in a thread; return what they returned, in their order."""
    answers: list[int | None] = [None] * len(works)

    def run(index: int) -> None:
        answers[index] = works[index]()

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def errno_of(work: Callable[[], object]) -> int | None:
    try:
        work()
    except OSError as error:
        return error.errno
    return None


def kept_bytes(mount: Mount) -> list[bytes]:
    """What `ucfuse recover` can give back: the bytes of every file that it lists."""
    done = ucfuse(
        "recover", "--state-dir", mount.state_dir, "list", "--json", environment=mount.environment
    )
    assert done.returncode == 0, done.stderr
    names = {entry["name"] for entry in json.loads(done.stdout)}
    found = []
    for path in mount.state_dir.glob("staging/session-*/*.[0-9]*"):
        session = path.parent.name.removeprefix("session-")
        if f"{session}.{path.name.rpartition('.')[2].lstrip('0')}" in names:
            found.append(path.read_bytes())
    return found


@races
@pytest.mark.promise("P18")
def test_of_two_updates_one_wins_and_the_bytes_of_the_other_are_in_recover(
    pair: tuple[Mount, Mount], count: int
) -> None:
    bucket = pair[0].bucket
    bucket.put("f", b"0" * 20)
    losers = set()
    for race in range(count):
        texts = [b"a%06d" % race, b"b%06d" % race]
        fds = [os.open(mount.path / "f", os.O_RDWR) for mount in pair]
        for fd, text in zip(fds, texts, strict=True):
            os.pwrite(fd, text, 0)
        closes = [lambda fd=fd: errno_of(lambda: os.close(fd)) for fd in fds]
        answers = side_by_side(*closes)

        assert sorted(answers, key=bool) == [None, errno.ESTALE], (race, answers)
        winner = answers.index(None)
        assert bucket.get("f")[:7] == texts[winner]
        losers.add(texts[1 - winner])
    kept = [data[:7] for mount in pair for data in kept_bytes(mount)]
    assert len(kept) == count
    assert set(kept) == losers


@races
@pytest.mark.promise("P20")
def test_of_two_exclusive_creations_one_wins_and_the_other_is_told_at_open(
    pair: tuple[Mount, Mount], count: int
) -> None:
    bucket = pair[0].bucket
    for race in range(count):

        def create(mount: Mount, name: str = f"lock{race}") -> int | None:
            def work() -> None:
                fd = os.open(mount.path / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
                os.write(fd, str(mount.path).encode())
                os.close(fd)

            return errno_of(work)

        answers = side_by_side(*[lambda mount=mount: create(mount) for mount in pair])

        assert sorted(answers, key=bool) == [None, errno.EEXIST], (race, answers)
        winner = pair[answers.index(None)]
        assert bucket.get(f"lock{race}") == str(winner.path).encode()
