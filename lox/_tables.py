"""Logs as tables of pandas."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jax import dtypes

from lox._exceptions import LogDataError, LogValueError, StructureError
from lox._extras import extra
from lox._host_values import Logs, PlainEvents, along

if TYPE_CHECKING:
    import pandas


def long(logs: Logs) -> pandas.DataFrame:
    """A row for each number of each event that happened."""
    with extra("pandas", "to_pandas"):
        import pandas

    parts: list[dict[str, np.ndarray]] = []
    for key in logs.data:
        events = PlainEvents.of(logs, key)
        values = events.values
        happened = along(events.happened, values.shape)
        places = np.nonzero(happened)
        part = {"key": np.full(len(places[0]), key, object), "event": places[0]}
        part |= {f"axis_{axis}": place for axis, place in enumerate(places[1:])}
        _check_names([*part, "value", *events.steps])
        part |= {name: along(step, values.shape)[happened] for name, step in events.steps.items()}
        parts.append(part | {"value": values[happened]})
    if not parts:
        return pandas.DataFrame({"key": [], "event": [], "value": []})
    names = dict.fromkeys(name for part in parts for name in part if name != "value")
    return pandas.DataFrame({name: _joined(parts, name) for name in (*names, "value")})


def _joined(parts: Sequence[dict[str, np.ndarray]], name: str) -> Any:
    """A column of all parts, with gaps where one has none."""
    there = np.concatenate([np.full(len(part["event"]), name in part) for part in parts])
    return _with_gaps(np.concatenate([part[name] for part in parts if name in part]), np.flatnonzero(there), len(there))


def wide(logs: Logs) -> pandas.DataFrame:
    """A row for each step and batch element, a column for each key.

    Raises:
        LogValueError: Two columns have one name.
        StructureError: Keys differ in a counter at one step.
    """
    with extra("pandas", "to_pandas"):
        import pandas

    events = {key: PlainEvents.of(logs, key) for key in logs.data}
    rows = _Rows(events)
    columns: dict[str, Any] = {}
    for name in dict.fromkeys(name for each in events.values() for name in each.steps if name != "step"):
        columns[name] = _counter(name, events, rows)
    names = list(columns)
    for key, each in events.items():
        values = each.values[each.happened]
        for place in np.ndindex(each.shape):
            names.append(f"{key}[{', '.join(map(str, place))}]" if place else key)
            columns[names[-1]] = _with_gaps(values[(slice(None), *place)], rows.of[key], len(rows))
    _check_names(names)
    levels = [_whole(*rows.steps), *(_whole(*lane) for lane in rows.lanes)]
    names_of_axes = [f"batch_{axis}" for axis in range(len(rows.lanes))] if len(rows.lanes) > 1 else ["batch"]
    level_names = [rows.name, *names_of_axes[: len(rows.lanes)]]
    if len(levels) == 1:
        index = pandas.Index(levels[0], name=rows.name)
    else:
        index = pandas.MultiIndex.from_arrays(levels, names=level_names)
    return pandas.DataFrame(columns, index=index)


class _Rows:
    """The rows of a wide table: of each step the first events of all keys, then the second ones, batch element by batch
    element.

    Events without a step come after the others, by their number.

    Attributes:
        name: What the rows are numbered by: "step", or "event" when no key has steps.
        of: The rows of the events that happened, by key.
        steps: The number of each row, and which rows have none.
        lanes: For each axis of batches the same of the batch element.
    """

    def __init__(self, events: dict[str, PlainEvents]):
        counted = {key: "step" in each.steps for key, each in events.items()}
        self.name = "step" if any(counted.values()) else "event"
        places = {key: np.nonzero(each.happened) for key, each in events.items()}
        all_steps = [each.steps["step"][each.happened] for each in events.values() if "step" in each.steps]
        known = np.unique(np.concatenate(all_steps)) if all_steps else np.zeros(0, np.int64)
        if known.dtype == np.float16:  # No index of pandas is of these.
            known = known.astype(np.float32)
        axes = max((len(each.batch) for each in events.values()), default=0)
        labels = []
        for key, each in events.items():
            step = np.searchsorted(known, each.steps["step"][each.happened]) if counted[key] else places[key][0]
            of_lanes = [place + 1 for place in places[key][1:]]  # 0 is that of a key without this axis.
            of_lanes += [np.zeros_like(step)] * (axes - len(of_lanes))
            labels.append([np.full_like(step, not counted[key]), step, _occurrence([step, *of_lanes]), *of_lanes])
        columns = [np.concatenate(column) for column in zip(*labels, strict=True)]
        if not columns:
            columns = [np.zeros(0, np.int64)] * 3
        _, first, row = np.unique(_number(columns), return_index=True, return_inverse=True)
        ends = np.cumsum([len(label[0]) for label in labels])
        self.of = dict(zip(events, np.split(row, ends[:-1]), strict=True)) if events else {}
        uncounted, step, _, *of_lanes = (column[first] for column in columns)
        missing = (uncounted == 1) & (self.name == "step")
        if len(known):
            step = known[np.where(missing, 0, step)]
        self.steps = step, missing
        self.lanes = [(lane - 1, lane == 0) for lane in of_lanes]

    def __len__(self) -> int:
        return len(self.steps[0])


def _number(columns: Sequence[np.ndarray]) -> np.ndarray:
    """One number for each row of labels, which sort as the labels do."""
    return np.ravel_multi_index(tuple(columns), [int(column.max(initial=0)) + 1 for column in columns])


def _occurrence(labels: Sequence[np.ndarray]) -> np.ndarray:
    """For each row of labels, how many of the rows before are the same."""
    numbers = _number(labels)
    order = np.argsort(numbers, kind="stable")
    ordered = numbers[order]
    place = np.arange(len(order))
    begins = np.r_[True, ordered[1:] != ordered[:-1]][: len(order)]
    found = np.empty_like(place)
    found[order] = place - np.maximum.accumulate(np.where(begins, place, 0))
    return found


def _counter(name: str, events: dict[str, PlainEvents], rows: _Rows) -> Any:
    having = {key: each.steps[name][each.happened] for key, each in events.items() if name in each.steps}
    column = np.zeros(len(rows), np.result_type(*having.values()))
    known = np.zeros(len(rows), bool)
    for key, counter in having.items():
        at = rows.of[key]
        differs = known[at] & (column[at] != counter)
        if differs.any():
            row = at[np.flatnonzero(differs)[0]]
            raise StructureError(
                f"The counter {name!r} of {key!r} differs from that of other keys at {rows.name} "
                f"{rows.steps[0][row]}. Make a table of each: logs.filter({key!r}).to_pandas(wide=True)."
            )
        column[at], known[at] = counter, True
    return _with_gaps(column[known], np.flatnonzero(known), len(rows))


def _with_gaps(values: np.ndarray, places: np.ndarray, count: int) -> Any:
    """A column with values at these places: NaN elsewhere, or missing in a dtype of pandas that knows this."""
    column = np.full(count, np.nan if values.dtype.kind in "fc" else 0, values.dtype)
    column[places] = values
    missing = np.ones(count, bool)
    missing[places] = False
    return _whole(column, missing)


def _whole(column: np.ndarray, missing: np.ndarray) -> Any:
    import pandas

    if not missing.any():
        return column
    if column.dtype.kind in "fc":
        return np.where(missing, np.nan, column)
    array = pandas.arrays.BooleanArray if column.dtype.kind == "b" else pandas.arrays.IntegerArray
    return array(column, missing)


def _check_names(names: Iterable[str]) -> None:
    for name in _repeated(names):
        raise LogValueError(
            f"The table would have two columns {name!r}. Give one of the keys or counters another name; for keys, as "
            "with logs.prefix."
        )


def _repeated(names: Iterable[str]) -> Iterator[str]:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            yield name
        seen.add(name)


def write_parquet(logs: Logs, path: str | Path, is_wide: bool) -> None:
    """Writes a table of logs to a file of Parquet.

    Raises:
        LogDataError: A key is complex.
    """
    with extra("parquet", "to_parquet"):
        import pyarrow  # noqa: F401  (pandas imports it)
    for key, values in logs.data.items():
        if dtypes.issubdtype(values.dtype, np.complexfloating):
            raise LogDataError(f"{key!r} is complex, which Parquet has no type for. Log its real and imaginary part.")
    (wide if is_wide else long)(logs).to_parquet(path, engine="pyarrow")
