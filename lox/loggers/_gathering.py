"""Many logs of one run as few: events that are alike become arrays of many events."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from lox._concatenate import all_of, layout_of
from lox._logdict import logdict, of_timelines
from lox._timeline import Timeline, merged

T = TypeVar("T")

Layout = Any
"""The common properties of events in one array: keys, counters, dtypes, shapes and distributions."""


def alike(items: Iterable[T], layout: Callable[[T], Any], keys: Callable[[T], set[Any]]) -> Iterator[list[list[T]]]:
    """Group items by their layout, and yield several groups at a time, so that the items of a key stay in order."""
    groups: dict[Any, list[T]] = {}
    seen: set[Any] = set()
    for item in items:
        group = groups.get(of := layout(item))
        if group is None:
            new = keys(item)
            if not seen.isdisjoint(new):
                yield [*groups.values()]
                groups, seen = {}, set()
            group = groups[of] = []
            seen |= new
        group.append(item)
    if groups:
        yield [*groups.values()]


def joined(parts: Sequence[logdict]) -> Iterator[logdict]:
    """Logs of arrays of NumPy, the events of each key in their order, where those that are alike become one.

    Keys that came with equal counters and masks stay together.
    """
    if len(parts) == 1:
        yield parts[0]
        return
    order = dict.fromkeys(itertools.chain(*parts))
    timelines = (timeline for logs in parts for timeline in merged(logs._timelines))
    for groups in alike(timelines, _layout, lambda timeline: {*timeline.values}):
        yield of_timelines(map(_one_after_the_other, groups), order)


def _layout(timeline: Timeline) -> Layout:
    parts: list[Any] = [len(timeline.values), None if timeline.mask is None else timeline.mask.shape[1:]]
    for arrays in (timeline.values, timeline.steps):
        for name, array in arrays.items():
            parts += name, layout_of(array)
    return (*parts, *timeline.distributions.items())


def _one_after_the_other(timelines: list[Timeline]) -> Timeline:
    first, *others = timelines
    if not others:
        return first

    values = {name: all_of([each.values[name] for each in timelines]) for name in first.values}
    steps = {name: all_of([each.steps[name] for each in timelines]) for name in first.steps}
    mask = None if first.mask is None else all_of([each.mask for each in timelines])
    return Timeline(values, steps, mask, distributions=first.distributions)
