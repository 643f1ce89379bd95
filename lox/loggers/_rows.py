"""Logs as rows of numbers, for sinks that take one event at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from lox._exceptions import LogDataError
from lox._logdict import logdict
from lox.loggers._run import Run


@dataclasses.dataclass
class Row:
    """Events of several keys that happened at one step.

    Attributes:
        step: The counter `step`, or the number of the event.
        counted: Whether it is the counter.
        values: What was logged, by key: real numbers and arrays of them.
        counters: The other counters, by name.
    """

    step: int | float
    counted: bool
    values: dict[str, Any]
    counters: dict[str, Any]


def rows(run: Run, logs: logdict) -> Iterator[Row]:
    """The events of logs, those of keys with the same counters together, each key's in their order.

    Raises:
        LogDataError: A value is complex. A `TypeError`.
    """
    groups: dict[Any, list[str]] = {}
    counters: dict[str, dict[str, np.ndarray]] = {}
    for key, values in logs.items():
        if np.iscomplexobj(values):
            raise LogDataError(f"{key!r} is complex; log its real and imaginary part, or its absolute value.")
        own = {name: _first_lane(of[key]) for name, of in logs.steps.items() if key in of}
        if "step" not in own:
            own[""] = run.steps(logs, key)
        counters[key] = own
        alike = tuple((name, array.tobytes()) for name, array in sorted(own.items()))
        groups.setdefault((len(values), alike), []).append(key)
    for (count, _), keys in groups.items():
        own = dict(counters[keys[0]])
        counted = "step" in own
        steps = own.pop("step" if counted else "")
        for event in range(count):
            yield Row(
                steps[event].item(),
                counted,
                {key: _plain(logs[key][event]) for key in keys},
                {name: array[event].item() for name, array in own.items()},
            )


def _first_lane(counter: np.ndarray) -> np.ndarray:
    """A counter as one number for each event; lanes of a batch inside of the run share it."""
    return np.asarray(counter).reshape(len(counter), -1)[:, 0]


def _plain(value: Any) -> np.ndarray:
    """A value in a dtype that sinks know."""
    value = np.asarray(value)
    return value if value.dtype.kind in "biuf" else value.astype(np.float32)


def finite(value: Any) -> np.ndarray:
    """The finite numbers in an array."""
    flat = np.ravel(value)
    return flat[np.isfinite(flat)] if flat.dtype.kind == "f" else flat


def described(run: Run) -> dict[str, Any]:
    """What describes a run, as numbers, lists and text."""
    return {name: value.tolist() if hasattr(value, "tolist") else value for name, value in run.config.items()}
