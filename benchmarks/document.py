"""Writes docs/performance.md from the figures that are stored: `python -m benchmarks.document`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from benchmarks import _results

PAGE = Path(__file__).parent.parent / "docs" / "performance.md"
IMAGES = PAGE.parent / "images"

START = """# Performance

What lox costs, measured by `python -m benchmarks --record`, which runs all benchmarks and makes this page of them. The
functions of a comparison run in turns in one process; a figure is the median of their ratios, with the first and the
third quartile in brackets. Times are processor time of the process, over all its threads, without compilation unless a
table says so; a difference below zero is less than their noise. `!` marks a figure that misses its target. [Where the
time goes](internals/performance.md) says why. The benchmarks need the extra `test`.
"""

CHAPTERS = {
    "absence": "Logs that nobody listens to",
    "overhead": "`lox.spool` over the function written by hand",
    "timelines": "Keys that are logged together",
    "bounded": "Bounded events of loops of unknown length",
    "peers": "Other ways of logging",
    "dispatch": "Eager calls",
    "memory": "Reduced and thinned logs",
    "tracing": "How tracing grows",
    "streaming": "`lox.tap`",
    "saving": "Loggers and files",
    "growth": "How cost grows",
    "scale": "Bytes at scale",
    "importing": "Importing",
    "auditing": "`lox.audit`",
}


def write() -> None:
    """Writes the page and its plots."""
    PAGE.write_text("\n".join(_lines()).rstrip() + "\n")


def _lines() -> Iterator[str]:
    yield START
    for machine, result in _results.stored():
        yield f"## {result['device']}, jax {result['jax']}, Python {result['python']}\n"
        for name, chapter in CHAPTERS.items():
            tables = result["benchmarks"].get(name, [])
            if tables:
                yield f"### {chapter}\n"
            for index, table in enumerate(tables):
                yield from _table(table)
                if table["curve"]:
                    image = IMAGES / f"performance-{machine}-{name}-{index}.svg"
                    _draw(table, image)
                    yield f"![{table['title']}]({image.relative_to(PAGE.parent)})\n"


def _table(table: dict[str, Any]) -> Iterator[str]:
    yield f"**{table['title']}**\n"
    yield _row(table["columns"])
    yield _row("---" for _ in table["columns"])
    for row in table["rows"]:
        yield _row(cell["text"] if isinstance(cell, dict) else str(cell) for cell in row)
    yield ""
    if table["note"]:
        yield table["note"] + "\n"


def _row(cells: Any) -> str:
    return "| " + " | ".join(cell.strip().replace("|", "\\|") for cell in cells) + " |"


def _draw(table: dict[str, Any], path: Path) -> None:
    """Draws the rows of a table as lines, both axes logarithmic."""
    curve = table["curve"]
    with matplotlib.rc_context({"svg.hashsalt": path.stem, "font.size": 8}):  # The same file for the same figures.
        figure = Figure(figsize=(7, 3.2), layout="constrained")
        axes = figure.subplots()
        for row, (name, *cells) in enumerate(table["rows"]):
            figures = [cell for cell in cells[: len(curve["sizes"])] if isinstance(cell, dict)]
            sizes = curve["sizes"][: len(figures)]
            values = [cell["value"] if cell["value"] > 0 else math.nan for cell in figures]
            axes.plot(sizes, values, marker=".", linestyle="-" if row < 10 else "--", label=name)
        axes.set(xscale="log", yscale="log", xlabel=curve["x"], ylabel=curve["y"])
        axes.grid(alpha=0.3)
        figure.legend(loc="outside right upper")
        path.parent.mkdir(exist_ok=True)
        figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    write()
