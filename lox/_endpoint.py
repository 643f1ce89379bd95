"""The place that a tap sends logs to, as they happen in a program."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from lox import _compat
from lox._channel import Channel
from lox._deliver import INNER, SHARDED, channel_p
from lox._effect import emit
from lox._events import Destination, Event, Log, Logs, StackedEvents, map_events, masked


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Endpoint:
    """The place that a tap sends logs to.

    Attributes:
        channel: What the host knows the tap as: a number, or itself where that saves the number's way.
        labels: Counters that what is sent has besides its own, each of shape `()`, by name.
    """

    channel: Any
    labels: dict[str, Any]

    def with_number(self) -> Endpoint:
        """The same for a program that is compiled once for all its callers."""
        is_number = not isinstance(self.channel, Channel)
        return self if is_number else Endpoint(channel_p.bind(channel=self.channel), self.labels)

    def send(self, logs: Logs, ordered: bool) -> None:
        """Send logs to the host, as they happen now."""
        labels = {name: jnp.asarray(value) for name, value in self.labels.items()}
        if labels:
            logs = _labelled(logs, labels)
        axes = manual_axes()
        if not axes:
            emit(logs, Destination(self.channel, None, 1, ordered))
            return
        tracked = all(name in _compat.varying_axes(jax.lax.axis_index(name)) for name in axes)

        def varies(tree: Any) -> frozenset[Any]:
            leaves = jax.tree.leaves(tree)
            return frozenset[Any]().union(*map(_compat.varying_axes, leaves)) if tracked else frozenset(axes)

        told_apart = varies(labels) if tracked else frozenset[Any]()
        for log in _split_by(varies, logs):
            varying = varies(log)
            over = tuple(name for name in axes if name in varying - told_apart)
            if varying and labels:
                own = tuple(name for name in axes if name in told_apart)
                (log,) = _labelled([log], {SHARDED: -1 - jax.lax.axis_index(own) if own else jnp.int32(0)})
            first = tuple(name for name in axes if name not in varying)
            for name in first:  # Where all are alike, the first one speaks.
                (log,) = masked([log], jax.lax.axis_index(name) == 0)
            shard = jax.lax.axis_index(over) if over else None
            shards = jax.lax.axis_size(over) if over else 1
            emit([log], Destination(self.channel, shard, shards, ordered, first))


def _split_by(group: Callable[[Event], Any], logs: Sequence[Log]) -> Iterator[Log]:
    """The logs, an event being split into those of its keys for which `group` is the same."""
    for log in logs:
        if isinstance(log, StackedEvents):
            yield log
            continue
        of = {key: group(dataclasses.replace(log, values={key: value})) for key, value in log.values.items()}
        for each in dict.fromkeys(of.values()):
            yield dataclasses.replace(log, values={key: log.values[key] for key in of if of[key] == each})


def _labelled(logs: Sequence[Log], labels: dict[str, Any]) -> tuple[Log, ...]:
    """The logs with labels, each of shape `()`."""

    def label(event: Event, depth: int) -> Event:
        shape = event.lengths(depth + event.batch_ndim)
        of_event = labels | {INNER: jnp.int32(event.batch_ndim)}
        steps = {name: jnp.broadcast_to(value, shape) for name, value in of_event.items()}
        return dataclasses.replace(event, steps=event.steps | steps)

    return map_events(label, logs)


def manual_axes() -> tuple[Any, ...]:
    """The axes of the shards that the program runs on one by one."""
    return tuple(jax.sharding.get_abstract_mesh().manual_axes)
