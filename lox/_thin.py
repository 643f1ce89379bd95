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
from lox._blocks import Block, blocks, with_event_axis
from lox._events import Event, Loop, Node, events, map_events, restrict
from lox._lanes import sharded_as, where


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
    for key, block in blocks(map_events(lambda event, _: restrict(event, certain.__contains__), [node])).items():
        block = with_event_axis(block)
        start, count = counts.get(key, 0), jnp.shape(block.value)[0]
        counts[key] = start + count
        first = -start % interval
        if first < count or not count:
            thinned.append(as_loop(key, block.map(functools.partial(_every, interval=interval, first=first))))
    return thinned


def _every(array: Any, interval: int, first: int) -> Any:
    return jax.lax.slice_in_dim(array, first, None, interval)


def as_loop(key: str, block: Block) -> Loop:
    """A block with an event axis as a node."""
    fixed = (block.site, block.lanes, block.optional)
    event = Event({key: block.value}, block.steps, block.mask, (), *fixed)
    dropped = {} if block.dropped is None else {key: block.dropped}
    return Loop((event,), dropped, jnp.shape(block.value)[0])


class ThinningScan:
    """The events of some keys in a scan of which every iteration logs the same number: a buffer of those kept."""

    def __init__(self, interval: int, start: Mapping[str, int], length: int):
        self.interval, self.first, self.length = interval, start, length

    def start(self, shapes: Mapping[str, Block]) -> dict[str, Any]:
        def buffers(key: str, block: Block) -> Any:
            count = kept(self.first.get(key, 0), self.length * block.value.shape[0], self.interval)

            def buffer(aval: Any) -> Any:
                inner = jex.core.mapped_aval(aval.shape[0], 0, aval)
                return _compat.zeros_like_aval(jex.core.unmapped_aval(count, 0, inner))

            return {"value": buffer(block.value), "steps": {name: buffer(step) for name, step in block.steps.items()}}

        return {key: buffers(key, block) for key, block in shapes.items()}

    def step(self, state: dict[str, Any], index: Any, found: Mapping[str, Block]) -> dict[str, Any]:
        return {key: self._write(key, state[key], index, block) for key, block in found.items()}

    def _write(self, key: str, buffers: Any, index: Any, block: Block) -> Any:
        first, count = self.first.get(key, 0), jnp.shape(block.value)[0]
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

            steps = {name: put(buffers["steps"][name], step) for name, step in block.steps.items()}
            buffers = {"value": put(buffers["value"], block.value), "steps": steps}
        return buffers

    def finish(self, state: dict[str, Any], shapes: Mapping[str, Block]) -> list[Node]:
        return [
            as_loop(key, dataclasses.replace(shapes[key], value=buffers["value"], steps=buffers["steps"]))
            for key, buffers in state.items()
            if buffers["value"].shape[0] or not self.length * shapes[key].value.shape[0]
        ]


def compact(block: Block, interval: int, offset: int) -> Block:
    """Every `interval`-th event that happened, of a block whose first `offset` events were thinned out already."""
    slots = jnp.shape(block.value)[0]
    done = min(-(-offset // interval), slots)
    capacity = -(-(offset + slots - done) // interval)
    shape = jnp.shape(block.value)[: 1 + block.lanes]
    mask = sharded_as(block.value, jnp.ones(shape, bool) if block.mask is None else block.mask)
    place = sharded_as(block.value, jax.lax.broadcasted_iota(jnp.int32, shape, 0))
    late = mask & (place >= done)
    number = where(place < done, place * interval, offset + jnp.cumsum(late, axis=0, dtype=jnp.int32) - 1)
    wanted = mask & (number % interval == 0)
    source = jax.lax.slice_in_dim(jnp.sort(where(wanted, place, jnp.full_like(place, slots)), axis=0), 0, capacity)
    inside = jnp.minimum(source, max(slots - 1, 0))

    def move(array: Any) -> Any:
        return _over_batches(_take, block.lanes)(sharded_as(block.value, array), inside)

    return dataclasses.replace(block.map(move), mask=source < slots)


def _over_batches(function: Callable[..., Any], lanes: int) -> Callable[..., Any]:
    for _ in range(lanes):
        function = jax.vmap(function, in_axes=1, out_axes=1)
    return function


def _take(array: Any, places: Any) -> Any:
    return jnp.take(array, places, axis=0, mode="clip")
