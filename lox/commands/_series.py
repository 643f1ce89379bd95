"""The events of a key as one number each."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from lox._bins import Histogram
from lox._distributions import QS, estimated, middle
from lox._host_values import PlainEvents, real
from lox._keys import impl_of
from lox._logdict import logdict


@dataclasses.dataclass(frozen=True)
class Series:
    """The events of a key that happened, one number each.

    Attributes:
        counter: The counter that numbers them, "step" unless another was asked for, or "event" where none was logged.
        steps: The values of the counter, or the numbers of the events.
        values: The numbers: of an array the mean, over batch elements as well; of quantiles, and of those that are
            estimated of a histogram, the one nearest to the median; of complex ones the absolute value; NaN where there
            is none. None for PRNG keys.
        band: The lowest of the quantiles and the highest one, shape `(2, events)`; None of other keys.
    """

    counter: str
    steps: np.ndarray
    values: np.ndarray | None
    band: np.ndarray | None = None

    @classmethod
    def of(cls, logs: logdict, key: str, start: int = 0, counters: Sequence[str] = ("step",)) -> Series:
        """The events of a key of logs, from one on, numbered by the first of the counters that it has."""
        events = PlainEvents.of(_part(logs, key, slice(start, None)), key)
        there = _in_some_lane(events.happened)
        counter = next((name for name in counters if name in events.steps), "event")
        steps = events.counter(counter) if counter in events.steps else start + np.arange(len(there))
        steps = steps[there]
        if events.distribution is None:
            return cls(counter, steps, None if events.impl is not None else events.numbers()[there])
        qs, values = _quantiles(events)
        ends = values[there][:, [np.argmin(qs), np.argmax(qs)]].T
        return cls(counter, steps, values[there][:, middle(qs)], ends)

    @property
    def not_finite(self) -> int:
        """The number of values that are not finite."""
        return 0 if self.values is None else int((~np.isfinite(self.values)).sum())


def _quantiles(events: PlainEvents) -> tuple[Sequence[float], np.ndarray]:
    """The quantiles of each event, shape `(events, qs)`: their means, or what is estimated of a histogram."""
    made_by = events.distribution
    if isinstance(made_by, Histogram):
        return QS, estimated(made_by, events.counts())
    each = [dataclasses.replace(events, values=events.values[..., place]) for place in range(made_by.size)]
    return made_by.qs, np.stack([one.numbers() for one in each], 1)


def numbers(logs: logdict, key: str) -> np.ndarray:
    """All numbers of the events of a key that happened; those of complex ones are absolute values.

    Of a distribution they are those of `Series`.
    """
    events = PlainEvents.of(logs, key)
    if events.distribution is not None:
        return np.asarray(Series.of(logs, key).values)
    return real(events.values[events.happened]).reshape(-1)


def kind(logs: logdict, key: str) -> str:
    """The dtype and shape of an event."""
    value = logs[key]
    impl = impl_of(value)
    if impl is not None:
        return f"key<{impl}>{list(value.shape[1:-1])}"
    return f"{value.dtype.name}{list(value.shape[1:])}"


def last(logs: logdict, key: str) -> Series:
    """The last event of a key that happened, without reading the others."""
    count = len(logs[key])
    if key in logs.mask:
        count = int(np.flatnonzero(_in_some_lane(logs.mask[key])).max(initial=-1)) + 1
    return Series.of(_part(logs, key, slice(count)), key, max(count - 1, 0))


def count(logs: logdict, key: str) -> int:
    """Count the events of a key that happened."""
    return int(_in_some_lane(logs.mask[key]).sum()) if key in logs.mask else len(logs[key])


def _in_some_lane(mask: Any) -> np.ndarray:
    return np.any(mask, axis=tuple(range(1, np.ndim(mask))))


def _part(logs: logdict, key: str, part: slice) -> logdict:
    steps = {name: {key: of[key][part]} for name, of in logs.steps.items() if key in of}
    mask = {key: logs.mask[key][part]} if key in logs.mask else {}
    distributions = {key: logs.distributions[key]} if key in logs.distributions else {}
    return logdict({key: logs[key][part]}, steps, mask, distributions=distributions)
