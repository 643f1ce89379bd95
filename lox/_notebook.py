"""Logs as a table for notebooks: a row for each key."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from lox._host_values import Logs, PlainEvents

_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 24


def table(logs: Logs) -> str:
    """An HTML table with the dtype, shape, number of events, last value and a small line of each key."""
    rows = "".join(_row(cells) for cells in (_cells(logs, key) for key in logs.data))
    head = "".join(f"<th>{name}</th>" for name in ("key", "dtype", "shape", "events", "last", ""))
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _row(cells: Mapping[str, str]) -> str:
    return f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in cells.values())}</tr>"


def is_array(value: Any) -> bool:
    """Tell whether a leaf of a logdict has a dtype and a shape: `jax.tree.map` makes leaves that have none."""
    return hasattr(getattr(value, "dtype", None), "name") and isinstance(getattr(value, "shape", None), tuple)


def _cells(logs: Logs, key: str) -> dict[str, str]:
    value: Any = logs.data[key]
    if not is_array(value) or not value.shape:
        dtype = value.dtype.name if is_array(value) else type(value).__name__
        return {"key": key, "dtype": dtype, "shape": "", "events": "", "last": str(value), "line": ""}
    known = {"key": key, "dtype": value.dtype.name, "shape": str(list(value.shape[1:]))}
    if not _are_events(logs, key):
        return known | {"events": str(value.shape[0]), "last": "", "line": ""}
    events = PlainEvents.of(logs, key)
    happened = events.happened.any(tuple(range(1, events.happened.ndim)))
    numbers = events.numbers()[happened]
    last = f"{numbers[-1]:.6g}" if len(numbers) else ""
    return known | {"events": str(int(happened.sum())), "last": last, "line": line(numbers)}


def _are_events(logs: Logs, key: str) -> bool:
    """Say whether the values, the counters and the mask of a key are concrete arrays that belong together."""
    steps = [of[key] for of in logs.steps.values() if key in of]
    others = [*steps, *([logs.mask[key]] if key in logs.mask else [])]
    arrays = [logs.data[key], *others]
    if any(isinstance(each, jax.core.Tracer) or not isinstance(each, (jax.Array, np.ndarray)) for each in arrays):
        return False
    if key in logs.mask and logs.mask[key].dtype != bool:
        return False
    return all(each.ndim and each.shape == arrays[0].shape[: each.ndim] for each in others)


def line(numbers: np.ndarray) -> str:
    """Numbers as bars of eight heights, at most 24 of them; one that is not finite leaves a gap.

    >>> line(np.array([0.0, 1.0, 2.0, np.nan, 4.0]))
    '▁▂▄ █'
    """
    numbers = np.asarray(numbers, np.float64)
    if not len(numbers):
        return ""
    places = np.linspace(0, len(numbers) - 1, min(len(numbers), _WIDTH)).round().astype(int)
    shown = numbers[places]
    finite = shown[np.isfinite(shown)]
    if not len(finite):
        return " " * len(shown)
    low, high = finite.min() / 2, finite.max() / 2  # Halves, whose difference is finite.
    span = high - low or 1.0
    return "".join(
        _BARS[int((number / 2 - low) / span * (len(_BARS) - 1))] if np.isfinite(number) else " " for number in shown
    )
