"""Timelines: keys that are logged together, and so share their counters, mask and count of dropped events."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any, TypeVar

import jax
import numpy as np

T = TypeVar("T", bound="Timeline")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(slots=True)
class Timeline:
    """Events of the keys of one timeline.

    Attributes:
        values: The values by key, shape `(events, *batch, *shape)`.
        steps: The counters by name, shape `(events, *batch)`.
        mask: The mask of events that happened, shape `(events, *batch)`; None when all did.
        dropped: The number of events that a bounded buffer dropped, shape `batch`; None when there was no bound.
        distributions: The reduction that made the values, by key, where it makes distributions. It has no arrays, and
            is part of the structure of a pytree.
    """

    values: dict[str, Any]
    steps: dict[str, Any] = dataclasses.field(default_factory=dict)
    mask: Any = None
    dropped: Any = None
    distributions: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __len__(self) -> int:
        """Return the number of events, whether they happened or not."""
        return len(next(iter(self.values.values())))

    def map(self: T, function: Callable[[Any], Any], **changes: Any) -> T:
        """Apply a function to the values, the counters and the mask."""
        return dataclasses.replace(
            self,
            values={key: function(value) for key, value in self.values.items()},
            steps={name: function(step) for name, step in self.steps.items()},
            mask=None if self.mask is None else function(self.mask),
            **changes,
        )

    def only(self: T, keys: Container[str]) -> T:
        """Keep these keys."""
        if all(key in keys for key in self.values):
            return self
        return dataclasses.replace(
            self,
            values={key: value for key, value in self.values.items() if key in keys},
            distributions={key: each for key, each in self.distributions.items() if key in keys},
        )

    def renamed(self: T, name: Callable[[str], str]) -> T:
        """Rename the keys."""
        return dataclasses.replace(
            self,
            values={name(key): value for key, value in self.values.items()},
            distributions={name(key): each for key, each in self.distributions.items()},
        )


def groups(parts: Iterable[Iterable[str]]) -> dict[tuple[str, ...], tuple[int, ...]]:
    """Group the keys that are in the same parts: the timelines of a sequence of log calls.

    Args:
        parts: The keys of each part.

    Returns:
        For each group the places of the parts that have its keys, all in the order in which they first appear.

    >>> groups([["loss", "rate"], ["loss", "rate"], ["epoch"]])
    {('loss', 'rate'): (0, 1), ('epoch',): (2,)}
    """
    places: dict[str, list[int]] = {}
    for place, keys in enumerate(parts):
        for key in keys:
            places.setdefault(key, []).append(place)
    found: dict[tuple[int, ...], list[str]] = {}
    for key, those in places.items():
        found.setdefault(tuple(those), []).append(key)
    return {tuple(keys): those for those, keys in found.items()}


def canonical(parts: Iterable[Iterable[str]]) -> tuple[tuple[str, ...], ...]:
    """The groups of keys that are in the same parts, in an order that depends on the groups alone."""
    return tuple(sorted(tuple(sorted(keys)) for keys in groups(parts)))


def refined(timelines: Iterable[T], group: Callable[[str], Any]) -> list[T]:
    """Split each timeline into the keys for which `group` is the same."""
    return [each.only(keys) for each in timelines for keys in grouped(each.values, group)]


def grouped(keys: Iterable[str], group: Callable[[str], Any]) -> list[list[str]]:
    """Put keys for which `group` is the same together."""
    of: dict[Any, list[str]] = {}
    for key in keys:
        of.setdefault(group(key), []).append(key)
    return [*of.values()]


def merged(timelines: Sequence[Timeline]) -> list[Timeline]:
    """Timelines of arrays of NumPy, where those are one whose counters, mask and count of dropped events are equal."""
    if len(timelines) == 1:
        return [*timelines]
    digests: dict[int, Any] = {}

    def digest(array: Any) -> Any:
        if array is None or array.dtype.hasobject:
            return array if array is None else id(array)
        if id(array) not in digests:
            content = hashlib.blake2b(np.ascontiguousarray(array).view(np.uint8).data, digest_size=16).digest()
            digests[id(array)] = array.dtype, array.shape, content
        return digests[id(array)]

    of: dict[Any, list[Timeline]] = {}
    for each in timelines:
        names = sorted(each.steps)
        arrays = (each.mask, each.dropped, *(each.steps[name] for name in names))
        of.setdefault((len(each), *names, *map(digest, arrays)), []).append(each)
    return [alike[0] if len(alike) == 1 else _merged(alike) for alike in of.values()]


def _merged(timelines: list[Timeline]) -> Timeline:
    values = {key: value for each in timelines for key, value in each.values.items()}
    made = {key: distribution for each in timelines for key, distribution in each.distributions.items()}
    return dataclasses.replace(timelines[0], values=values, distributions=made)
