"""Logs, as one `log_p` equation carries them: events, possibly stacked by the loops in which they happened.

Logs are a tuple in program order. Each is an `Event`, one call of `lox.log`, or `StackedEvents`, logs that happened
`length` times. They are pytrees. Under `k` enclosing `StackedEvents` every array of an event has `k` leading loop axes,
outermost first; after them come the batch axes (`vmap`, shards), then the shape that was logged.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.extend as jex
import jax.numpy as jnp

from lox import _compat
from lox._leading_axes import broadcast_as, where
from lox._site import NOWHERE as NOWHERE
from lox._site import Optional
from lox._site import Site as Site


@jax.tree_util.register_dataclass
@dataclasses.dataclass(slots=True)  # Never changed. Frozen ones, which eager logs make many of, take 7 times as long.
class Event:
    """One call of `lox.log`.

    Attributes:
        values: What was logged, by key. An event without values only keeps its `iteration_deps` from being removed.
        steps: The counters of the call, by name. A counter has no batch axes, or all; an axis over which it does not
            differ may have size one.
        mask: Whether the event happened, per batch element; None when it always does.
        iteration_deps: Values without meaning that tie the event to the loop iteration it belongs to.
        site: The call.
        batch_ndim: The number of batch axes, which every array has.
        optional: Why the number of such events depends on data; None when it does not.
        spmd_axes: Inside a `shard_map`, for the first batch axes, the mesh axes over which each is split.
        outer_batch_ndim: Inside a `shard_map`, how many of the first batch axes are of a `vmap` around it.
        is_filled: Whether values and counters already are what the user gets where the mask is False.
        where_ndim: How many of the last batch axes are of `where=`.
    """

    values: dict[str, Any]
    steps: dict[str, Any]
    mask: Any
    iteration_deps: tuple[Any, ...]
    site: Site = dataclasses.field(metadata={"static": True})
    batch_ndim: int = dataclasses.field(default=0, metadata={"static": True})
    optional: Optional | None = dataclasses.field(default=None, metadata={"static": True})
    spmd_axes: tuple[tuple[Any, ...], ...] = dataclasses.field(default=(), metadata={"static": True})
    outer_batch_ndim: int = dataclasses.field(default=0, metadata={"static": True})
    is_filled: bool = dataclasses.field(default=False, metadata={"static": True})
    where_ndim: int = dataclasses.field(default=0, metadata={"static": True})

    def with_full_steps(self, depth: int) -> Event:
        """The event under `depth` loops, whose counters have all batch axes in full."""
        if not self.batch_ndim or not self.steps:
            return self
        value = next(iter(self.values.values()))
        steps = {name: broadcast_as(value, step, depth + self.batch_ndim) for name, step in self.steps.items()}
        return dataclasses.replace(self, steps=steps)

    def lengths(self, depth: int) -> tuple[int, ...]:
        """The lengths of the `depth` loops around the event."""
        return jnp.shape(next(iter((*self.values.values(), *self.iteration_deps))))[:depth]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(slots=True)
class StackedEvents:
    """Logs that happened `length` times; `dropped` counts, for keys of one timeline, the events beyond a bound."""

    body: tuple[Any, ...]
    dropped: dict[tuple[str, ...], Any]
    length: int = dataclasses.field(metadata={"static": True})


Log = Event | StackedEvents
"""A log call, or logs with an axis for the iterations of a loop."""

Logs = tuple[Log, ...]
"""A sequence of logs, in the order in which they happened."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Destination:
    """The destination of logs that a tap has taken.

    Attributes:
        channel: The number under which the host knows the tap, shape `()`; or what it knows, which has no arrays.
        shard: The number of the shard that the logs come from, shape `()`; None when they are of all shards.
        shards: How many shards there are.
        ordered: Whether the logs arrive in the order in which they happen.
        first: The mesh axes along which only the first shard sends them, since they are the same on all.
    """

    channel: Any
    shard: Any
    shards: int = dataclasses.field(metadata={"static": True})
    ordered: bool = dataclasses.field(metadata={"static": True})
    first: tuple[Any, ...] = dataclasses.field(default=(), metadata={"static": True})


