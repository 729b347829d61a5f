"""One line of the report of `ucfuse doctor`."""

from dataclasses import dataclass
from enum import Enum

__all__ = ["Finding", "Level", "fail", "ok", "warn"]


class Level(Enum):
    """How a thing is."""

    OK = "ok"
    WARN = "warn"
    """Mounts work, but slower, or not for all that they could do."""
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. `mend` is empty where there is nothing to mend."""

    subject: str
    level: Level
    detail: str
    mend: str = ""


def ok(subject: str, detail: str) -> Finding:
    return Finding(subject, Level.OK, detail)


def warn(subject: str, detail: str, mend: str) -> Finding:
    return Finding(subject, Level.WARN, detail, mend)


def fail(subject: str, detail: str, mend: str) -> Finding:
    return Finding(subject, Level.FAIL, detail, mend)
