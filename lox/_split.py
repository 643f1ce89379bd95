"""`on_mismatch="split"`: events of one key that are not alike are collected apart, and get keys of their own.

While they are collected, events go by a name that is made of their key and their type. In the end the types of each key
are numbered, in the order in which they first appear in the program.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Sequence

import jax

from lox import _compat
from lox._events import Event, Log, Logs, StackedEvents, events
from lox._timeline import Timeline

MENDS = "give one of them another key or a prefix, or have lox.spool return them apart, with on_mismatch='split'."
"""The advice in errors about events of one key that differ in type."""

_MARK = "\0"


def plain(name: str) -> str:
    """The key of a name that `by_type` has made, or of one that is a key."""
    return name.partition(_MARK)[0]


def is_typed(name: str) -> bool:
    """Tell whether `by_type` has made a name."""
    return _MARK in name


def by_type(logs: Sequence[Log], wanted: Callable[[str], bool] = lambda key: True, depth: int = 0) -> Logs:
    """Put names made of a key and a type in place of the wanted keys.

    Sizes of batches are not part of the type: events that differ in nothing else are kept together.
    """
    found: list[Log] = []
    for log in logs:
        if isinstance(log, StackedEvents):
            body = by_type(log.body, wanted, depth + 1)
            names = {name: plain(name) for event in events(body) for name in event.values}
            dropped = {
                tuple(name for name, key in names.items() if key in keys): count for keys, count in log.dropped.items()
            }
            found.append(StackedEvents(body, dropped, log.length))
        else:
            values = {_name(log, key, depth) if wanted(key) else key: value for key, value in log.values.items()}
            found.append(dataclasses.replace(log, values=values))
    return tuple(found)


def untyped(logs: Sequence[Log]) -> Logs:
    """Put the keys in place of the names that `by_type` has made of them."""
    found: list[Log] = []
    for log in logs:
        if isinstance(log, StackedEvents):
            dropped = {tuple(map(plain, names)): count for names, count in log.dropped.items()}
            found.append(StackedEvents(untyped(log.body), dropped, log.length))
        else:
            found.append(dataclasses.replace(log, values={plain(name): value for name, value in log.values.items()}))
    return tuple(found)


def _name(event: Event, key: str, depth: int) -> str:
    value = event.values[key]
    shape = value.shape[depth + event.batch_ndim :]
    # Values that vary over shards get an axis for these.
    on_shards = [*jax.sharding.get_abstract_mesh().manual_axes, *sorted(map(str, _compat.varying_axes(value)))]
    described = f"{value.dtype.name}{list(shape)} {event.batch_ndim} {sorted(event.steps)} {on_shards}"
    return f"{key}{_MARK}{described}"


def in_order(logs: Sequence[Log], before: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The names that `by_type` has made, in the order in which they first appear: some before, and those of logs."""
    found = [name for event in events(logs) for name in event.values if is_typed(name)]
    return tuple(dict.fromkeys((*before, *found))) if found else before


def numbered(timelines: Iterable[Timeline], order: Sequence[str]) -> list[Timeline]:
    """Name the types of each key `"key"`, `"key#2"` and so on. A name that another key already has is skipped.

    Args:
        timelines: The timelines.
        order: The names in them that `by_type` has made, in the order in which they first appear in the program.
    """
    found = list(timelines)
    renamed = {name: name for each in found for name in each.values}
    keys = set(map(plain, renamed))
    numbers: dict[str, itertools.count[int]] = {}
    for name in (name for name in order if name in renamed):
        key = plain(name)
        first = key not in numbers
        left = numbers.setdefault(key, itertools.count(2))
        renamed[name] = key if first else next(free for n in left if (free := f"{key}#{n}") not in keys)
    return [each.renamed(renamed.__getitem__) for each in found]
