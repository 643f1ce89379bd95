"""Figures with their targets, tables of them, and the command line that every benchmark shares."""

from __future__ import annotations

import argparse
import dataclasses
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks import _results


@dataclasses.dataclass(frozen=True)
class Figure:
    """A number that was measured.

    Attributes:
        value: The number, or the median of several measurements.
        quartiles: Their first and third quartile.
        target: The value that it should not exceed.
        digits: How many decimals are printed.
        at_least: Whether the target is one that it should reach instead.
    """

    value: float
    quartiles: tuple[float, float] | None = None
    target: float | None = None
    digits: int = 2
    at_least: bool = False

    @classmethod
    def of(
        cls,
        samples: Sequence[float] | np.ndarray,
        target: float | None = None,
        digits: int = 2,
        at_least: bool = False,
    ) -> Figure:
        first, median, third = (float(value) for value in np.quantile(samples, [0.25, 0.5, 0.75]))
        return cls(median, (first, third), target, digits, at_least)

    @property
    def missed(self) -> bool:
        if self.target is None:
            return False
        return self.value < self.target if self.at_least else self.value > self.target

    def __str__(self) -> str:
        text = f"{self.value:,.{self.digits}f}"
        if self.quartiles:
            text += " [{:,.{d}f} {:,.{d}f}]".format(*self.quartiles, d=self.digits)
        return f"{text} !" if self.missed else text


def ratio(value: float, base: float, target: float | None = None, digits: int = 3) -> Figure:
    """The ratio of two counts, which is 1 when both are 0."""
    return Figure(1.0 if value == base else value / base if base else float("inf"), None, target, digits)


def slope(sizes: Sequence[float], costs: Sequence[float], target: float | None = None) -> Figure:
    """The exponent k of the law `cost = c * size**k` that fits best: 1 is linear, 2 quadratic."""
    return Figure(float(np.polyfit(np.log(sizes), np.log(np.maximum(costs, 1e-9)), 1)[0]), None, target)


@dataclasses.dataclass(frozen=True)
class Curve:
    """What the columns of a table after the first are measured at: it is drawn, with a line for each row.

    Attributes:
        sizes: The sizes, of the first columns after that.
        x: What has these sizes.
        y: What the figures are.
    """

    sizes: Sequence[float]
    x: str
    y: str


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows of cells under columns; the first cell of a row is its name."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    note: str = ""
    curve: Curve | None = None

    def figures(self) -> Iterator[tuple[str, str, Figure]]:
        """All figures, each with the names of its row and its column."""
        for row in self.rows:
            for column, cell in zip(self.columns, row, strict=True):
                if isinstance(cell, Figure):
                    yield row[0], column, cell

    def __str__(self) -> str:
        lines = [self.columns, *[tuple(map(str, row)) for row in self.rows]]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        texts = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
        rule = "  ".join("-" * width for width in widths)
        parts = [f"## {self.title}", texts[0].rstrip(), rule, *(text.rstrip() for text in texts[1:])]
        return "\n".join([*parts, self.note] if self.note else parts)

    def as_json(self) -> dict[str, Any]:
        def cell(value: Any) -> Any:
            if not isinstance(value, Figure):
                return value
            return dataclasses.asdict(value) | {"missed": value.missed, "text": str(value)}

        rows = [list(map(cell, row)) for row in self.rows]
        curve = None if self.curve is None else dataclasses.asdict(self.curve)
        return {"title": self.title, "columns": self.columns, "rows": rows, "note": self.note, "curve": curve}


Benchmark = Callable[[], Iterable[Table]]


def main(benchmarks: Mapping[str, Benchmark]) -> None:
    """The command line: runs the benchmarks, or those that are named, prints their tables and writes them as JSON."""
    parser = argparse.ArgumentParser(description="Measures what lox costs.")
    if len(benchmarks) > 1:
        parser.add_argument("names", nargs="*", metavar="name", help=", ".join(benchmarks))
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write the figures to this file")
    recorded = "also write the figures to benchmarks/results, and docs/performance.md from all that is there"
    parser.add_argument("--record", action="store_true", help=recorded)
    options = parser.parse_args()
    machine = {
        "jax": jax.__version__,
        "python": platform.python_version(),
        "device": jax.devices()[0].device_kind,
    }
    paths = [] if options.json is None else [options.json]
    if options.record:
        paths.append(_results.file_of(machine))
    print(", ".join(f"{name} {value}" for name, value in machine.items()), flush=True)
    tables: dict[str, list[Table]] = {}
    for name in getattr(options, "names", None) or benchmarks:
        for table in benchmarks[name]():
            tables.setdefault(name, []).append(table)
            print(f"\n{table}", flush=True)
        stored = {name: [table.as_json() for table in found] for name, found in tables.items()}
        for path in paths:
            _results.store(path, machine, stored)
    if options.record:
        from benchmarks import document  # It imports Matplotlib, which is not to be there while anything is measured.

        document.write()
    all_tables = [table for found in tables.values() for table in found]
    missed = [(table.title, *found) for table in all_tables for found in table.figures() if found[-1].missed]
    print(f"\n{len(missed)} figures miss their targets")
    for title, row, column, figure in missed:
        print(f"  {title}: {row}, {column}: {figure} (target {figure.target:g})")
