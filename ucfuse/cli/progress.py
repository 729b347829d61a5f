"""How far a copy is: a bar on a terminal, a line now and then elsewhere, on standard error."""

import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
from tqdm import tqdm  # type: ignore[import-untyped]

from ucfuse.copying.tally import Tally
from ucfuse.units import duration_text, size_text

__all__ = ["show_progress"]

BAR_PERIOD_S = 0.2
# What a log can bear of a copy that takes hours.
LINE_PERIOD_S = 5.0


@asynccontextmanager
async def show_progress(tally: Tally, *, quiet: bool) -> AsyncIterator[None]:
    """Show how far it is while the block runs."""
    if quiet:
        yield
        return
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_draw_bar if sys.stderr.isatty() else _print_lines, tally)
        yield
        nursery.cancel_scope.cancel()


async def _draw_bar(tally: Tally) -> None:
    # No bar is left behind: the sum that follows says it all. In a terminal that does not tell its
    # size, tqdm by itself would find no room.
    width, height = shutil.get_terminal_size()
    units = {"unit": "B", "unit_scale": True, "unit_divisor": 1024}
    with tqdm(**units, leave=False, ncols=width, nrows=height, file=sys.stderr) as bar:
        while True:
            bar.total = tally.found_bytes
            bar.set_postfix_str(_files(tally), refresh=False)
            bar.update(tally.done_bytes - bar.n)
            await trio.sleep(BAR_PERIOD_S)


async def _print_lines(tally: Tally) -> None:
    began = trio.current_time()
    while True:
        await trio.sleep(LINE_PERIOD_S)
        print(line_of(tally, trio.current_time() - began), file=sys.stderr, flush=True)


def line_of(tally: Tally, seconds: float) -> str:
    """Say how far it is after so many seconds, how fast it goes, and how long the rest takes."""
    rate = tally.moved_bytes / seconds
    left = tally.found_bytes - tally.done_bytes
    eta = f", {duration_text(left / rate)} left" if rate and tally.is_listed else ""
    return (
        f"{_files(tally)}, {size_text(tally.done_bytes)} of {size_text(tally.found_bytes)},"
        f" {size_text(int(rate))}/s{eta}"
    )


def _files(tally: Tally) -> str:
    more = "" if tally.is_listed else " or more"
    failed = f", {tally.failed_count} failed" if tally.failed_count else ""
    return f"{tally.done_files:,} of {tally.found_files:,}{more} files{failed}"
