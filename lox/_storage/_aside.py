"""Events that are taken out of a run, which goes on from before them."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lox._host_values import at_least
from lox._storage._manifest import ASIDE, write_manifest
from lox._storage._table import Rows, Table, look_at, move, scratch


def taken_aside(
    run: Path, tables: Sequence[Table], step: int, manifest: Mapping[str, Any]
) -> tuple[list[Table], list[str]]:
    """Writes the events whose counter `step` is this one or a later one, in any batch element, to a run of their own.

    It is a directory `aside-N` of the run. Nothing that is there is changed.

    Args:
        run: The directory of the run.
        tables: Its tables.
        step: The first counter that is taken.
        manifest: Its manifest.

    Returns:
        Tables of the events that stay, which are the same ones where all do; and the keys with events that have no
        such counter, which stay as well.
    """
    left: list[Table] = []
    aside: list[Table] = []
    without: dict[str, None] = {}
    with scratch(run) as folder:
        (folder / ASIDE).mkdir()
        for place, rows in enumerate(look_at(tables)):
            table, steps = rows.table, steps_of(rows)
            taken = np.zeros(rows.count, bool) if steps is None else at_least(*steps, step)
            if steps is None:
                without |= dict.fromkeys(sorted(table.layout.keys))
            if rows.problem or not taken.any():
                left.append(table)
                continue
            aside.append(_some(folder / ASIDE / f"table-{len(aside)}", rows, taken))
            if not taken.all():
                left.append(_some(folder / str(place), rows, ~taken))
        if aside:
            tables_aside = {"tables": [table.to_json() for table in aside]}
            write_manifest(folder / ASIDE, {**manifest, **tables_aside})
            move(folder / ASIDE, run, ASIDE, 1)
            left = [table.move(run, len(tables)) if table.folder.parent == folder else table for table in left]
    return left, [*without]


def _some(folder: Path, rows: Rows, chosen: np.ndarray) -> Table:
    """Some rows of a table as another one."""
    events = rows.timeline().map(operator.itemgetter(chosen))
    return Table.filled(folder, rows.table.layout, events, rows.numbers()[chosen])


def steps_of(rows: Rows) -> tuple[np.ndarray, np.ndarray | None] | None:
    """The counter `step` of rows, and their mask; None when they have none."""
    timeline = rows.timeline()
    return (timeline.steps["step"], timeline.mask) if "step" in timeline.steps else None
