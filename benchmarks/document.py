"""Writes docs/performance.md from stored figures: `python -m benchmarks.document benchmarks/results/*.json`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

OUT = Path(__file__).parent.parent / "docs" / "performance.md"

START = """# Performance

What lox costs, measured by `python -m benchmarks --json benchmarks/results/NAME.json`, from which
`python -m benchmarks.document` makes this page. The functions of a comparison run in turns in one process; a figure is
the median of their ratios, with the first and the third quartile in brackets. Times are processor time of the process,
over all its threads, without compilation unless a table says so. `!` marks a figure that misses its target.
"""

CHAPTERS = {
    "absence": "Logs that nobody listens to",
    "overhead": "`lox.spool` over the function written by hand",
    "peers": "Other ways of logging",
    "dispatch": "Eager calls",
    "memory": "Reduced and thinned logs",
    "tracing": "How tracing grows",
    "streaming": "`lox.tap`",
    "saving": "Loggers and files",
    "importing": "Importing",
}


def page(results: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The lines of the page."""
    yield START
    for result in results:
        yield f"## {result['device']}, jax {result['jax']}, Python {result['python']}\n"
        for name, chapter in CHAPTERS.items():
            if name in result["benchmarks"]:
                yield f"### {chapter}\n"
                for table in result["benchmarks"][name]:
                    yield from _table(table)


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


if __name__ == "__main__":
    OUT.write_text("\n".join(page([json.loads(Path(path).read_text()) for path in sys.argv[1:]])).rstrip() + "\n")
