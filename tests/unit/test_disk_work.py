"""Where a copy waits for its disk: in the loop while that is quick, in threads when it is not."""

import threading
import time

import pytest

from ucfuse.copying.disk_work import SMALL_BYTES, WORKS_IN_THREADS, DiskWork

pytestmark = pytest.mark.trio


def thread() -> int:
    return threading.get_ident()


def wait() -> int:
    time.sleep(0.01)
    return thread()


def compute() -> int:
    """Take as long without waiting for anything."""
    until = time.thread_time() + 0.01
    while time.thread_time() < until:
        pass
    return thread()


async def test_small_work_is_done_in_the_loop_and_large_or_unknown_work_in_threads() -> None:
    disk = DiskWork()

    assert await disk.run(thread, SMALL_BYTES) == thread()
    assert await disk.run(thread, SMALL_BYTES + 1) != thread()
    assert await disk.run(thread) != thread()


async def test_after_a_wait_the_next_ones_get_threads_and_then_the_disk_is_tried_again() -> None:
    disk = DiskWork()

    assert await disk.run(wait, 1) == thread()

    for _ in range(WORKS_IN_THREADS):
        assert await disk.run(thread, 1) != thread()
    assert await disk.run(thread, 1) == thread()
    assert await disk.run(thread, 1) == thread()


async def test_an_error_is_raised_and_its_wait_counts() -> None:
    disk = DiskWork()

    def fail() -> None:
        time.sleep(0.01)
        raise OSError(28, "no room")

    with pytest.raises(OSError, match="no room"):
        await disk.run(fail, 1)

    assert await disk.run(thread, 1) != thread()


async def test_computing_is_no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is it one if a busy machine took the core away: the clock alone could not tell."""
    disk = DiskWork()
    monkeypatch.setattr("ucfuse.copying.disk_work._sleeps", lambda: 0)

    assert await disk.run(compute, 1) == thread()

    assert await disk.run(thread, 1) == thread()