def map_events(function: Callable[[Event, int], Event | None], logs: Sequence[Log], depth: int = 0) -> Logs:
    """Replaces every event; `function` also gets the number of loops around it and drops the event with None."""
    mapped: list[Log] = []
    for log in logs:
        if isinstance(log, StackedEvents):
            body = map_events(function, log.body, depth + 1)
            dropped = {}
            if log.dropped:
                keys = {key for event in events(body) for key in event.values}
                left = {tuple(key for key in group if key in keys): count for group, count in log.dropped.items()}
                dropped = {group: count for group, count in left.items() if group}
            if body:
                mapped.append(StackedEvents(body, dropped, log.length))
        else:
            event = function(log, depth)
            if event is not None:
                mapped.append(event)
    return tuple(mapped)


def restrict(event: Event, wanted: Callable[[str], Any]) -> Event | None:
    """The event with the values of the wanted keys only."""
    values = {key: value for key, value in event.values.items() if wanted(key)}
    if not values:
        return None
    return event if len(values) == len(event.values) else dataclasses.replace(event, values=values)


def single_events(logs: Sequence[Log]) -> Iterator[Event]:
    """The events as they are in one iteration of the loops around them, with abstract values in place of arrays."""
    for event, depth in with_depths(logs):
        event = jax.tree.map(_compat.aval_of, event)
        for _ in range(depth):
            event = jax.tree.map(lambda aval: jex.core.mapped_aval(aval.shape[0], 0, aval), event)
        yield event


def with_depths(logs: Sequence[Log], depth: int = 0) -> Iterator[tuple[Event, int]]:
    """All events, each with the number of loops around it."""
    for log in logs:
        if isinstance(log, StackedEvents):
            yield from with_depths(log.body, depth + 1)
        else:
            yield log, depth


def events(logs: Sequence[Log]) -> Iterator[Event]:
    """All events, each once, whatever loops it is in."""
    if len(logs) == 1 and isinstance(logs[0], Event):  # As each log call of an eager program has it.
        return iter((logs[0],))
    return (event for log in logs for event in ((log,) if isinstance(log, Event) else events(log.body)))


def with_values(logs: Sequence[Log]) -> Logs:
    """The logs without the events that only keep something from being removed."""
    for event in events(logs):
        if not event.values:
            break
    else:
        return tuple(logs)
    return map_events(lambda event, _: event if event.values else None, logs)


def depths(logs: Sequence[Log], depth: int = 0) -> list[int]:
    """For each array in the flattened logs, the number of its leading loop axes."""
    found: list[int] = []
    for log in logs:
        if isinstance(log, StackedEvents):
            found += depths(log.body, depth + 1) + [depth] * len(jax.tree.leaves(log.dropped))
        else:
            found += [depth] * len(jax.tree.leaves(log))
    return found


def counters(logs: Sequence[Log]) -> list[int | None]:
    """For each array in the flattened logs, the number of batch axes of its event, or None if it is no counter."""
    found: list[int | None] = []
    for log in logs:
        if isinstance(log, StackedEvents):
            found += [*counters(log.body), *[None] * len(jax.tree.leaves(log.dropped))]
        else:
            rest = len(jax.tree.leaves((log.mask, log.iteration_deps)))
            found += [*[None] * len(log.values), *[log.batch_ndim] * len(log.steps), *[None] * rest]
    return found


def masked(logs: Sequence[Log], mask: Any) -> Logs:
    """Mask the logs; `mask` is a bool with the leading batch axes."""

    def narrow(event: Event, depth: int) -> Event:
        shape = event.lengths(depth + event.batch_ndim)
        new = jax.lax.broadcast_in_dim(mask, shape, range(depth, depth + jnp.ndim(mask)))
        return narrow_mask(event, new)

    narrowed = map_events(narrow, logs)
    return tuple(_mask_dropped(log, mask) for log in narrowed)


def narrow_mask(event: Event, mask: Any) -> Event:
    """Mask the event; `mask` has the axes of its own mask."""
    mask = mask if event.mask is None else _both(event.mask, mask)
    return dataclasses.replace(event, mask=mask, is_filled=False)


def _both(first: Any, second: Any) -> Any:
    axes = sorted(_compat.varying_axes(first) | _compat.varying_axes(second))
    return _compat.vary_in_branch(first, axes) & _compat.vary_in_branch(second, axes)


def _mask_dropped(log: Log, mask: Any) -> Log:
    if isinstance(log, Event):
        return log
    dropped = {keys: where(mask, count, jnp.zeros_like(count)) for keys, count in log.dropped.items()}
    return StackedEvents(tuple(_mask_dropped(child, mask) for child in log.body), dropped, log.length)
