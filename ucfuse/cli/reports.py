"""What every mount of this user says of itself, or why it says nothing; `status` prints it."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ucfuse.cli.client import ANSWER_TIMEOUT_S, Silent, ask
from ucfuse.kernel.mountpoint import our_mount_at
from ucfuse.registry import MountRecord, forget_record, list_records

__all__ = ["Report", "print_reports", "reports_of"]


@dataclass(frozen=True, slots=True)
class Report:
    """One mount: what its daemon says of it, or why it says nothing."""

    record: MountRecord
    answer: Mapping[str, Any] | None
    problem: str = ""

    def as_json(self) -> Mapping[str, Any]:
        """Return the daemon's answer, or what is known without it and the `problem`."""
        if self.answer is not None:
            return {**self.answer, "mountpoint": self.record.mountpoint}
        known = self.record
        return {
            "mountpoint": known.mountpoint,
            "source": known.source,
            "version": known.version,
            "pid": known.pid,
            "problem": self.problem,
        }


def reports_of(runtime_dir: Path, command: str = "status") -> list[Report]:
    """Return one for every mount of this user: its answer to `command`."""
    reports = (_report(runtime_dir, record, command) for record in list_records(runtime_dir))
    return [report for report in reports if report is not None]


def print_reports(
    reports: Sequence[Report],
    text_of: Callable[[Mapping[str, Any]], Iterator[str]],
    *,
    as_json: bool,
) -> int:
    """Print them, an answer as the lines that `text_of` makes of it; return 1 if one is missing."""
    if as_json:
        print(json.dumps([report.as_json() for report in reports], indent=2))
    else:
        print("\n".join(_lines(reports, text_of)))
    return 1 if any(report.problem for report in reports) else 0


def _lines(
    reports: Sequence[Report], text_of: Callable[[Mapping[str, Any]], Iterator[str]]
) -> Iterator[str]:
    if not reports:
        yield "no mounts"
    for report in reports:
        yield f"{report.record.mountpoint}  {report.record.source}"
        if report.answer is None:
            yield f"  pid {report.record.pid}: {report.problem}"
        else:
            yield from text_of(report.answer)


def _report(runtime_dir: Path, record: MountRecord, command: str) -> Report | None:
    """Ask the daemon. None: it ended, and its mount is gone too; then its record goes."""
    try:
        for answer in ask(runtime_dir, record, command):
            if "error" in answer:
                problem = f"its daemon, version {record.version}, cannot tell; mount it again"
                return Report(record, None, problem)
            return Report(record, answer)
    except Silent:
        pass
    if record.may_be_running():
        return Report(record, None, f"the daemon does not answer within {ANSWER_TIMEOUT_S:g} s")
    if our_mount_at(Path(record.mountpoint)) is None:
        forget_record(runtime_dir, record)
        return None
    return Report(
        record,
        None,
        f"the daemon has died; run `ucfuse umount {record.mountpoint}`, or mount it again",
    )
