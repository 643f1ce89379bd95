"""Writes docs/performance.md from the figures that are stored: `python -m benchmarks.document`."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from benchmarks import _results

PAGE = Path(__file__).parent.parent / "docs" / "performance.md"
IMAGES = PAGE.parent / "images"

START = """# Performance

What lox costs. The benchmarks measure it: `python -m benchmarks --record` runs them and writes this page.
"""

IN_SHORT = """## In short

![Microseconds of an event: a callback of JAX, lox.tap without and with a buffer, and lox.spool](images/performance.svg)

| What you do | What it costs |
| --- | --- |
| Log calls without a handler | nothing: they compile to nothing, and an eager `lox.log` takes {eager} ns |
| `lox.spool` | {spool} times the run time of the same arrays returned by hand, and {compile} times the compilation |
| `reduce="mean"` in a loop | {bytes} bytes, for ten iterations or ten million |
| `lox.tap` | {tap} µs per event, or {buffered} µs with `buffer=256`; `jax.debug.callback` takes {callback} µs |
| `SaveLogger` | {saved} scalars per second; tensorboardX writes {tensorboard} |

All on CPU, with processor time of all threads. An event of `lox.spool` costs what it takes to store its values.
"""

READING = """## How to read the tables

- A figure without a unit is a ratio to the program that the title or column names: 1.00 is equal, 2.00 twice as much.
- A figure is the median of several measurements. The brackets have the first and the third quartile.
- `!` marks a figure that misses its target. Targets are goals of the project; the table or the text below names them.
- Times are processor time of the process, over all its threads, without compilation unless a table says so. The
  functions of a comparison run in turns in one process. A difference below zero is less than their noise.
- "By hand" is the same program written without lox, which returns the values.

[Profiling](internals/performance.md) says where the time goes. The benchmarks need the extra `test`.
"""

CHAPTERS = {
    "absence": "Without a handler",
    "overhead": "`lox.spool` over the function written by hand",
    "timelines": "Keys that are logged together",
    "bounded": "Bounded events of loops of unknown length",
    "peers": "Other ways of logging",
    "dispatch": "Eager calls",
    "memory": "Reduced and subsampled logs",
    "tracing": "How tracing grows",
    "streaming": "`lox.tap`",
    "saving": "Loggers and files",
    "growth": "How cost grows",
    "scale": "Bytes at scale",
    "importing": "Importing",
    "auditing": "`lox.audit`",
    "watching": "`lox.watch`",
    "nonfinite": "`lox.find_nonfinite` and `lox.guard`",
    "progress": "`lox.progress`",
}


def write() -> None:
    """Writes the page and its plots."""
    PAGE.write_text("\n".join(_lines()).rstrip() + "\n")


def _lines() -> Iterator[str]:
    yield START
    machines = list(_results.stored())
    yield IN_SHORT.format(**_in_short(machines[0][1]))
    yield READING
    for machine, result in machines:
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


def _in_short(result: dict[str, Any]) -> dict[str, str]:
    """The figures of the first table of the page; draws its picture."""

    def cells(benchmark: str, index: int, column: str) -> dict[str, float]:
        table = result["benchmarks"][benchmark][index]
        place = table["columns"].index(column)
        return {row[0]: _number(row[place]) for row in table["rows"]}

    eager = cells("absence", 1, "nanoseconds")
    reduced = cells("memory", 0, "bytes")
    an_event = cells("growth", 1, "1")
    spooled = cells("streaming", 1, "by lox.spool, us a step")["adds a number"]
    saved = cells("saving", 0, "events per second")
    _draw_events(an_event, spooled, IMAGES / "performance.svg")
    return {
        "eager": f"{next(iter(eager.values())):.0f}",
        "spool": f"{statistics.median(cells('overhead', 0, 'run time').values()):.2f}",
        "compile": f"{statistics.median(cells('overhead', 1, 'trace and compile').values()):.2f}",
        "bytes": f"{next(iter(reduced.values())):.0f}",
        "tap": f"{an_event['lox.tap']:.1f}",
        "buffered": f"{an_event['lox.tap, buffer=256']:.2f}",
        "callback": f"{an_event['jax.debug.callback']:.0f}",
        "saved": f"{saved['SaveLogger']:,.0f}",
        "tensorboard": f"{saved['tensorboardX']:,.0f}",
    }


def _number(cell: Any) -> float:
    return cell["value"] if isinstance(cell, dict) else float(cell.replace(",", ""))


def _draw_events(an_event: dict[str, float], spooled: float, path: Path) -> None:
    """Draws what an event costs in each way of logging, on a logarithmic axis."""
    bars = {"jax.debug.callback": an_event["jax.debug.callback"], "lox.tap": an_event["lox.tap"]}
    bars |= {"lox.tap, buffer=256": an_event["lox.tap, buffer=256"], "lox.spool": spooled}
    with matplotlib.rc_context({"svg.hashsalt": path.stem, "font.size": 9}):
        figure = Figure(figsize=(7, 1.9), layout="constrained")
        axes = figure.subplots()
        drawn = axes.barh(list(bars), list(bars.values()), color=["#8a8a8a", *["#3b75af"] * 3])
        axes.bar_label(drawn, [f"{value:.2g} µs" for value in bars.values()], padding=4)
        axes.invert_yaxis()
        axes.set(xscale="log", xlim=(0.001, 200), xlabel="microseconds per event of a scan, on CPU")
        axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(path, metadata={"Date": None})


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
