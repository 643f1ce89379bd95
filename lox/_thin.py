"""Every k-th event of a key: how logs are thinned out as they are collected.

Events that surely happen are counted while the program is traced, so that only what is kept gets memory. From the
first event on that may not happen, the events of its key are collected in full, and thinned out at the end.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.extend as jex
import jax.numpy as jnp

from lox import _compat
from lox._columns import Columns, with_event_axes
from lox._events import Node, events, map_events, restrict
from lox._leading_axes import sharded_as, where
from lox._timeline import refined


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Seen:
    """A node without arrays: how many events of each key there were up to here, kept or not.

    Attributes:
        counts: The number of events, as long as it is known.
        uncertain: The keys of which an event may not have happened, with their number before that.
    """

    counts: tuple[tuple[str, int], ...] = dataclasses.field(default=(), metadata={"static": True})
    uncertain: tuple[tuple[str, int], ...] = dataclasses.field(default=(), metadata={"static": True})


def kept(start: int, count: int, interval: int) -> int:
    """How many of the events numbered from `start` to `start + count - 1` are kept."""
    return -(-(start + count) // interval) - -(-start // interval)


def thin(nodes: Sequence[Any], interval: int, start: Seen) -> tuple[Any, ...]:
    """Thins out the nodes that have not been yet: those after the last `Seen`, to which a new one is appended."""
    last = max((place for place, node in enumerate(nodes) if isinstance(node, Seen)), default=-1)
    seen = nodes[last] if last >= 0 else start
    done = [node for node in nodes[: last + 1] if not isinstance(node, Seen)]
    counts, uncertain = dict(seen.counts), dict(seen.uncertain)
    for node in nodes[last + 1 :]:
        done += _thin_node(node, interval, counts, uncertain)
    return (*done, Seen(tuple(counts.items()), tuple(uncertain.items())))


def _thin_node(node: Node, interval: int, counts: dict[str, int], uncertain: dict[str, int]) -> list[Node]:
    for event in events([node]):
        if event.mask is not None:
            for key in event.values:
                uncertain.setdefault(key, counts.get(key, 0))
    certain = {key for event in events([node]) for key in event.values} - uncertain.keys()
    rest = map_events(lambda event, _: restrict(event, lambda key: key not in certain), [node])
    thinned: list[Node] = list(rest)
    found = with_event_axes(map_events(lambda event, _: restrict(event, certain.__contains__), [node]))
    for each in refined(found, lambda key: counts.get(key, 0)):
        start, count = counts.get(next(iter(each.values)), 0), jnp.shape(each.any_value())[0]
        counts.update(dict.fromkeys(each.values, start + count))
        first = -start % interval
        if first < count or not count:
            thinned.append(each.map(functools.partial(_every, interval=interval, first=first)).as_node())
    return thinned


def _every(array: Any, interval: int, first: int) -> Any:
    return jax.lax.slice_in_dim(array, first, None, interval)


class ThinningScan:
    """The events of some timelines in a scan of which every iteration logs the same number: a buffer of those kept."""

    def __init__(self, interval: int, start: Mapping[str, int], length: int):
        self.interval, self.first, self.length = interval, start, length

    def start(self, shapes: Sequence[Columns]) -> list[Columns]:
        def buffers(timeline: Columns) -> Columns:
            count = kept(self._before(timeline), self.length * timeline.any_value().shape[0], self.interval)

            def buffer(aval: Any) -> Any:
                inner = jex.core.mapped_aval(aval.shape[0], 0, aval)
                return _compat.zeros_like_aval(jex.core.unmapped_aval(count, 0, inner))

            return timeline.map(buffer)

        return [buffers(timeline) for timeline in shapes]

    def step(self, state: Sequence[Columns], index: Any, found: Sequence[Columns]) -> list[Columns]:
        return [self._write(buffers, index, new) for buffers, new in zip(state, found, strict=True)]

    def _before(self, timeline: Columns) -> int:
        return self.first.get(next(iter(timeline.values)), 0)

    def _write(self, buffers: Columns, index: Any, new: Columns) -> Columns:
        first, count = self._before(new), jnp.shape(new.any_value())[0]
        before = first + index * count
        for turn in range(-(-count // self.interval)):
            place = -before % self.interval + turn * self.interval
            slot = (before + place) // self.interval - -(-first // self.interval)
            hit = place < count

            def put(buffer: Any, array: Any, place: Any = place, slot: Any = slot, hit: Any = hit) -> Any:
                if not buffer.shape[0]:
                    return buffer
                new = jax.lax.dynamic_index_in_dim(array, jnp.minimum(place, count - 1), keepdims=False)
                slot = jnp.minimum(slot, buffer.shape[0] - 1)
                old = jax.lax.dynamic_index_in_dim(buffer, slot, keepdims=False)
                return jax.lax.dynamic_update_index_in_dim(buffer, where(hit, new, old), slot, 0)

            buffers = jax.tree.map(put, buffers, new)
        return buffers

    def finish(self, state: Sequence[Columns], shapes: Sequence[Columns]) -> list[Node]:
        return [
            buffers.as_node()
            for buffers, each in zip(state, shapes, strict=True)
            if buffers.any_value().shape[0] or not self.length * each.any_value().shape[0]
        ]


def compact(timeline: Columns, interval: int, offset: int) -> Columns:
    """Every `interval`-th event that happened, of a timeline whose first `offset` events were thinned out already."""
    value = timeline.any_value()
    slots = jnp.shape(value)[0]
    done = min(-(-offset // interval), slots)
    capacity = -(-(offset + slots - done) // interval)
    shape = jnp.shape(value)[: 1 + timeline.batch_ndim]
    mask = sharded_as(value, timeline.happened())
    place = sharded_as(value, jax.lax.broadcasted_iota(jnp.int32, shape, 0))
    late = mask & (place >= done)
    number = where(place < done, place * interval, offset + jnp.cumsum(late, axis=0, dtype=jnp.int32) - 1)
    wanted = mask & (number % interval == 0)
    source = jax.lax.slice_in_dim(jnp.sort(where(wanted, place, jnp.full_like(place, slots)), axis=0), 0, capacity)
    inside = jnp.minimum(source, max(slots - 1, 0))

    def move(array: Any) -> Any:
        return _over_batches(_take, timeline.batch_ndim)(array, sharded_as(array, inside))

    return dataclasses.replace(timeline.map(move), mask=source < slots, is_filled=False)


def _over_batches(function: Callable[..., Any], batch_ndim: int) -> Callable[..., Any]:
    for _ in range(batch_ndim):
        function = jax.vmap(function, in_axes=1, out_axes=1)
    return function


def _take(array: Any, places: Any) -> Any:
    return jnp.take(array, places, axis=0, mode="clip")
