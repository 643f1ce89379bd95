"""Statistics of the events of one key for a display: the last values, their range, and a line of them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from lox._host_values import PlainEvents
from lox._logdict import logdict

BARS = 24
"""Number of bars that stand for all events of a key."""


class Series:
    """A series of any length as at most `2 * BARS` means, each of the same number of events."""

    def __init__(self) -> None:
        self._sums, self._counts, self._each = np.zeros(2 * BARS), np.zeros(2 * BARS), 1

    def add(self, first: int, values: np.ndarray) -> None:
        """Adds events that are numbered from `first`; those of one number, of several runs, are averaged."""
        places = np.arange(first, first + len(values))
        with np.errstate(invalid="ignore", over="ignore"):
            self._add(places, values)

    def _add(self, places: np.ndarray, values: np.ndarray) -> None:
        while places[-1] >= self._each * len(self._sums):
            for totals in (self._sums, self._counts):
                totals[:BARS], totals[BARS:] = totals[::2] + totals[1::2], 0
            self._each *= 2
        np.add.at(self._sums, places // self._each, values)
        np.add.at(self._counts, places // self._each, 1)

    def means(self) -> np.ndarray:
        """The means, the first events first."""
        there = self._counts > 0
        return self._sums[there] / self._counts[there]


@dataclasses.dataclass
class Statistics:
    """The events of one key, each as one number.

    Attributes:
        last: The last number of each run.
        seen: The count of numbers of each run.
        count: The count of finite numbers.
        total: Their sum.
        low: The smallest of them.
        high: The largest of them.
        not_finite: The count of the other numbers.
        series: All of them in their order.
    """

    last: dict[str, float] = dataclasses.field(default_factory=dict)
    seen: dict[str, int] = dataclasses.field(default_factory=dict)
    count: int = 0
    total: float = 0.0
    low: float = np.inf
    high: float = -np.inf
    not_finite: int = 0
    series: Series = dataclasses.field(default_factory=Series)

    def add(self, run: str, numbers: np.ndarray) -> None:
        """Adds the next events of a run, shape `(events,)`."""
        finite = numbers[np.isfinite(numbers)]
        self.last[run] = float(numbers[-1])
        self.not_finite += len(numbers) - len(finite)
        if len(finite):
            self.count += len(finite)
            with np.errstate(over="ignore"):
                self.total += float(finite.sum())
            self.low, self.high = min(self.low, float(finite.min())), max(self.high, float(finite.max()))
        first = self.seen.get(run, 0)
        self.seen[run] = first + len(numbers)
        self.series.add(first, numbers)

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else np.nan


def numbers_of(key: str, parts: Sequence[logdict]) -> Iterator[np.ndarray]:
    """The events of a key, each as one number, as `PlainEvents` has them. An event without elements has none.

    Args:
        key: The key.
        parts: Logs that have it, with events of shape `(events, *batch, *shape)`.

    Yields:
        Numbers of shape `(events,)`, in order.
    """
    for (shape, masked), alike in itertools.groupby(parts, lambda logs: (logs[key].shape[1:], key in logs.mask)):
        if 0 in shape:
            continue
        having = list(alike)
        values = {key: np.concatenate([logs[key] for logs in having])}
        mask = {key: np.concatenate([logs.mask[key] for logs in having])} if masked else {}
        yield PlainEvents.of(logdict(values, {}, mask), key).numbers().astype(np.float64)
