"""Many logs of one run as few: events that are alike become arrays of many events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from lox._keys import key_data
from lox._logdict import logdict, of_timelines
from lox._timeline import Timeline

Layout = Any
"""What events agree on that can be in one array: their keys and counters, with dtypes, shapes and distributions."""


def joined(parts: Iterable[logdict]) -> Iterator[logdict]:
    """Logs of arrays of NumPy, the events of each key in their order, where those that are alike become one."""
    alike: dict[Layout, list[Timeline]] = {}
    keys: set[str] = set()
    for logs in parts:
        for timeline in logs._timelines:
            layout = _layout(timeline)
            if layout not in alike:
                if not keys.isdisjoint(timeline.values):
                    yield of_timelines(map(_one_after_the_other, alike.values()))
                    alike, keys = {}, set()
                alike[layout] = []
                keys |= timeline.values.keys()
            alike[layout].append(timeline)
    if alike:
        yield of_timelines(map(_one_after_the_other, alike.values()))


def _layout(timeline: Timeline) -> Layout:
    parts = [
        (name, array.dtype, array.shape[1:], getattr(array, "impl", None))
        for of in (timeline.values, timeline.steps)
        for name, array in of.items()
    ]
    return (len(timeline.values), timeline.mask is None, *timeline.distributions.items(), *parts)


def _one_after_the_other(timelines: list[Timeline]) -> Timeline:
    first, *others = timelines
    if not others:
        return first

    def all_of(*arrays: Any) -> Any:
        together = np.concatenate(arrays)
        impl = getattr(arrays[0], "impl", None)
        return together if impl is None else key_data(together, impl)

    values = {name: all_of(*(each.values[name] for each in timelines)) for name in first.values}
    steps = {name: all_of(*(each.steps[name] for each in timelines)) for name in first.steps}
    mask = None if first.mask is None else all_of(*(each.mask for each in timelines))
    return Timeline(values, steps, mask, distributions=first.distributions)
