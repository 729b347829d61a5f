"""Background work whose outcome is delivered to a waiter instead of being raised into a nursery.

Request handlers open no nurseries of their own (one would wrap causes in exception groups). They
start a `Pending` in the service nursery and wait for it; the work goes on if the waiter gives up,
but never past the deadline that the waiter had.

Whatever waits for a store waits within `deadline` or `abortable`, so `end_waits` can end it all.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from types import TracebackType
from typing import Generic, TypeVar

import trio

from ucfuse.errors import StoreUnavailable, VolumeError

__all__ = ["Pending", "abortable", "deadline", "end_waits", "in_parallel", "why_ended"]

log = logging.getLogger(__name__)
T = TypeVar("T")
Item = TypeVar("Item")


# Of one run of trio: all scopes that `end_waits` may end.
_waits: trio.lowlevel.RunVar[set[trio.CancelScope]] = trio.lowlevel.RunVar("waits")


def end_waits() -> None:
    """Let the deadline of everything that waits come now."""
    for scope in _waits.get(set()):
        scope.cancel()


def _waits_now() -> set[trio.CancelScope]:
    try:
        return _waits.get()
    except LookupError:
        waits: set[trio.CancelScope] = set()
        _waits.set(waits)
        return waits


@contextmanager
def abortable(scope: trio.CancelScope) -> Iterator[None]:
    """Let `end_waits` end the block, by the scope that it runs in."""
    waits = _waits_now()
    waits.add(scope)
    try:
        yield
    finally:
        waits.discard(scope)


class Pending(Generic[T]):
    """One piece of work under way; `wait` returns its result or raises its error."""

    def __init__(
        self,
        nursery: trio.Nursery,
        work: Callable[[], Awaitable[T]],
        *,
        until: float | None = None,
    ) -> None:
        """Begin `work`; `until` is its deadline if that is not the one of the caller's scope."""
        self._done = trio.Event()
        self._result: list[T] = []
        self._error: Exception | None = None
        if until is None:
            until = trio.current_effective_deadline()
        nursery.start_soon(self._run, work, until)

    async def _run(self, work: Callable[[], Awaitable[T]], until: float) -> None:
        try:
            with trio.CancelScope(deadline=until) as scope:
                self._result.append(await work())
            if scope.cancelled_caught:
                self._error = StoreUnavailable("background work", "no answer before the deadline")
        except Exception as error:
            if not isinstance(error, VolumeError):
                log.exception("background work failed: this is a bug")
            self._error = error
        finally:
            self._done.set()

    async def ended(self) -> None:
        """Wait for the end of the work, whatever it was."""
        await self._done.wait()

    async def wait(self) -> T:
        """Return the result. Raises what the work raised."""
        await self._done.wait()
        if self._error is not None:
            raise self._error
        if not self._result:  # the nursery was cancelled: the mount is ending
            raise StoreUnavailable("background work", "the mount is ending")
        return self._result[0]


class _Deadline:
    """A class, since every request enters several: a generator costs three times as much."""

    __slots__ = ("_scope", "_seconds", "_subject", "_waits")

    def __init__(self, seconds: float, subject: str) -> None:
        self._seconds = seconds
        self._subject = subject

    def __enter__(self) -> None:
        self._scope = scope = trio.move_on_after(self._seconds)
        scope.__enter__()
        self._waits = waits = _waits_now()
        waits.add(scope)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._waits.discard(self._scope)
        self._scope.__exit__(kind, error, trace)
        if self._scope.cancelled_caught:
            reason = why_ended(self._scope, f"no answer within {self._seconds:g} s")
            raise StoreUnavailable(self._subject, reason) from None


def deadline(seconds: float, subject: str) -> AbstractContextManager[None, None]:
    """Bound the block; a block that runs out of time ends in `StoreUnavailable`."""
    return _Deadline(seconds, subject)


def why_ended(scope: trio.CancelScope, otherwise: str) -> str:
    """Say why a scope was cancelled: before its time somebody asked for it."""
    was_early = trio.current_time() < scope.deadline
    return "ended on request, before an answer came" if was_early else otherwise


async def in_parallel(
    nursery: trio.Nursery,
    work: Callable[[Item], Awaitable[None]],
    items: Iterable[Item],
    width: int,
) -> None:
    """Run `work` for every item, at most `width` at once; all end before the first error is raised.

    After an error no further item begins.
    """
    room = trio.Semaphore(width)
    failures: list[Exception] = []

    async def one(item: Item) -> None:
        try:
            await work(item)
        except Exception as error:
            failures.append(error)
            raise
        finally:
            room.release()

    running: list[Pending[None]] = []
    for item in items:
        await room.acquire()
        if failures:
            break
        running.append(Pending(nursery, partial(one, item)))
    for pending in running:
        await pending.ended()
    if failures:
        raise failures[0]
    for pending in running:
        await pending.wait()  # raises if its deadline cut it off
