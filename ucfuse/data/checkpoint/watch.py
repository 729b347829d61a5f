"""Threads for file operations, and a deadline on their progress.

A system call that hangs cannot be broken off, but who waits for it can be told. What still hangs
is left behind in a daemon thread, which ends at its next `beat`.

Concurrency: `beat` may be called in any thread; one `run` at a time.
"""

import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from ucfuse.data.checkpoint.errors import Stalled

__all__ = ["Abandoned", "Watch"]

T = TypeVar("T")


class Abandoned(Exception):
    """Nobody waits for this thread any more, or another one has failed."""


class Watch:
    """Runs work in threads until it ends, fails, or makes no progress for `patience_s`."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._changed = threading.Condition()
        self._last_beat_at = time.monotonic()
        self._stopped = False
        self._errors: list[BaseException] = []
        self._running = 0

    def beat(self) -> None:
        """Say that something moved. Raises `Abandoned`."""
        with self._changed:
            if self._stopped:
                raise Abandoned
            self._last_beat_at = time.monotonic()

    def run(self, works: Sequence[Callable[[], T]]) -> list[T]:
        """Return what each of `works` returned, one thread for each.

        Raises the first error, when all have ended; `Stalled`.
        """
        results: list[T | None] = [None] * len(works)

        def work(number: int) -> None:
            error: BaseException | None = None
            try:
                results[number] = works[number]()
            except BaseException as raised:  # noqa: BLE001 - delivered to the caller of `run`
                error = raised
            self._ended(error)

        self._running = len(works)
        self._last_beat_at = time.monotonic()
        for number in range(len(works)):
            threading.Thread(target=work, args=(number,), daemon=True, name="checkpoint").start()
        try:
            self._wait()
        finally:
            with self._changed:
                self._stopped = True
        return results  # type: ignore[return-value]  # all are set: nothing was raised

    def _ended(self, error: BaseException | None) -> None:
        with self._changed:
            self._running -= 1
            self._last_beat_at = time.monotonic()
            if error is not None:
                self._stopped = True
                self._errors.append(error)
            self._changed.notify_all()

    def _wait(self) -> None:
        with self._changed:
            while self._running:
                left_s = self._last_beat_at + self._patience_s - time.monotonic()
                if left_s <= 0:
                    break
                self._changed.wait(left_s)
            if self._errors:
                raise self._errors[0]
            if self._running:
                raise Stalled(f"no file operation ended for {self._patience_s:g} s")
