"""Logs on their way to a logger: as arrays of its own, in one event of a program, and without what did not happen."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.backend import backends

from lox import _compat
from lox._arguments import untyped
from lox._concatenate import all_of, layout_of
from lox._deliver import INNER
from lox._host_values import along
from lox._keys import impl_of, key_data
from lox._logdict import described, logdict, map_timelines, of_timelines
from lox._timeline import Timeline

COPIED = 4096
"""Arrays of at most so many bytes are copied on the host, which takes no time, so that JAX may reuse their memory."""

Arrays = Sequence[Mapping[str, Any]]
"""Arrays by name, in several mappings, whose order is that of what is written."""


def kept(parts: Arrays) -> Callable[[], list[dict[str, Any]]]:
    """A function that reads arrays as they are now, into arrays of NumPy; it is for the logger's thread.

    The program may go on at once: it may change its arrays of NumPy, and donate its arrays of JAX. Nothing waits here,
    neither for the device nor for the host.
    """
    late: list[Any] = []
    found = [{name: _host_copy(leaf, late) for name, leaf in part.items()} for part in parts]
    if not late:
        return lambda: found
    places = [(copies, name) for copies in found for name, copy in copies.items() if copy is None]
    copies_of_late = _device_copies(late)

    def read() -> list[dict[str, Any]]:
        for (copies, name), copy in zip(places, copies_of_late, strict=True):
            copies[name] = copy()
        return found

    return read


def _host_copy(leaf: Any, late: list[Any]) -> np.ndarray[Any, Any] | None:
    """A copy that the program cannot change; None of a leaf that may have to be waited for, which is put in `late`.

    JAX does not write over memory of the CPU to which an array of NumPy refers: what is donated is copied then.
    """
    if _is_array_of_numbers(leaf.__class__) and (_is_one_cpu() or _is_cpu(leaf.sharding)) and leaf.is_ready():
        try:
            array = np.asarray(leaf)
        except jax.errors.JaxRuntimeError:  # Its computation failed, which the logger's thread finds out.
            pass
        else:
            return array if array.nbytes > COPIED else array.copy()
    if not isinstance(leaf, jax.Array):
        return np.array(leaf, subok=True)
    late.append(leaf)
    return None


@functools.cache
def _is_array_of_numbers(of: type) -> bool:
    """Say whether a type is that of JAX's arrays of numbers. Arrays of PRNG keys have no `is_ready`."""
    return issubclass(of, jax.Array) and hasattr(of, "is_ready")


@functools.cache
def _is_one_cpu() -> bool:
    """Say whether JAX has one device, a CPU, so that each array is there."""
    return [*backends()] == ["cpu"] and jax.device_count() == 1


@functools.lru_cache
def _is_cpu(sharding: Any) -> bool:
    devices: Any = sharding.device_set
    return len(devices) == 1 and next(iter(devices)).platform == "cpu"


def _device_copies(leaves: Sequence[Any]) -> list[Callable[[], np.ndarray]]:
    """For each array a function that waits for a copy of it, which is made when the array is there."""
    arrays, impls = list(leaves), [None if isinstance(leaf.dtype, np.dtype) else impl_of(leaf) for leaf in leaves]
    pending: dict[Any, list[int]] = {}
    for place, array in enumerate(arrays):
        if impls[place] is not None:
            with jax.ensure_compile_time_eval():
                array = untyped(array)
        arrays[place] = array if array.is_fully_addressable else array.addressable_data(0)
        pending.setdefault(arrays[place].sharding, []).append(place)
    for places in pending.values():  # One program runs on the devices of one sharding.
        # To look for NaN waits for the result, and NaN may be logged.
        with jax.debug_nans(False), jax.debug_infs(False), jax.ensure_compile_time_eval():
            copies = _copied([arrays[place] for place in places])
        for place, copy in zip(places, copies, strict=True):
            copy.copy_to_host_async()
            arrays[place] = copy
    return [functools.partial(_read, array, impl) for array, impl in zip(arrays, impls, strict=True)]


def _read(array: jax.Array, impl: str | None) -> np.ndarray:
    words = np.asarray(array)
    return words if impl is None else key_data(words, impl)


@jax.jit
def _copied(arrays: list[jax.Array]) -> list[jax.Array]:
    return list(map(jnp.copy, arrays))


def parts_of(logs: logdict, counters: Mapping[str, Any]) -> Arrays:
    """The arrays of logs, and counters that have one value for all of their events.

    They are the counters, and of each timeline the values, the counters, the mask and the count of dropped events.
    """
    parts: list[Mapping[str, Any]] = [counters]
    for values, *others in logs._parts:
        steps, mask, dropped, *_ = others or ({}, None, None)
        parts += values, steps, {} if mask is None else {"mask": mask}, {} if dropped is None else {"dropped": dropped}
    return parts


def parts_of_event(values: Mapping[str, Any], steps: Mapping[str, Any]) -> Arrays:
    """The same of one event, which has no axis of events."""
    return {}, values, steps, {}, {}


def as_events(parts: Arrays) -> list[dict[str, Any]]:
    """The arrays of one event with an axis of events."""
    return [{name: array[None] for name, array in part.items()} for part in parts]


def keys_in(parts: Arrays) -> Iterator[str]:
    """The keys in the parts of logs."""
    return itertools.chain.from_iterable(parts[1::4])


def layout_of_parts(parts: Arrays) -> tuple[Any, ...]:
    """What the parts of logs must have in common to be joined."""
    return (*map(len, parts), *[(name, *layout_of(array)) for part in parts for name, array in part.items()])


def logs_of(deliveries: Sequence[Arrays]) -> logdict:
    """The logs of these parts, one after the other. The parts have one layout."""
    return of_timelines(_timelines_of(deliveries))


def _timelines_of(deliveries: Sequence[Arrays]) -> Iterator[Timeline]:
    first = deliveries[0]
    for place in range(1, len(first), 4):
        if not first[place]:
            continue
        values, steps, mask = (
            {name: all_of([parts[each][name] for parts in deliveries]) for name in first[each]}
            for each in range(place, place + 3)
        )
        dropped = {name: sum(parts[place + 3][name] for parts in deliveries) for name in first[place + 3]}
        counts = [len(next(iter(parts[place].values()))) for parts in deliveries]
        counters = {name: np.repeat([parts[0][name] for parts in deliveries], counts) for name in first[0]}
        yield _counted(Timeline(values, steps, **mask, **dropped), counters)


def with_counters(logs: logdict, counters: Mapping[str, Any]) -> logdict:
    """The logs with counters that have one value for all events. Those that a key has already stay.

    The counters, and the logs, are arrays of NumPy, or of JAX where they are traced.
    """
    return map_timelines(functools.partial(_counted, counters=counters), logs)


def _counted(timeline: Timeline, counters: Mapping[str, Any]) -> Timeline:
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
