"""Every file operation of a save fails, stalls, or is the last that its process lives to see.

Whatever happens, one of two things is true afterwards: the new checkpoint is complete and loads; or
the program was told, and nobody takes what is there for complete. An older checkpoint is complete
throughout, also in the same directory. What is there is judged without the faults, in the
directory behind them.
"""

import json
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

from tests.mount.harness import ROOT
from tests.mount.programs import eventually
from ucfuse.data import UCVolumeWriter, latest_complete, verify
from ucfuse.data.checkpoint import DamagedCheckpoint

from .checkpoints import equal, load, small_state
from .faulty import Faulty, faulty_directory

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    # A killed or cut off save leaves threads and files behind on purpose.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
]

ERRNOS = ("EIO", "ENOSPC", "ESTALE", "EACCES")
PATIENCE_S = 0.4
# Of the longest of the long runs, which start processes for every request of a save.
DEADLINE_S = 1900
# More than any save here has: the loop ends where the fault is not met any more.
MOST_REQUESTS = 2000


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Faulty]:
    """One directory with faults for all tests of this file."""
    with faulty_directory(tmp_path_factory.mktemp("faults")) as directory:
        yield directory


@pytest.fixture
def faulty(served: Faulty) -> Faulty:
    """The directory, watched for one more test."""
    served.watch_again(DEADLINE_S)
    return served


def judge(faulty: Faulty, place: str, *, told: bool, new: Any, old: Any) -> None:
    """Fail if an error was swallowed, or a checkpoint is taken for what it is not.

    `step_1` has the old state, or the new one if that was saved there; `place` is where.
    """
    found = latest_complete(faulty.backing)
    assert found is not None, "the old checkpoint is gone"
    newest = Path(found).name
    verify(found)
    if load({"step": 0}, found)["step"] == new["step"]:
        assert newest == place
        assert equal(load(new, found), new)
        return
    assert told, f"the save succeeded, but {newest} is not it"
    assert newest == "step_1"
    assert equal(load(old, found), old)
    if place != "step_1" and (faulty.backing / place).exists():
        with pytest.raises(DamagedCheckpoint):
            verify(faulty.backing / place)


def prepare(faulty: Faulty, number: int) -> tuple[Path, Any, Any]:
    """Empty the directory but for one checkpoint; return a root for a new save, and both states."""
    for old_root in faulty.backing.iterdir():
        subprocess.run(["rm", "-r", old_root], check=True)
    old, new = small_state(1), small_state(number + 2)
    writer = UCVolumeWriter(faulty.backing / "step_1")
    dcp.save(old, storage_writer=writer, no_dist=True)
    return faulty.path, old, new


def save_here(directory: Path, state: Any, threads: int, *, asynchronous: bool) -> bool:
    """Save in this process; return whether it failed."""
    writer = UCVolumeWriter(directory, thread_count=threads, patience_s=PATIENCE_S)
    try:
        if asynchronous:
            dcp.async_save(state, storage_writer=writer).result()
        else:
            dcp.save(state, storage_writer=writer, no_dist=True)
    except CheckpointException:
        return True
    return False


def nothing_is_left() -> bool:
    """Say whether all threads of earlier saves have ended."""
    return all(thread.name != "checkpoint" for thread in threading.enumerate())


def try_each_request(
    faulty: Faulty, action: str, threads: int, *, asynchronous: bool, every: int
) -> None:
    """Spoil one request of a save, then a later one, until there are no more."""
    for number in range(1, MOST_REQUESTS, every):
        place = ("step_2", "step_1")[number // every % 2]
        root, old, new = prepare(faulty, number)
        faulty.arm(number, action)
        told = save_here(root / place, new, threads, asynchronous=asynchronous)
        spoilt = faulty.was_spoilt()
        faulty.release()
        eventually("the end of what stalled", nothing_is_left)
        judge(faulty, place, told=told, new=new, old=old)
        if not spoilt:
            assert not told
            assert number > 40, "hardly anything was spoilt"
            return
    raise AssertionError("a save without end")


def every(request: pytest.FixtureRequest, thinned: int) -> int:
    """Return 1 for the whole matrix, or how many requests to leave out in a quick run."""
    return 1 if request.config.getoption("--long") else thinned


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("threads", "thinned"), [(1, 3), (4, 9)])
@pytest.mark.parametrize("action", ERRNOS)
def test_a_save_with_a_failing_operation_is_told_or_complete(
    faulty: Faulty, request: pytest.FixtureRequest, action: str, threads: int, thinned: int
) -> None:
    try_each_request(faulty, action, threads, asynchronous=False, every=every(request, thinned))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("action", ERRNOS)
