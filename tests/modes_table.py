"""The README's table of modes, read as a program reads it."""

import errno
import re
from pathlib import Path

__all__ = ["errno_in", "rows"]

README = Path(__file__).resolve().parents[1] / "README.md"


def rows() -> dict[str, dict[str, str]]:
    """Return the table: by operation, then by mode, what its cell says."""
    section = README.read_text().split("\n## Modes\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    titles = [title.strip("`") for title in cells[0]]
    return {row[0].strip("`"): dict(zip(titles, row, strict=True)) for row in cells[2:]}


def errno_in(cell: str) -> int:
    """Return the errno that a cell begins with, whose name must fit; 0 for `done`."""
    if cell == "done":
        return 0
    found = re.match(r"(E[A-Z]+) \((\d+)\)", cell)
    assert found, cell
    assert getattr(errno, found[1]) == int(found[2])
    return int(found[2])
