"""Logs as rows of numbers, for sinks that take one event at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from lox._distributions import in_bins
from lox._exceptions import LogDataError
from lox._host_values import PlainEvents, plain
from lox._logdict import logdict
from lox._run_all import raise_first
from lox.loggers._curves import EVENT, BatchAs, curves
from lox.loggers._images import image
from lox.loggers._run import Run


@dataclasses.dataclass
class Row:
    """Events of several keys that happened at one step.

    Attributes:
        step: The counter `step`, or the number of the event.
        counted: Whether it is the counter.
        counters: The other counters, by name.
        numbers: The logged values that are one number, by key.
        arrays: The finite elements of arrays of another size, as `float64` of shape `(numbers,)`, by key; a key is
            absent when nothing is.
        images: The values that are images, as `image` makes them, by key.
        histograms: The counts of histograms and the edges of their bins, as `in_bins` makes them, by key; a key is
            absent when nothing was counted.
    """

    step: int | float
    counted: bool
    counters: dict[str, int | float]
    numbers: dict[str, int | float] = dataclasses.field(default_factory=dict)
    arrays: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    images: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    histograms: dict[str, tuple[np.ndarray, np.ndarray]] = dataclasses.field(default_factory=dict)


def rows(
    run: Run,
    logs: logdict,
    images: frozenset[str] = frozenset(),
    whole: bool = False,
    batch_as: BatchAs = "mean",
    with_histograms: bool = True,
    most_bins: int | None = None,
) -> Iterator[Row]:
    """The events of logs, those of keys with the same counters together, each key's in their order.

    Args:
        run: The run.
        logs: Its logs.
        images: The keys of images.
        whole: Whether the sink knows whole steps only. A counter `step` of another dtype is then like other counters.
        batch_as: As for `curves`. As a "histogram", values are arrays of the batch elements in which the event
            happened. Images have no curves.
        with_histograms: Whether the sink has histograms. Without them, they become estimates of quantiles.
        most_bins: Largest number of bins of a histogram.

    Raises:
        LogDataError: A value is complex, or is no image where it should be, or has too many batch elements. All else
            is yielded before. A `TypeError`.
    """
    groups: dict[Any, list[str]] = {}
    counters: dict[str, dict[str, np.ndarray]] = {}
    events: dict[str, PlainEvents] = {}
    errors: dict[str, LogDataError] = {}
    of_images: set[str] = set()
    for key in logs:
        if logs[key].dtype.kind == "c":
            errors[key] = LogDataError(f"{key!r} is complex; log its real and imaginary part, or its absolute value.")
            continue
        try:
            found = dict(curves(run, logs, key, batch_as, key in images, with_histograms))
        except LogDataError as error:
            errors[key] = error
            continue
        events |= found
        if key in images:
            of_images |= found.keys()
    for key, of_key in events.items():
        if 0 in of_key.batch:  # It happened in none.
            continue
        own = {name: of_key.counter(name) for name in of_key.steps}
        number = own.pop(EVENT, None)
        if "step" not in own or (whole and own["step"].dtype.kind not in "iu"):
            own[EVENT] = run.seen.get(key, 0) + np.arange(len(of_key.values)) if number is None else number
        counters[key] = own
        alike = tuple((name, array.dtype, array.tobytes()) for name, array in sorted(own.items()))
        groups.setdefault((len(of_key.values), alike), []).append(key)
    for (count, _), keys in groups.items():
        own = dict(counters[keys[0]])
        counted = EVENT not in own
        steps = own.pop("step" if counted else EVENT)
        for event in range(count):
            row = Row(steps[event].item(), counted, {name: array[event].item() for name, array in own.items()})
            for key in keys:
                value = events[key].values[event]
                if key in of_images:
                    try:
                        row.images[key] = image(key, value)
                    except LogDataError as error:
                        errors.setdefault(key, error)
                elif (made_by := events[key].distribution) is not None:
                    if value.any():
                        row.histograms[key] = in_bins(made_by, value, most_bins)
                elif value.size == 1:
                    row.numbers[key] = value.item()
                elif len(numbers := _finite(value[events[key].happened[event]])):
                    row.arrays[key] = numbers
            yield row
    raise_first(errors.values())


def _finite(value: np.ndarray) -> np.ndarray:
    numbers = np.ravel(value).astype(np.float64)
    return numbers[np.isfinite(numbers)]


def described(run: Run) -> dict[str, Any]:
    """Return the config of a run as numbers, lists and text."""
    return {name: plain(value) for name, value in run.config.items()}
