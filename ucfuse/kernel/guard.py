"""The guard around every request handler: it counts, times, and lets nothing but errnos out.

`FuseOperations` decorates its handlers with `answers`. pyfuse3 ends the whole mount when anything
but `FUSEError` leaves a handler, so an exception that nobody foresaw becomes EIO here, with its
traceback in the log.
"""

import errno
import logging
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import trio
from pyfuse3 import FUSEError

from ucfuse.errors import StagingFull, StoreError, VolumeError
from ucfuse.kernel.errnos import errno_for
from ucfuse.metrics import Metrics

__all__ = ["answers"]

log = logging.getLogger(__name__)


class Counting(Protocol):
    """An object whose handlers count what they are asked, and know what is not answered yet."""

    @property
    def metrics(self) -> Metrics: ...

    @property
    def under_way(self) -> set[object]: ...


S = TypeVar("S", bound=Counting)
P = ParamSpec("P")
R = TypeVar("R")
Handler = Callable[Concatenate[S, P], Coroutine[Any, Any, R]]


def answers(
    request: str, *, moves_data: bool = False
) -> Callable[[Handler[S, P, R]], Handler[S, P, R]]:
    """Make a method the handler of `request`: counted, causes turned into errnos.

    `moves_data` is for reads, writes, flush and fsync, which have errnos of their own.
    """

    def guard(handler: Handler[S, P, R]) -> Handler[S, P, R]:
        @wraps(handler)
        async def guarded(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
            self.metrics.fuse_requests[request] += 1
            this = object()
            self.under_way.add(this)
            began = trio.current_time()
            try:
                return await handler(self, *args, **kwargs)
            except FUSEError:
                raise
            except VolumeError as cause:
                log.log(_level_of(cause), "%s refused: %s", request, cause)
                raise FUSEError(errno_for(cause, moves_data=moves_data)) from cause
            except Exception:
                log.exception("%s failed: this is a bug in ucfuse", request)
                raise FUSEError(errno.EIO) from None
            finally:
                self.under_way.discard(this)
                self.metrics.fuse_latencies[request].add(trio.current_time() - began)

        return guarded

    return guard


def _level_of(cause: VolumeError) -> int:
    """Programs ask for names that do not exist all the time; the store failing is news."""
    return logging.WARNING if isinstance(cause, StoreError | StagingFull) else logging.DEBUG
