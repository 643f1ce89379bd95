"""Logs on their way to a logger: as arrays of its own, in one event of a program, and without what did not happen."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from lox import _compat
from lox._deliver import INNER
from lox._keys import on_host
from lox._logdict import logdict, map_timelines
from lox._timeline import Timeline


def kept(logs: logdict) -> logdict:
    """The logs as arrays of NumPy that nobody else can change."""
    return map_timelines(_kept, logs)


def _kept(timeline: Timeline) -> Timeline:
    def keep(array: Any) -> Any:
        return array.copy() if isinstance(array, np.ndarray) else on_host(array)

    return timeline.map(keep, dropped=None if timeline.dropped is None else keep(timeline.dropped))


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


def unpacked(event: logdict, with_shards: bool) -> logdict:
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
    return logdict(**parts)


def happened(logs: logdict) -> logdict:
    """Only the events that happened in some batch element."""
    if not logs.mask and all(len(value) for value in logs.data.values()):
        return logs
    data, mask = {}, {}
    steps: dict[str, dict[str, Any]] = {}
    for key, value in logs.items():
        there: Any = slice(None)
        if key in logs.mask:
            lanes = logs.mask[key]
            there = lanes.reshape(len(lanes), -1).any(1)
            if not lanes[there].all():
                mask[key] = lanes[there]
        if len(value[there]):
            data[key] = value[there]
            for name, of in logs.steps.items():
                if key in of:
                    steps.setdefault(name, {})[key] = of[key][there]
    return logdict(data, steps, {key: value for key, value in mask.items() if key in data})


def batch_ndim(logs: logdict) -> dict[str, int]:
    """The number of batch axes of each key: those that its counters, its label and its mask have as well."""
    found: dict[str, int] = {}
    for timeline in logs._timelines:
        arrays = timeline.steps.values() if timeline.mask is None else (timeline.mask, *timeline.steps.values())
        found |= dict.fromkeys(timeline.values, max((np.ndim(array) for array in arrays), default=1) - 1)
    return found


def unlabelled(logs: logdict) -> logdict:
    """The logs without the label of their batch axes."""
    if INNER not in logs.steps:
        return logs

    def without(timeline: Timeline) -> Timeline:
        return dataclasses.replace(timeline, steps={name: s for name, s in timeline.steps.items() if name != INNER})

    return map_timelines(without, logs)
