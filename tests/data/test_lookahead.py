"""Fetching ahead: order, errors at their turn, how far ahead, back-off."""

import errno
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from ucfuse.data.cache import Cache, Found, How
from ucfuse.data.counters import Counters
from ucfuse.data.lookahead import Job, LookAhead, Window
from ucfuse.data.retries import Stopped, is_passing, naming, patiently

NO_LIMIT = Window(1024, None)


class FakeCache(Cache):
    """A cache whose files take a while, or fail as a script says."""

    def __init__(self, work: Callable[[str], None]) -> None:
        self.work = work
        self.obtained: list[str] = []

    def obtain(self, name: str, *_: Any, **__: Any) -> Found:
        self.work(name)
        self.obtained.append(name)
        return Found(name, f"/copy/{name}", How.COPIED, 1)


def look_ahead(cache: Cache, count: int, window: Window = NO_LIMIT, upcoming: int = 0) -> LookAhead:
    jobs = [Job(f"file-{number}", None, number) for number in range(count)]
    coming = [Job(f"next-{number}", None, number) for number in range(upcoming)]
    return LookAhead(cache, jobs, coming, window, Counters().count_retry)


def test_files_come_in_order_whatever_order_they_arrive_in() -> None:
    turn = threading.Semaphore(0)

    def late(name: str) -> None:
        if name == "file-3":
            turn.acquire()
        elif name == "file-9":
            turn.release()

    ahead = look_ahead(FakeCache(late), 20)
    ahead.start(4)
    assert [ahead.take(number).name for number in range(20)] == [f"file-{n}" for n in range(20)]
    ahead.close()


def test_an_error_is_raised_at_the_turn_of_its_file() -> None:
    def fail(name: str) -> None:
        if name == "file-2":
            raise FileNotFoundError(errno.ENOENT, "gone", name)

    ahead = look_ahead(FakeCache(fail), 4)
    ahead.start(4)
    assert [ahead.take(number).name for number in (0, 1)] == ["file-0", "file-1"]
    with pytest.raises(FileNotFoundError):
        ahead.take(2)
    assert ahead.take(3).name == "file-3"
    ahead.close()


def test_the_window_bounds_how_far_ahead_is_fetched() -> None:
    reached = threading.Event()
    cache = FakeCache(lambda name: reached.set() if name == "file-4" else None)
    ahead = look_ahead(cache, 100, Window(5, None))
    ahead.start(2)
    assert reached.wait(10)
    ahead.close()
    assert len(cache.obtained) == 5


def test_after_the_last_file_the_next_pass_is_fetched() -> None:
    reached = threading.Event()
    cache = FakeCache(lambda name: reached.set() if name == "next-2" else None)
    ahead = look_ahead(cache, 2, upcoming=3)
    ahead.start(1)
    for number in range(2):
        ahead.take(number)
    assert reached.wait(10)
    ahead.close()
    assert set(cache.obtained) == {"file-0", "file-1", "next-0", "next-1", "next-2"}


@pytest.mark.parametrize("number", [errno.EIO, errno.EAGAIN, errno.ESTALE, errno.ETIMEDOUT])
def test_passing_errors_are_tried_again_and_counted(number: int) -> None:
    failures = [OSError(number, "passing")]
    counters = Counters()

    def work() -> str:
        if failures:
            raise failures.pop()
        return "done"

    assert patiently(work, threading.Event(), counters.count_retry) == "done"
    assert counters.retries == 1


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EACCES, errno.EPERM, errno.EISDIR])
def test_lasting_errors_are_raised_at_once(number: int) -> None:
    calls = []

    def work() -> None:
        calls.append(1)
        raise OSError(number, "lasting")

    with pytest.raises(OSError, match="lasting"):
        patiently(work, threading.Event(), Counters().count_retry)
    assert len(calls) == 1
    assert not is_passing(OSError(number, ""))


def test_waiting_for_an_error_to_pass_ends_when_nobody_wants_the_file() -> None:
    stop = threading.Event()

    def work() -> None:
        stop.set()
        raise OSError(errno.EIO, "passing")

    with pytest.raises(Stopped):
        patiently(work, stop, Counters().count_retry)


def test_errors_without_a_path_get_one() -> None:
    with pytest.raises(OSError, match="/volume/file") as raised, naming("/volume/file"):
        os.read(-1, 1)
    assert raised.value.errno == errno.EBADF
