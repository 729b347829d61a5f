"""`ucfuse status`: every mount of this user, and what it has done since it began."""

import argparse
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ucfuse.cli import default_paths, filestatus, portability, watching
from ucfuse.cli.reports import print_reports, reports_of
from ucfuse.units import duration_text, size_text

__all__ = ["build_parser", "run"]


def run(arguments: Sequence[str]) -> int:
    """Print the mounts; return 1 if one of them does not answer."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    if (options.file is not None) + options.watch + options.portability > 1:
        parser.error("--watch, --file and --portability exclude each other")
    if options.file is not None:
        return filestatus.show(options.file, as_json=options.json)
    runtime_dir = default_paths.runtime_dir(os.environ)
    if options.watch:
        return watching.watch(runtime_dir, as_json=options.json)
    if options.portability:
        return portability.show(runtime_dir, time.time(), as_json=options.json)
    return print_reports(reports_of(runtime_dir), _text_of, as_json=options.json)


def _text_of(answer: Mapping[str, Any]) -> Iterator[str]:
    memory = answer["memory"]
    uptime = duration_text(answer["uptime_s"])
    yield f"  ucfuse {answer['version']}, pid {answer['pid']}, up {uptime}"
    yield f"  store      {_counts(answer['store_requests'])}"
    sent, received = answer["store_bytes_sent"], answer["store_bytes_received"]
    yield f"  bytes      {size_text(sent)} sent, {size_text(received)} received"
    yield f"  programs   {_counts(answer['fuse_requests'])}"
    reserved, limit = memory["reserved_bytes"], memory["limit_bytes"]
    yield f"  memory     {size_text(reserved)} of {size_text(limit)}"
    if cache := answer.get("disk_cache"):
        used, limit = size_text(cache["used_bytes"]), size_text(cache["limit_bytes"])
        read, written = size_text(cache["bytes_read"]), size_text(cache["bytes_written"])
        yield (
            f"  disk cache {used} of {limit}; hits {cache['hits']}, misses {cache['misses']};"
            f" {read} read, {written} written"
        )
    for volume in answer.get("volumes", ()):
        if volume["name"]:
            mark = ", read-only" if volume["read_only"] else ""
            yield f"  volume     {volume['name']} is {volume['source'] or 'nowhere'}{mark}"
        if volume.get("problem"):
            yield f"  problem    {volume['name'] or volume['source']}: {volume['problem']}"
        if volume["is_away"]:
            yield f"  away       {volume['source']}: no answer; asked again all the time"
    if answer["skipped_keys"]:
        yield f"  skipped    {answer['skipped_keys']} keys that cannot be file names"
    for file in answer["uncommitted"]:
        why = f": {file['error']}" if file["error"] else ""
        size, age = size_text(file["bytes"]), duration_text(file["age_s"])
        yield f"  to commit  {file['path']} ({size}, for {age}){why}"
    if answer["kept"]:
        yield f"  kept       {answer['kept']} files; see `ucfuse recover list`"
    for warning in answer["warnings"]:
        yield f"  warning    {warning}"


def _counts(requests: Mapping[str, int]) -> str:
    used = [f"{kind} {count}" for kind, count in requests.items() if count]
    return ", ".join(used) or "nothing yet"


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of this command."""
    parser = argparse.ArgumentParser(
        prog="ucfuse status", description="Show the mounts of this user.", allow_abbrev=False
    )
    parser.add_argument("--json", action="store_true", help="print a list of objects")
    parser.add_argument(
        "--file", type=Path, metavar="PATH", help="show what a mount knows of this file instead"
    )
    parser.add_argument(
        "--watch", action="store_true", help="show rates and latencies, each second anew"
    )
    parser.add_argument(
        "--portability",
        action="store_true",
        help="show instead what programs did that Databricks' own mount refuses",
    )
    return parser
