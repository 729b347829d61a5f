"""`ucfuse status --watch`: rates and latencies of every mount, each second anew.

On a terminal the picture is drawn over the last one; elsewhere one follows the other. Ctrl-C ends
it. What is shown is what changed since the last time, so a mount that is new shows nothing yet.
"""

import json
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ucfuse.cli.client import Silent, ask
from ucfuse.cli.reports import Report, reports_of
from ucfuse.latency import quantile
from ucfuse.units import duration_text, latency_text, size_text

__all__ = ["Sample", "picture_of", "watch"]

PERIOD_S = 1.0
# Home, and erase what is below: a picture that is drawn over the last one does not flicker.
CLEAR = "\x1b[H\x1b[J"

Histograms = Mapping[str, Mapping[str, Sequence[int]]]


@dataclass(frozen=True, slots=True)
class Sample:
    """What one mount said at one moment."""

    at_s: float
    report: Report
    histograms: Histograms


def watch(runtime_dir: Path, *, as_json: bool) -> int:
    """Show it until Ctrl-C; return 0."""
    before: dict[str, Sample] = {}
    try:
        while True:
            samples = [_sample(runtime_dir, report) for report in reports_of(runtime_dir)]
            if as_json:
                print(json.dumps([sample.report.as_json() for sample in samples]), flush=True)
            else:
                _draw([line for sample in samples for line in picture_of(sample, before)])
            before = {sample.report.record.mountpoint: sample for sample in samples}
            time.sleep(PERIOD_S)
    except KeyboardInterrupt:
        return 0


def _sample(runtime_dir: Path, report: Report) -> Sample:
    histograms: Histograms = {}
    if report.answer is not None:
        with suppress(Silent):  # it has just ended; the next picture says so
            histograms = next(ask(runtime_dir, report.record, "histograms"), {})
    return Sample(time.monotonic(), report, histograms)


def _draw(lines: Sequence[str]) -> None:
    lines = lines or ["no mounts"]
    if sys.stdout.isatty():
        height = shutil.get_terminal_size().lines
        print(CLEAR + "\n".join(lines[: height - 1]), flush=True)
    else:
        print("\n".join(lines) + "\n", flush=True)


def picture_of(sample: Sample, before: Mapping[str, Sample]) -> Iterator[str]:
    """Yield the lines of one mount: what it did since the sample before."""
    record, answer = sample.report.record, sample.report.answer
    yield f"{record.mountpoint}  {record.source}"
    if answer is None:
        yield f"  pid {record.pid}: {sample.report.problem}"
        return
    last = before.get(record.mountpoint)
    old = last.report.answer if last is not None else None
    seconds = sample.at_s - last.at_s if last is not None else 0.0
    if last is None or old is None or old["pid"] != answer["pid"] or seconds <= 0:
        yield f"  up {duration_text(answer['uptime_s'])}"
        return
    yield from _totals(answer, old, seconds)
    yield from _table(sample.histograms, last.histograms, seconds)


def _totals(answer: Mapping[str, Any], old: Mapping[str, Any], seconds: float) -> Iterator[str]:
    def rate(key: str) -> float:
        return float(answer[key] - old[key]) / seconds

    received, sent = rate("store_bytes_received"), rate("store_bytes_sent")
    memory = answer["memory"]
    yield (
        f"  up {duration_text(answer['uptime_s'])},"
        f" memory {size_text(memory['reserved_bytes'])} of {size_text(memory['limit_bytes'])}"
    )
    yield (
        f"  received {size_text(int(received))}/s, sent {size_text(int(sent))}/s,"
        f" unchanged {rate('store_unchanged'):.0f}/s"
    )
    if (cache := answer["disk_cache"]) and (old_cache := old["disk_cache"]):
        hits, misses = (cache[key] - old_cache[key] for key in ("hits", "misses"))
        share = f" ({100 * hits / (hits + misses):.0f} % hits)" if hits + misses else ""
        yield f"  disk cache hits {hits / seconds:.0f}/s, misses {misses / seconds:.0f}/s{share}"
    for volume in answer["volumes"]:
        if volume["is_away"]:
            yield f"  away {volume['source']}: no answer; asked again all the time"
    if files := answer["uncommitted"]:
        size = size_text(sum(file["bytes"] for file in files))
        yield f"  to commit {len(files)} files, {size}"


def _table(now: Histograms, before: Histograms, seconds: float) -> Iterator[str]:
    """Yield a line for every kind of request there was since the mount began."""
    yield f"  {'':14}{'per second':>12}{'p50':>10}{'p99':>10}{'in all':>12}"
    for side, kinds in now.items():
        for kind, counts in kinds.items():
            old = before.get(side, {}).get(kind) or [0] * len(counts)
            recent = [new - last for new, last in zip(counts, old, strict=True)]
            if not sum(recent):
                p50 = p99 = "-"
            else:
                p50, p99 = (latency_text(quantile(recent, share)) for share in (0.5, 0.99))
            rate = sum(recent) / seconds
            yield f"  {f'{side} {kind}':14}{rate:>12,.0f}{p50:>10}{p99:>10}{sum(counts):>12,}"
