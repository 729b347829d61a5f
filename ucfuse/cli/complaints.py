"""One line for what went wrong: the thing, the cause, and what mends it.

The commands print with it whatever they have no better words for. It goes by the kind of a cause
and by errnos, never by texts.
"""

import errno
import os
from collections.abc import Mapping

from ucfuse.errors import (
    AccessDenied,
    OutcomeUnclear,
    StoreUnavailable,
    Throttled,
    VolumeError,
)

__all__ = ["line_of"]

DAEMON_DIED = "the daemon of its mount has died; `ucfuse status` names it"
NOT_ALLOWED = "run this as a user who may use it"

_CAUSES: Mapping[int, str] = {errno.ENOTCONN: DAEMON_DIED, errno.ECONNABORTED: DAEMON_DIED}
_MENDS: Mapping[int, str] = {errno.EACCES: NOT_ALLOWED, errno.EPERM: NOT_ALLOWED}

_MENDS_OF_STORES: Mapping[type[VolumeError], str] = {
    AccessDenied: "see the credentials in use and what they allow",
    StoreUnavailable: "see the network and --endpoint-url",
    OutcomeUnclear: "see the network and --endpoint-url, then try again",
    Throttled: "try again later",
}


def line_of(error: BaseException) -> str:
    """Return what to tell the user: of a group, its first error."""
    match error:
        case BaseExceptionGroup():
            return line_of(error.exceptions[0])
        case VolumeError():
            cause = error.detail.rstrip(".") or type(error).__name__
            return _joined(error.subject, cause, _MENDS_OF_STORES.get(type(error), ""))
        case OSError():
            subject = os.fsdecode(error.filename) if error.filename else ""
            number = error.errno or 0
            cause = _CAUSES.get(number) or error.strerror or str(error)
            return _joined(subject, cause, _MENDS.get(number, ""))
        case _:  # a `ConfigError` has it all
            return str(error)


def _joined(subject: str, cause: str, mend: str) -> str:
    return (f"{subject}: " if subject else "") + cause + (f"; {mend}" if mend else "")
