"""Logs one after the other."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from lox._keys import key_data
from lox._logdict import logdict, of_timelines
from lox._timeline import Timeline

Numbers = Callable[[], np.ndarray]


def concatenated(
    parts: Sequence[Timeline], numbers: Sequence[Numbers] | None = None, order: Iterable[str] = ()
) -> logdict:
    """Events of arrays of NumPy as one logdict, those of each key in their order.

    Events of a key that have another shape, dtype or other counters than the first ones, or have other batch axes or
    are of another distribution, go on as ``"key#2"``. Without a mask, events happened in all batch elements.

    Args:
        parts: Timelines, which may have keys in common.
        numbers: For each part, a function that numbers its events. The events of a key are sorted by these numbers,
            and are in the order of the parts where they are equal. By default, they all are.
        order: Keys that come first, in this order; the others are in the order in which the parts have them.
    """
    layouts = [{key: _layout(part, key) for key in part.values} for part in parts]
    batch_of: dict[Any, tuple[int, ...]] = {}  # Of events without a mask: the first that there is.
    for part, of_part in zip(parts, layouts, strict=True):
        if part.mask is not None:
            for pair in of_part.items():
                batch_of.setdefault(pair, part.mask.shape[1:])
    places: dict[str, dict[Any, list[int]]] = {}
    for place, (part, of_part) in enumerate(zip(parts, layouts, strict=True)):
        for key, layout in of_part.items():
            batch = batch_of.get((key, layout)) if part.mask is None else part.mask.shape[1:]
            places.setdefault(key, {}).setdefault((layout, batch), []).append(place)
    names: dict[tuple[Any, ...], dict[str, str]] = {}
    taken = set(places)
    in_order: dict[str, list[str]] = {key: [] for key in [*order, *places]}
    for key, of_key in places.items():
        for number, ((_, batch), those) in enumerate(of_key.items()):
            name = _free(key, taken) if number else key
            taken.add(name)
            in_order[key].append(name)
            names.setdefault((batch, *those), {})[name] = key
    timelines = (
        _joined([parts[place] for place in those], batch, keys, numbers and [numbers[place] for place in those])
        for (batch, *those), keys in names.items()
    )
    return of_timelines(timelines, itertools.chain(*in_order.values()))


def _joined(
    parts: Sequence[Timeline],
    batch: tuple[int, ...] | None,
    keys: Mapping[str, str],
    numbers: Sequence[Numbers] | None,
) -> Timeline:
    """Some keys of timelines that are alike in these, by their new names, as one timeline."""
    first = parts[0]
    order = None
    if numbers is not None and len(parts) > 1:
        order = np.argsort(np.concatenate([of_part() for of_part in numbers]), kind="stable")

    def joined(arrays: Iterable[Any]) -> Any:
        array = all_of([*arrays])
        return array if order is None else array[order]

    return Timeline(
        {name: joined(part.values[key] for part in parts) for name, key in keys.items()},
        {name: joined(part.steps[name] for part in parts) for name in first.steps},
        None if batch is None else joined(_mask(part, batch) for part in parts),
        _dropped(parts),
        {name: first.distributions[key] for name, key in keys.items() if key in first.distributions},
    )


def _mask(part: Timeline, batch: tuple[int, ...]) -> np.ndarray:
    return np.ones((len(part), *batch), bool) if part.mask is None else part.mask


def _dropped(parts: Sequence[Timeline]) -> Any:
    """Add up the counts of dropped events that have the batch axes of the first one."""
    counts = [part.dropped for part in parts if part.dropped is not None]
    return sum(count for count in counts if count.shape == counts[0].shape) if counts else None


def _layout(part: Timeline, key: str) -> Any:
    counters = [(name, *layout_of(step)) for name, step in sorted(part.steps.items())]
    return *layout_of(part.values[key]), part.distributions.get(key), *counters


def layout_of(array: Any) -> tuple[Any, ...]:
    """Return what arrays must have in common to be joined along their first axis."""
    return array.dtype, array.shape[1:], None if type(array) is np.ndarray else getattr(array, "impl", None)


def _free(key: str, taken: Container[str]) -> str:
    """The name of the next part of a key, which no other key has."""
    return next(name for name in (f"{key}#{place}" for place in itertools.count(2)) if name not in taken)


def all_of(arrays: Sequence[Any]) -> Any:
    """Arrays of one layout, joined along their first axis."""
    if len(arrays) == 1:
        return arrays[0]
    joined, impl = np.concatenate(arrays), getattr(arrays[0], "impl", None)
    return joined if impl is None else key_data(joined, impl)
