"""`ucfuse status --portability`: what programs did that Databricks' own mount refuses."""

import errno
import os
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ucfuse.cli.reports import print_reports, reports_of
from ucfuse.units import duration_text

__all__ = ["show"]


def show(runtime_dir: Path, now_s: float, *, as_json: bool) -> int:
    """Print it of every mount; return 1 if one of them does not answer."""
    reports = reports_of(runtime_dir, "portability")
    return print_reports(reports, partial(_text_of, now_s), as_json=as_json)


def _text_of(now_s: float, answer: Mapping[str, Any]) -> Iterator[str]:
    if not answer["operations"]:
        yield "  nothing that Databricks' own mount would refuse"
    for met in answer["operations"]:
        times = "once" if met["count"] == 1 else f"{met['count']} times"
        ago = duration_text(max(0.0, now_s - met["last_at_s"]))
        yield f"  {met['operation']}: {met['program']}, {met['path']} ({times}, {ago} ago)"
        errnos = (f"{mode} {_name_of(code)}" for mode, code in met["errnos"].items())
        yield f"    {', '.join(errnos)}"
    if answer["dropped"]:
        yield f"  and {answer['dropped']} older ones, of which nothing is known any more"


def _name_of(code: int) -> str:
    # 95 has two names in Python; this is the one that tools print.
    name = "EOPNOTSUPP" if code == errno.EOPNOTSUPP else errno.errorcode[code]
    return f"{name} ({code}, {os.strerror(code)})"
