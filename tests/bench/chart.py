#!/usr/bin/env python3
"""Draw the figures of `peers.py --json` as bars: one group for each row, in the row's own scale.

    chart.py figures.json figures.svg [--title TEXT]

Prints the same as a table for a README.
"""

import argparse
import json
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path

Table = Mapping[str, Mapping[str, Mapping[str, float]]]

COLOURS = {"ours": "#1f6feb", "s3fs": "#8b949e", "rclone": "#b1bac4", "direct": "#57606a"}
OTHER_COLOUR = "#d29922"
SHOWN = {"ours": "ucfuse"}
LABEL_PX, BAR_PX, VALUE_PX = 220, 380, 150
FONT = 'font-family="sans-serif" font-size="12"'
LINE_PX, GAP_PX, TOP_PX = 17, 12, 40


def bars(table: Table) -> Iterator[tuple[int, str]]:
    """Yield the height at which each piece stands, and the piece."""
    at = TOP_PX
    for heading, row in table.items():
        longest = max(cell["rate"] for cell in row.values())
        middle = at + LINE_PX * len(row) / 2 + 4
        place = f'x="{LABEL_PX - 10}" y="{middle}"'
        yield at, f'<text {place} text-anchor="end">{escape(heading)}</text>'
        for name, cell in row.items():
            width = max(1.0, BAR_PX * cell["rate"] / longest)
            colour = COLOURS.get(name, OTHER_COLOUR)
            late, opacity = (" late", ' opacity="0.4"') if cell["late"] else ("", "")
            text = f"{cell['rate']:,.0f} {SHOWN.get(name, name)}{late}"
            bar = f'<rect x="{LABEL_PX}" y="{at}" width="{width:.0f}" height="{LINE_PX - 3}"'
            yield at, f'{bar} fill="{colour}"{opacity}/>'
            beside = f'<text x="{LABEL_PX + width + 6:.0f}" y="{at + LINE_PX - 6}">'
            yield at, f"{beside}{escape(text)}</text>"
            at += LINE_PX
        at += GAP_PX


def draw(table: Table, title: str) -> str:
    """Return the chart as SVG."""
    pieces = list(bars(table))
    height = pieces[-1][0] + LINE_PX + GAP_PX
    width = LABEL_PX + BAR_PX + VALUE_PX
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" {FONT}>',
            f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
            f'<text x="{LABEL_PX}" y="22" font-size="14">{escape(title)}</text>',
            *(piece for _, piece in pieces),
            "</svg>\n",
        ]
    )


def markdown(table: Table) -> str:
    """Return the rates as a table."""
    names = list(dict.fromkeys(name for row in table.values() for name in row))
    lines = [["work", *(SHOWN.get(name, name) for name in names)], ["---"] * (len(names) + 1)]
    for heading, row in table.items():
        lines.append([heading, *(cell_text(row.get(name)) for name in names)])
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def cell_text(cell: Mapping[str, float] | None) -> str:
    """Return one rate as text; empty where nothing was measured."""
    if cell is None:
        return ""
    return f"{cell['rate']:,.0f}{' late' if cell['late'] else ''}"


def main() -> None:
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("figures", type=Path)
    p.add_argument("chart", type=Path)
    p.add_argument("--title", default="")
    a = p.parse_args()
    table = json.loads(a.figures.read_text())
    a.chart.write_text(draw(table, a.title))
    print(markdown(table))


if __name__ == "__main__":
    main()
