"""Arrays on their way from a call of `log` to the thread of its logger.

Most calls of a loop have a few small arrays, and a layout that the last call had as well. The arrays of such a call are
copied as bytes, one array after the other. Many copies of one layout are then a structured array of NumPy, whose fields
are the arrays of all calls.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from lox._concatenate import all_of
from lox._keys import KeyData
from lox._logdict import distributions_of, logdict, of_timelines
from lox._timeline import Timeline
from lox.loggers._copies import COPIED, is_on_host, kept
from lox.loggers._packing import counted

Held = bytes | Callable[[], list[np.ndarray]]
"""The arrays of one call as the program leaves them: their bytes, or a function that waits for them."""

Data = bytes | list[np.ndarray]
"""The arrays of one call on the host: their bytes where the layout has a record, or arrays of NumPy."""


@dataclasses.dataclass(frozen=True, eq=False)
class Layout:
    """The names, dtypes and shapes of the arrays of a call. Equal ones are the same object.

    Attributes:
        names: The names of the arrays, as tuples: first the counters of the call; then, for each timeline, its values,
            its counters, its mask and its count of dropped events.
        kinds: The dtype and shape of each array; for the data of PRNG keys, their implementation in place of the dtype.
        distributions: The reductions that made values, by key.
        is_event: Whether the arrays are those of one event, without an axis of events.
    """

    names: tuple[tuple[str, ...], ...]
    kinds: tuple[tuple[Any, tuple[int, ...]], ...]
    distributions: tuple[tuple[str, Any], ...] = ()
    is_event: bool = False

    @functools.cached_property
    def _record(self) -> np.dtype | None:
        """The dtype of the bytes of all arrays, or None if they are large, or have a dtype that is not NumPy's own."""
        for dtype, _ in self.kinds:
            if not isinstance(dtype, np.dtype) or dtype.isbuiltin != 1 or dtype.kind not in "biufc":
                return None
        record = np.dtype([(str(place), *kind) for place, kind in enumerate(self.kinds)])
        return record if record.itemsize <= COPIED else None

    @functools.cached_property
    def keys(self) -> frozenset[str]:
        """The keys of the values."""
        return frozenset(key for values in self.names[1::4] for key in values)

    @functools.cached_property
    def scalars(self) -> list[str]:
        """The keys whose values have no axes."""
        places = ((part % 4 == 1, name) for part, names in enumerate(self.names) for name in names)
        found = zip(places, self.kinds, strict=True)
        return [name for (is_value, name), (_, shape) in found if is_value and not shape]

    def held(self, arrays: Sequence[Any]) -> Held:
        """Keep arrays of this layout as they are now. The call waits neither for the device nor for the host."""
        if self._record is None or not all(map(is_on_host, arrays)):
            return kept(arrays)
        try:
            return b"".join(arrays)
        except TypeError:  # An array has gaps, or its computation failed, which the logger's thread finds out.
            return kept(arrays)

    def read(self, held: Held) -> Data:
        """Wait for what `held` returned."""
        if isinstance(held, bytes):
            return held
        arrays = held()
        return arrays if self._record is None else b"".join([array.tobytes() for array in arrays])

    def logs(self, calls: Sequence[Data]) -> logdict:
        """The logs of calls of this layout, one after the other."""
        return of_timelines(self._timelines(calls))

    def _timelines(self, calls: Sequence[Data]) -> Iterator[Timeline]:
        columns = iter(self._columns(calls))
        counters, *parts = ({name: next(columns) for name in names} for names in self.names)
        for values, steps, masks, dropped in zip(*[iter(parts)] * 4, strict=True):
            if not values:
                continue
            if not self.is_event:
                values, steps, masks = (_flat(part) for part in (values, steps, masks))
            length = len(next(iter(values.values()))) // len(calls)
            of_calls = {name: np.repeat(counter, length) for name, counter in counters.items()}
            of_timeline = {key: made for key, made in self.distributions if key in values}
            counts = {name: count.sum(0, count.dtype) for name, count in dropped.items()}
            yield counted(Timeline(values, steps, **masks, **counts, distributions=of_timeline), of_calls)

    def _columns(self, calls: Sequence[Data]) -> list[np.ndarray]:
        """Each array of all calls, shape `(calls, *shape)`."""
        if self._record is None:
            return [all_of([array[None] for array in column]) for column in zip(*calls, strict=True)]
        records = np.ndarray(len(calls), self._record, bytearray().join(calls))  # type: ignore[arg-type]
        return [np.ascontiguousarray(records[name]) for name in self._record.names or ()]


def _flat(part: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Arrays of which the axis of calls, and the axis of events after it, are one axis."""
    return {name: array.reshape(array.shape[0] * array.shape[1], *array.shape[2:]) for name, array in part.items()}


_layout = functools.lru_cache(maxsize=1024)(Layout)


def of_logs(logs: logdict, counters: Mapping[str, Any]) -> tuple[Layout, list[Any]]:
    """The layout and the arrays of logs, and of counters that have one value for all of their events."""
    names, arrays = [tuple(counters)], [*counters.values()]
    for values, *others in logs._parts:
        arrays += values.values()
        if not others:
            names += tuple(values), (), (), ()
            continue
        steps, mask, dropped, *_ = others
        arrays += *steps.values(), *[each for each in (mask, dropped) if each is not None]
        of_mask, of_dropped = (() if each is None else (name,) for name, each in (("mask", mask), ("dropped", dropped)))
        names += tuple(values), tuple(steps), of_mask, of_dropped
    return _with_kinds(tuple(names), arrays, tuple(distributions_of(logs).items()))


def of_event(values: Mapping[str, Any], steps: Mapping[str, Any]) -> tuple[Layout, list[Any]]:
    """The layout and the arrays of one event, which has no axis of events."""
    return _with_kinds(((), tuple(values), tuple(steps), (), ()), [*values.values(), *steps.values()], (), True)


def _with_kinds(names: Any, arrays: list[Any], distributions: Any, is_event: bool = False) -> tuple[Layout, list[Any]]:
    try:
        kinds = tuple([(each.dtype if each.__class__ is not KeyData else each.impl, each.shape) for each in arrays])
    except AttributeError:  # Counters that are made by hand may be lists. Calls with such are not written as one.
        kinds = tuple([(getattr(each, "dtype", None), getattr(each, "shape", ())) for each in arrays])
        return Layout(names, kinds, distributions, is_event), arrays
    return _layout(names, kinds, distributions, is_event), arrays
