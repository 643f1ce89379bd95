"""``lox show``: the numbers of keys at a glance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from lox._text import number, sparkline
from lox.commands._labels import shown
from lox.commands._output import table
from lox.commands._runs import Runs, Selection
from lox.commands._series import Series, count, numbers

HEADER = ("RUN", "KEY", "EVENTS", "MEAN", "STD", "MIN", "MAX", "LAST", "NOT FINITE", "OVER TIME")


def show(path: Path, keys: Sequence[str]) -> int:
    """Prints statistics of keys, and how they went."""
    runs, selection = Runs(path), Selection(keys)
    table(HEADER, _rows(runs, selection))
    selection.report(runs)
    return runs.exit_code


def _rows(runs: Runs, selection: Selection) -> Iterator[tuple[str, ...]]:
    labels = shown(runs.folders)
    for run, logs in runs:
        for key in selection.of(logs):
            series = Series.of(logs, key)
            if series.values is None:
                yield labels[run], key, str(count(logs, key)), *["-"] * 6, ""
                continue
            found = numbers(logs, key)
            finite = found[np.isfinite(found)].astype(np.float64)
            with np.errstate(over="ignore", invalid="ignore"):
                statistics = [number(of(finite)) if len(finite) else "-" for of in (np.mean, np.std, np.min, np.max)]
            latest = number(series.values[-1]) if len(series.values) else "-"
            missing = str(len(found) - len(finite))
            yield labels[run], key, str(count(logs, key)), *statistics, latest, missing, sparkline(series.values)
