"""Logs on their way to a logger: with more counters, in one event of a program, and without what did not happen."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Iterator, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from lox import _compat
from lox._deliver import INNER
from lox._host_values import along
from lox._logdict import described, logdict, map_timelines, of_timelines
from lox._timeline import Timeline


def with_counters(logs: logdict, counters: Mapping[str, Any]) -> logdict:
    """The logs with counters that have one value for all events. Those that a key has already stay.

    The counters, and the logs, are arrays of NumPy, or of JAX where they are traced.
    """
    return map_timelines(functools.partial(counted, counters=counters), logs)


def counted(timeline: Timeline, counters: Mapping[str, Any]) -> Timeline:
    """The timeline with these counters. Those that it has already stay."""
    if not counters:
        return timeline
    known = [*timeline.steps.values(), *([] if timeline.mask is None else [timeline.mask])]
    shape = known[0].shape if known else _any_value(timeline).shape[:1]
    full = {
        name: along(value, shape) if isinstance(value, np.ndarray) else jnp.full(shape, value)
        for name, value in counters.items()
    }
    return dataclasses.replace(timeline, steps=full | timeline.steps)


def items(logs: logdict) -> Iterator[tuple[str, Any]]:
    """The keys of logs and their events, without a mapping of them, whose making would cost more than a small event."""
    return (item for values, *_ in logs._parts for item in values.items())


def counts_of_dropped(logs: logdict) -> Iterator[tuple[str, Any]]:
    """The keys whose events a bounded buffer dropped, and how many."""
    return ((key, each.dropped) for each in logs._timelines if each.dropped is not None for key in each.values)


def packed(logs: logdict) -> dict[str, Any]:
    """Logs as what one event can hold. What is of one key varies alike over shards, so that it arrives together."""
    parts = {"data": logs.data, "mask": logs.mask, "dropped": logs.dropped}
    arrays = (*parts.values(), *logs.steps.values())
    axes = {
        key: frozenset[Any]().union(*(_compat.varying_axes(part[key]) for part in arrays if key in part))
        for key in logs
    }

    def alike(part: Mapping[str, Any]) -> dict[str, Any]:
        return {key: _compat.vary(array, sorted(axes[key])) for key, array in part.items()}

    steps = {name: alike(part) for name, part in logs.steps.items()}
    return {name: alike(part) for name, part in parts.items()} | {"steps": steps}


def unpacked(event: logdict, with_shards: bool, distributions: Mapping[str, Any]) -> logdict:
    """The logs in an event. Their axis of shards, if there is one, comes first in it and second in them."""
    parts: dict[str, Any] = {"data": {}, "steps": {}, "mask": {}, "dropped": {}}
    for path, (value,) in event.items():
        part, _, key = path.partition("/")
        if with_shards and part != "dropped":
            value = np.moveaxis(value, 0, 1)
        if part == "steps":
            name, _, key = key.partition("/")
            parts[part].setdefault(name, {})[key] = value
        else:
            parts[part][key] = value
        if with_shards and part == "data" and path in event.mask:
            parts["mask"].setdefault(key, np.broadcast_to(event.mask[path][0], value.shape[:2]))
    return described(logdict(**parts), distributions.get)


def happened(logs: logdict) -> logdict:
    """Only the events that happened in some batch element.

    Where each of them happened in all, the mask becomes the label of its batch axes.
    """
    if all(timeline.mask is None and len(_any_value(timeline)) for timeline in logs._timelines):
        return logs
    found = []
    for timeline in logs._timelines:
        mask = timeline.mask
        if mask is not None:
            there = mask.reshape(len(mask), -1).any(1)
            timeline = timeline.map(operator.itemgetter(there))
            if timeline.mask.all():
                label = np.zeros((len(timeline.mask), *[1] * (mask.ndim - 1)), bool)
                timeline = dataclasses.replace(timeline, steps={INNER: label, **timeline.steps}, mask=None)
        if len(_any_value(timeline)):
            found.append(timeline)
    return of_timelines(found)


def _any_value(timeline: Timeline) -> Any:
    return next(iter(timeline.values.values()))


def batch_ndim(logs: logdict) -> dict[str, int]:
    """The number of batch axes of each key: those that its counters, its label and its mask have as well."""
    found: dict[str, int] = {}
    for timeline in logs._timelines:
        arrays = timeline.steps.values() if timeline.mask is None else (timeline.mask, *timeline.steps.values())
        found |= dict.fromkeys(timeline.values, max((np.ndim(array) for array in arrays), default=1) - 1)
    return found


def unlabelled(logs: logdict) -> logdict:
    """The logs without the label of their batch axes."""
    if not any(INNER in timeline.steps for timeline in logs._timelines):
        return logs

    def without(timeline: Timeline) -> Timeline:
        return dataclasses.replace(timeline, steps={name: s for name, s in timeline.steps.items() if name != INNER})

    return map_timelines(without, logs)
