"""Logs one after the other."""

from __future__ import annotations

import itertools
from collections.abc import Container, Sequence
from typing import Any

import numpy as np

from lox._keys import key_data
from lox._logdict import logdict


def concatenated(parts: Sequence[logdict]) -> logdict:
    """Logs of arrays of NumPy one after the other.

    Events of a key that have another shape, dtype or other counters than the first ones, or have other batch axes or
    are of another distribution, go on as ``"key#2"``. Without a mask, events happened in all batch elements.
    """
    data: dict[str, Any] = {}
    mask: dict[str, Any] = {}
    distributions: dict[str, Any] = {}
    steps: dict[str, dict[str, Any]] = {}
    events = [(part, key, _layout(part, key)) for part in parts for key in part]
    batch_of: dict[Any, tuple[int, ...]] = {}
    for part, key, layout in events:
        if key in part.mask:
            batch_of.setdefault((key, layout), part.mask[key].shape[1:])
    groups: dict[str, dict[Any, list[logdict]]] = {}
    for part, key, layout in events:
        batch = part.mask[key].shape[1:] if key in part.mask else batch_of.get((key, layout))
        groups.setdefault(key, {}).setdefault((layout, batch), []).append(part)
    names = set(groups)
    for key, layouts in groups.items():
        for place, ((_, batch), having) in enumerate(layouts.items()):
            name = _free(key, names) if place else key
            names.add(name)
            data[name] = all_of([part[key] for part in having])
            if key in having[0].distributions:
                distributions[name] = having[0].distributions[key]
            for counter, of in having[0].steps.items():
                if key in of:
                    steps.setdefault(counter, {})[name] = all_of([part.steps[counter][key] for part in having])
            if batch is not None:
                there = [part.mask.get(key, np.ones((len(part[key]), *batch), bool)) for part in having]
                mask[name] = all_of(there)
    return logdict(data, steps, mask, distributions=distributions)


def _layout(logs: logdict, key: str) -> Any:
    counters = [(name, *layout_of(of[key])) for name, of in logs.steps.items() if key in of]
    return *layout_of(logs[key]), logs.distributions.get(key), tuple(sorted(counters, key=lambda each: each[0]))


def layout_of(array: Any) -> tuple[Any, ...]:
    """What arrays must have in common to be joined along their first axis."""
    return array.dtype, array.shape[1:], getattr(array, "impl", None)


def _free(key: str, taken: Container[str]) -> str:
    """The name of the next part of a key, which is that of no other key."""
    return next(name for name in (f"{key}#{place}" for place in itertools.count(2)) if name not in taken)


def all_of(arrays: Sequence[Any]) -> Any:
    """Arrays of one layout, joined along their first axis."""
    if len(arrays) == 1:
        return arrays[0]
    joined, impl = np.concatenate(arrays), getattr(arrays[0], "impl", None)
    return joined if impl is None else key_data(joined, impl)
