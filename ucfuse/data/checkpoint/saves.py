"""The async saves of this process: those that run, and failures that nobody has heard of.

`dcp.async_save` tells of a failure through a future, and programs drop it. So every future is
watched here; a failure that was not asked for is raised by the next save or load, and at the
latest makes the process end with a message and an exit code other than zero.

Concurrency: safe in any thread.
"""

import atexit
import os
import sys
import threading
import traceback
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from torch.distributed.checkpoint.api import CheckpointException

from ucfuse.data.checkpoint.errors import SaveFailed, Stalled

__all__ = ["is_watched", "settle", "take_failure", "wait", "watch"]

# A save has deadlines of its own; this only bounds a defect in somebody else's executor.
LONGEST_SAVE_S = 24 * 3600.0


@dataclass(slots=True, eq=False)
class _Save:
    """One async save. `message` says why it failed; `heard`: the program knows."""

    path: str
    ended: threading.Event = field(default_factory=threading.Event)
    message: str | None = None
    heard: bool = False


class _WatchedFuture(Future[Any]):
    """A future that notes when its outcome was asked for."""

    _save: _Save

    def result(self, timeout: float | None = None) -> Any:
        return self._hear(super().result, timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        found: BaseException | None = self._hear(super().exception, timeout)
        return found

    def _hear(self, ask: Any, timeout: float | None) -> Any:
        try:
            return ask(timeout)
        finally:
            if self.done():
                self._save.heard = True


_lock = threading.Lock()
_running: set[_Save] = set()
_failed: list[_Save] = []


def watch(future: Future[Any], path: str | os.PathLike[str]) -> None:
    """Follow an async save to its end, once. Its future stays what it was, for who keeps it."""
    save = _Save(os.fspath(path))
    with _lock:
        if is_watched(future):
            return
        # The only way to see whether a program asks: it has this very object.
        future.__class__ = _WatchedFuture
        future._save = save  # type: ignore[attr-defined]
        _running.add(save)
    future.add_done_callback(_note_end)


def is_watched(future: Future[Any]) -> bool:
    """Say whether `watch` has it already."""
    return isinstance(future, _WatchedFuture)


def _note_end(future: Future[Any]) -> None:
    save: _Save = future._save  # type: ignore[attr-defined]
    # Kept as text: an exception holds its frames, and they hold the whole staged state.
    error = None if future.cancelled() else Future.exception(future)
    if future.cancelled():
        save.message = "it was cancelled"
    elif error is not None:
        save.message = _told(error)
    with _lock:
        _running.discard(save)
        if save.message is not None:
            _failed.append(save)
    save.ended.set()


def _told(error: BaseException) -> str:
    if isinstance(error, CheckpointException):
        # What it says by itself is the traceback of each rank.
        return "; ".join(
            f"rank {rank}: {_told(cause)}" for rank, (cause, _) in sorted(error.failures.items())
        )
    return "".join(traceback.format_exception_only(error)).strip()


def wait(but: Future[Any] | None = None) -> None:
    """Wait until no async save of this process runs, `but` that of the caller. Raises `Stalled`."""
    with _lock:
        running = [save for save in _running if save is not getattr(but, "_save", None)]
    for save in running:
        if not save.ended.wait(LONGEST_SAVE_S):
            raise Stalled(f"the async save to {save.path} does not end")


def take_failure() -> SaveFailed | None:
    """Return the failures that nobody has heard of yet; from now on somebody has."""
    with _lock:
        unheard = [save for save in _failed if not save.heard]
        _failed.clear()
    if not unheard:
        return None
    return SaveFailed(
        "\n".join(f"the async save to {save.path} failed: {save.message}" for save in unheard)
    )


def settle() -> None:
    """Wait for the saves that run. Raises `SaveFailed`: one of them failed, and nobody heard."""
    wait()
    failure = take_failure()
    if failure is not None:
        raise failure


class _BadEnd:
    """Stands for a standard stream and cannot be flushed: the interpreter then exits with 120.

    An exit function cannot set the exit code, and must not skip those of others by leaving.
    """

    def __init__(self, stream: Any, failure: SaveFailed) -> None:
        self._stream = stream
        self._failure = failure

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def flush(self) -> None:
        if self._stream is not None:
            self._stream.flush()
        raise self._failure


@atexit.register
def _at_exit() -> None:
    """Say what failed unheard. Executors have ended by now, and their saves with them."""
    wait()
    failure = take_failure()
    if failure is not None:
        sys.stderr.write(f"ucfuse: {failure}\n")
        sys.stdout = _BadEnd(sys.stdout, SaveFailed("a checkpoint was not saved; see above"))


def _forget_parents_saves() -> None:
    """Run in a forked child: they are its parent's."""
    global _lock
    _lock = threading.Lock()
    _running.clear()
    _failed.clear()


os.register_at_fork(after_in_child=_forget_parents_saves)
