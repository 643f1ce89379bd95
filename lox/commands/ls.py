"""``lox ls``: what was saved."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from lox._text import number
from lox.commands._labels import shown
from lox.commands._output import table
from lox.commands._runs import Runs
from lox.commands._series import count, kind, last

HEADER = ("RUN", "KEY", "EVENTS", "STEP", "LAST", "TYPE")


def ls(path: Path, names: bool) -> int:
    """Lists runs, their keys, how many events each has, and the last one; with `names`, also the names of the runs."""
    runs = Runs(path)
    if names:
        table((*HEADER, "NAME"), ((*row, run) for run, row in _rows(runs)))
    else:
        table(HEADER, (row for _, row in _rows(runs)))
    return runs.exit_code


def _rows(runs: Runs) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The rows, each with the name of its run."""
    labels = shown(runs.folders)
    for run, logs in runs:
        for key in logs:
            latest = last(logs, key)
            step = number(latest.steps[-1]) if len(latest.steps) and latest.counter == "step" else "-"
            value = "-" if latest.values is None or not len(latest.values) else number(latest.values[-1])
            yield run, (labels[run], key, str(count(logs, key)), step, value, kind(logs, key))
        if not logs:
            yield run, (labels[run], "-", "0", "-", "-", "-")