def test_an_async_save_with_a_failing_operation_is_told_or_complete(
    faulty: Faulty, request: pytest.FixtureRequest, action: str, threads: int
) -> None:
    try_each_request(faulty, action, threads, asynchronous=True, every=every(request, 13))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("threads", [1, 4])
def test_a_save_with_a_stalled_operation_is_told_or_complete(
    faulty: Faulty, request: pytest.FixtureRequest, threads: int, asynchronous: bool
) -> None:
    try_each_request(faulty, "stall", threads, asynchronous=asynchronous, every=every(request, 23))


class Saver:
    """The process that forks the savers."""

    def __init__(self, work: Path) -> None:
        self._meetings = work
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.data.saver"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._orders = 0

    def begin(self, directory: Path, seed: int, **order: Any) -> None:
        """Let all ranks of one save begin."""
        self._orders += 1
        meeting = str(self._meetings / f"meeting{self._orders}")
        full = {"directory": str(directory), "seed": seed, "meeting": meeting, **order}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(full) + "\n")
        self._process.stdin.flush()

    def codes(self) -> list[int]:
        """Return the exit code of each rank."""
        assert self._process.stdout is not None
        found: list[int] = json.loads(self._process.stdout.readline())
        return found

    def close(self) -> None:
        """End it; no rank is left when a test is over."""
        self._process.communicate(timeout=30)


@pytest.fixture(scope="module")
def saver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Saver]:
    """One process with torch loaded, which forks one for each rank of each save."""
    forking = Saver(tmp_path_factory.mktemp("meetings"))
    yield forking
    forking.close()


def with_ranks(state: Any, ranks: int) -> Any:
    """Return the state as `saver` saves it."""
    own = {f"of{rank}": torch.full((20,), float(rank)) for rank in range(ranks)}
    return {**state, "ranks": own}


def try_in_processes(faulty: Faulty, saver: Saver, number: int, action: str, **how: Any) -> bool:
    """Spoil one request of a save of other processes; return whether there was such a request."""
    place = ("step_2", "step_1")[number % 2]
    root, old, new = prepare(faulty, number)
    faulty.arm(number, action)
    saver.begin(root / place, number + 2, **how)
    stopper = threading.Timer(PATIENCE_S + 1, faulty.release) if action == "stall" else None
    if stopper is not None:
        # Who has a request under way cannot exit, however it ended.
        stopper.start()
    codes = saver.codes()
    if stopper is not None:
        stopper.join()
    complete = with_ranks(new, how["ranks"])
    judge(faulty, place, told=any(codes), new=complete, old=old)
    return faulty.was_spoilt()


WAYS = [
    {"threads": threads, "asynchronous": asynchronous, "ranks": ranks}
    for ranks in (1, 2)
    for threads in (1, 4)
    for asynchronous in (False, True)
]


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_save_that_is_killed_or_loses_a_rank_is_never_taken_for_complete(
    faulty: Faulty, saver: Saver, ranks: int
) -> None:
    draw = random.Random(7)
    ways = [way for way in WAYS if way["ranks"] == ranks]
    killed = [
        try_in_processes(faulty, saver, number, "kill", **draw.choice(ways))
        for number in draw.sample(range(1, 60), 7)
    ]
    refused = [
        try_in_processes(faulty, saver, number, draw.choice(ERRNOS), **draw.choice(ways))
        for number in draw.sample(range(1, 60), 3)
    ]
    assert killed.count(True) > 3, "the saves ended before the requests that were to be spoilt"
    assert any(refused)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("how", WAYS, ids=lambda how: "-".join(map(str, how.values())))
@pytest.mark.parametrize("action", [*ERRNOS, "kill"])
def test_every_operation_of_a_save_in_processes_fails_once(
    faulty: Faulty, saver: Saver, action: str, how: dict[str, Any]
) -> None:
    number = 1
    while try_in_processes(faulty, saver, number, action, **how):
        number += 1
    assert number > 40


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("how", WAYS, ids=lambda how: "-".join(map(str, how.values())))
def test_every_operation_of_a_save_in_processes_stalls_once(
    faulty: Faulty, saver: Saver, how: dict[str, Any]
) -> None:
    number = 1
    while try_in_processes(faulty, saver, number, "stall", **how):
        number += 1
    assert number > 40
