"""`ucfuse doctor`: say line by line whether mounts can work here, and what mends what cannot."""

import argparse
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import trio

from ucfuse.catalog.sources import parse_source
from ucfuse.cli import default_paths, store_options
from ucfuse.config import Source, StoreOptions
from ucfuse.doctor.bucket import examine_store
from ucfuse.doctor.findings import Finding, Level
from ucfuse.doctor.machine import Machine, examine_machine
from ucfuse.errors import ConfigError

__all__ = ["build_parser", "run"]


def run(arguments: Sequence[str]) -> int:
    """Print one line per check; return 1 if one of them failed."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    try:
        source = parse_source(options.source) if options.source else None
    except ConfigError as error:
        parser.error(str(error))
    reach = store_options.store_of(options)
    findings: list[Finding] = []

    def tell(finding: Finding) -> None:
        findings.append(finding)
        if not options.json:
            print(_line_of(finding), flush=True)

    for finding in examine_machine(Machine(state_dir=options.state_dir.absolute())):
        tell(finding)
    trio.run(_tell_of_store, source, reach, tell)
    if options.json:
        print(json.dumps([{**asdict(f), "level": f.level.value} for f in findings], indent=2))
    return 1 if any(finding.level is Level.FAIL for finding in findings) else 0


async def _tell_of_store(
    source: Source | None, reach: StoreOptions, tell: Callable[[Finding], None]
) -> None:
    async for finding in examine_store(source, reach):
        tell(finding)


def _line_of(finding: Finding) -> str:
    mend = f"; {finding.mend}" if finding.mend else ""
    return f"{finding.level.value:4}  {finding.subject}: {finding.detail}{mend}"


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ucfuse doctor",
        description="Look at this machine, and at a store if one is named: s3://BUCKET[/PREFIX]."
        " There one small object is written and removed.",
        allow_abbrev=False,
    )
    parser.add_argument("source", nargs="?", metavar="SOURCE", help="what you want to mount")
    parser.add_argument("--endpoint-url", metavar="URL", help="as for `ucfuse mount`")
    parser.add_argument("--region", metavar="NAME", help="likewise")
    parser.add_argument("--profile", metavar="NAME", help="likewise")
    parser.add_argument("--no-sign-request", action="store_true", help="likewise")
    parser.add_argument(
        "--state-dir",
        type=Path,
        default=default_paths.state_dir(os.environ),
        metavar="DIR",
        help="likewise (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print a list of objects")
    return parser
