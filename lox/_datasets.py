"""Logs as datasets of xarray."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from lox._exceptions import LogValueError
from lox._extras import extra
from lox._host_values import Logs, PlainEvents, along

if TYPE_CHECKING:
    import xarray


def dataset(logs: Logs) -> xarray.Dataset:
    """A variable for each key, over its events, batch elements and axes of values.

    Raises:
        LogValueError: Two variables have one name.
    """
    with extra("xarray", "to_xarray"):
        import xarray

    events = {key: PlainEvents.of(logs, key) for key in logs.data}
    groups: dict[Any, list[str]] = {}
    for key, each in events.items():
        counters = tuple((name, step.tobytes()) for name, step in sorted(_counters(each).items()))
        groups.setdefault((each.happened.shape, counters), []).append(key)
    variables: dict[str, Any] = {}
    coordinates: dict[str, Any] = {}
    for keys in groups.values():
        suffix = f"_{keys[0]}" if len(groups) > 1 else ""
        first = events[keys[0]]
        lanes = [f"batch_{axis}" for axis in range(len(first.batch))] if len(first.batch) > 1 else ["batch"]
        if len({each.batch for each in events.values() if each.batch}) > 1:
            lanes = [lane + suffix for lane in lanes]
        dims = [f"event{suffix}", *lanes[: len(first.batch)]]
        for name, step in _counters(first).items():
            coordinates[name + suffix] = (dims[: step.ndim], step)
        for key in keys:
            axes = [f"{key}_axis_{axis}" for axis in range(len(events[key].shape))]
            attributes = {} if events[key].impl is None else {"impl": events[key].impl}
            variables[key] = ([*dims, *axes], _with_nan(events[key]), attributes)
    _check_names(variables, coordinates)
    return xarray.Dataset(variables, coordinates)


def _counters(events: PlainEvents) -> dict[str, np.ndarray]:
    """The counters; one that all batch elements share has the axis of events only."""
    if 0 in events.batch:
        return events.steps
    found = {}
    for name, step in events.steps.items():
        shared = events.counter(name)
        same = (step == shared.reshape(-1, *[1] * len(events.batch))) | ~events.happened
        found[name] = shared if same.all() else step
    return found


def _with_nan(events: PlainEvents) -> np.ndarray:
    """The values, with NaN where an event did not happen."""
    if events.happened.all():
        return events.values
    dtype = events.values.dtype if events.values.dtype.kind in "fc" else np.float64
    return np.where(along(events.happened, events.values.shape), events.values.astype(dtype), np.nan).astype(dtype)


def _check_names(variables: Mapping[str, Any], coordinates: Mapping[str, Any]) -> None:
    taken = {dim for dims, *_ in variables.values() for dim in dims}
    for name in variables:
        if name in taken or name in coordinates:
            raise LogValueError(f"The dataset would have two variables {name!r}. Give the key a prefix: logs.prefix.")
    for name, (dims, _) in coordinates.items():
        if name in taken and tuple(dims) != (name,):
            raise LogValueError(
                f"The dataset would have a counter and an axis {name!r}. Give the counter another name."
            )
