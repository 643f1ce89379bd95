"""How `lox.spool` collects over loops without stacking every iteration: folded, thinned out, or in a buffer."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.extend as jex
import jax.numpy as jnp

from lox import _compat
from lox._columns import Columns, describe, with_event_axes
from lox._events import Event, Node, StackedEvents, events, map_events, narrow_mask, restrict
from lox._exceptions import StructureError
from lox._reduce import (
    Accumulator,
    alike,
    continuing,
    count,
    empty,
    end_of_loop,
    fold,
    in_equal_batches,
    lift,
    merge,
    next_of_loop,
    of_scan,
    result,
)
from lox._thin import Seen, ThinningScan
from lox._timeline import canonical, refined


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Reduced:
    """A node: the reduced events of some keys.

    Attributes:
        accumulators: The events of each key.
        timelines: The keys that are logged together, and whose counters and masks are therefore equal.
    """

    accumulators: dict[str, Accumulator]
    timelines: tuple[tuple[str, ...], ...] = dataclasses.field(metadata={"static": True})

    def parts(self, group: Callable[[Any], Any]) -> list[Reduced]:
        """A node for the keys of each timeline for which `group` is the same; nothing else is known of them."""
        alone = {key: dataclasses.replace(each, direct=False) for key, each in self.accumulators.items()}
        found: dict[Any, list[str]] = {}
        for place, keys in enumerate(self.timelines):
            for key in keys:
                found.setdefault((place, group(alone[key])), []).append(key)
        return [Reduced({key: alone[key] for key in keys}, (tuple(keys),)) for keys in found.values()]


def reduced(timelines: Sequence[Columns], reduction: Callable[[str], str | None]) -> Reduced:
    """The events of some timelines, each key by its reduction."""
    accumulators = {}
    # The counters of "first" are those of another event.
    parts = refined(timelines, lambda key: reduction(key) == "first")
    for each in parts:
        of = lift if each.single else fold
        for key, value in each.values.items():
            name = reduction(key)
            if name is None:
                raise AssertionError(f"{key!r} has no reduction")
            accumulators[key] = of(name, value, each.mask, each.steps, each.site, each.batch_ndim)
    return Reduced(accumulators, canonical(each.values for each in parts))


def merge_reduced(first: Reduced, second: Reduced) -> Reduced:
    """The events of `first`, then those of `second`.

    Raises:
        StructureError: Events of one key differ in shape, dtype or counters.
    """
    merged = dict(first.accumulators)
    for key, accumulator in second.accumulators.items():
        if key in merged:
            before, accumulator = in_equal_batches(merged[key], accumulator)
            _check_alike(key, before, accumulator)
            accumulator = merge(before, accumulator)
        merged[key] = accumulator
    return Reduced(merged, canonical([*first.timelines, *second.timelines]))


def _check_alike(key: str, first: Accumulator, other: Accumulator) -> None:
    kinds = []
    for accumulator in (first, other):
        shape = accumulator.batch_shape if accumulator.value is None else jnp.shape(accumulator.value)
        kinds.append((describe(accumulator.dtype, shape, len(accumulator.batch_shape)), sorted(accumulator.steps)))
    if kinds[0] != kinds[1]:
        (here, steps), (there, other_steps) = kinds
        raise StructureError(
            f"The key {key!r} is logged as {here} with steps {steps} at {first.site} and as {there} with steps "
            f"{other_steps} at {other.site}. Events of one key must be alike: give one of them another key or a prefix."
        )


def align_reduced(branches: Sequence[Reduced]) -> list[Callable[[Reduced], Reduced]]:
    """For each branch, how to complete its reduced events by keys that only others log.

    Args:
        branches: The reduced events of each branch, with abstract values in place of arrays.
    """
    found: dict[str, list[Accumulator | None]] = {}
    for index, branch in enumerate(branches):
        for key, accumulator in branch.accumulators.items():
            others = found.setdefault(key, [None] * len(branches))
            others[index] = accumulator
            _check_alike(key, next(other for other in others if other is not None), accumulator)
    changes = {key: alike(accumulators) for key, accumulators in found.items()}
    timelines = canonical(keys for branch in branches for keys in branch.timelines)

    def complete(reduced: Reduced) -> Reduced:
        accumulators = {key: change(reduced.accumulators.get(key)) for key, change in changes.items()}
        return Reduced(accumulators, timelines)

    return [complete] * len(branches)


def empty_reduced(like: Reduced) -> Reduced:
    """Reduced events of which none happened, from the abstract values of some."""
    return Reduced({key: empty(accumulator) for key, accumulator in like.accumulators.items()}, like.timelines)


def split_reduced(nodes: Sequence[Any]) -> tuple[Reduced, tuple[Node, ...]]:
    """The reduced events among the nodes, and the other nodes."""
    found = [node for node in nodes if isinstance(node, Reduced)]
    return (found[0] if found else Reduced({}, ())), tuple(node for node in nodes if not isinstance(node, Reduced))


def _next(sofar: Reduced, iteration: Reduced, index: Any) -> Reduced:
    """What a loop folded after one more iteration."""
    new = iteration.accumulators
    found = {key: next_of_loop(before, new[key], index) for key, before in sofar.accumulators.items()}
    return Reduced(found, iteration.timelines)


def _end(sofar: Reduced, iteration: Reduced, trips: Any) -> Reduced:
    """What a loop folded, at its end."""
    like = iteration.accumulators
    found = {key: end_of_loop(before, like[key], trips) for key, before in sofar.accumulators.items()}
    return Reduced(found, iteration.timelines)


@dataclasses.dataclass
class ScanLoops:
    """Folds reduced events, writes what is kept of thinned ones to buffers, and stacks the others.

    Attributes:
        length: The number of iterations.
        interval: Which events are kept, or None for all.
        seen: The events before the loop.
        sofar: Reduced events before the loop, by key, that it may begin with.
    """

    length: int
    interval: int | None
    seen: Seen
    sofar: Mapping[str, Accumulator]

    def start(self, nodes: Any) -> Any:
        self.like, others = split_reduced(nodes)
        thinned, _ = self._split(others)
        self.shapes = _compat.abstract(self._timelines, thinned)
        self.thinning = ThinningScan(self.interval or 1, dict(self.seen.counts), self.length)
        start = {
            key: continuing(none, self.sofar[key]) if key in self.sofar else none
            for key, none in empty_reduced(self.like).accumulators.items()
        }
        return Reduced(start, self.like.timelines), self.thinning.start(self.shapes)

    def within(self, handler: Any, carry: Any) -> Any:
        sofar, like = carry[0].accumulators, self.like.accumulators
        direct = {key: accumulator for key, accumulator in sofar.items() if like[key].direct}
        return handler.continuing(direct) if direct else handler

    def step(self, carry: Any, index: Any, nodes: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
        reduced, buffers = carry
        new, others = split_reduced(nodes)
        thinned, stacked = self._split(others)
        buffers = self.thinning.step(buffers, index, self._timelines(thinned))
        return (_next(reduced, new, index), buffers), stacked

    def finish(self, carry: Any, stacked: tuple[Any, ...], trips: Any) -> tuple[Any, ...]:
        reduced, buffers = carry
        nodes: list[Any] = self.thinning.finish(buffers, self.shapes)
        if stacked:
            nodes.append(StackedEvents(stacked, {}, self.length))
        if self.interval is not None:
            nodes.append(self._seen_after(stacked))
        if reduced.accumulators:
            ended = _end(reduced, self.like, self.length).accumulators
            found = {key: of_scan(each, continued=key in self.sofar) for key, each in ended.items()}
            nodes.append(Reduced(found, self.like.timelines))
        return tuple(nodes)

    def _timelines(self, nodes: Sequence[Node]) -> list[Columns]:
        """The timelines, of which those keys are together that had as many events before."""
        before = dict(self.seen.counts)
        return refined(with_event_axes(nodes), lambda key: before.get(key, 0))

    def _split(self, nodes: Sequence[Node]) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
        if self.interval is None:
            return (), tuple(nodes)
        uncertain = {key for event in events(nodes) if event.mask is not None for key in event.values}
        uncertain |= dict(self.seen.uncertain).keys()
        thinned = map_events(lambda event, _: restrict(event, lambda key: key not in uncertain), nodes)
        return thinned, map_events(lambda event, _: restrict(event, uncertain.__contains__), nodes)

    def _seen_after(self, stacked: Sequence[Node]) -> Seen:
        counts, uncertain = dict(self.seen.counts), dict(self.seen.uncertain)
        for event in events(stacked):
            for key in event.values:
                uncertain.setdefault(key, counts.get(key, 0))
        for each in self.shapes:
            for key, value in each.values.items():
                counts[key] = counts.get(key, 0) + self.length * value.shape[0]
        return Seen(tuple(counts.items()), tuple(uncertain.items()))


@dataclasses.dataclass
class WhileLoops:
    """Folds reduced events, and writes the others of the first `bound` iterations to a buffer."""

    bound: int | None

    def start(self, nodes: Any) -> Any:
        self.like, others = split_reduced(nodes)
        bound = self.bound or 0  # Without a bound, every event is reduced.

        def buffer(aval: Any) -> Any:  # With one more, for what is beyond the bound.
            return _compat.zeros_like_aval(jex.core.unmapped_aval(bound + 1, 0, aval))

        self.counts = _compat.abstract(_counts, others)
        return empty_reduced(self.like), jax.tree.map(buffer, others), empty_reduced(self.counts)

    def step(self, carry: Any, index: Any, nodes: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
        reduced, buffers, dropped = carry
        new, others = split_reduced(nodes)
        bound = self.bound or 0
        slot = jnp.minimum(index, bound)

        def write(buffer: Any, array: Any) -> Any:
            return jax.lax.dynamic_update_index_in_dim(buffer, array, slot, 0)

        buffers = jax.tree.map(write, buffers, others)
        beyond = jax.tree.map(lambda number: jnp.where(index < bound, 0, number), _counts(others))
        return (_next(reduced, new, index), buffers, _next(dropped, beyond, index)), ()

    def finish(self, carry: Any, stacked: tuple[Any, ...], trips: Any) -> tuple[Any, ...]:
        reduced, buffers, dropped = carry
        nodes: list[Any] = []
        if self.bound is not None and dropped.accumulators:
            dropped = _end(dropped, self.counts, jnp.maximum(trips - self.bound, 0))
            ran = jnp.arange(self.bound, dtype=jnp.int32) < trips
            buffers = jax.tree.map(lambda buffer: buffer[: self.bound], buffers)

            def narrow(event: Event, depth: int) -> Event:
                # Loops inside of the loop are stacked after its own axis, which is the first.
                shape = event.lengths(depth + 1 + event.batch_ndim)
                return narrow_mask(event, jax.lax.broadcast_in_dim(ran, shape, (0,)))

            counts = {keys: result(dropped.accumulators[keys[0]]) for keys in dropped.timelines}
            nodes.append(StackedEvents(map_events(narrow, buffers), counts, self.bound))
        if reduced.accumulators:
            nodes.append(_end(reduced, self.like, trips))
        return tuple(nodes)


def _counts(nodes: Sequence[Node]) -> Reduced:
    """How many events of each timeline happened in an iteration, per batch element, also beyond the bounds of loops
    inside.

    They stand under the first key of each.
    """
    counts, timelines = {}, []
    for each in with_event_axes(nodes):
        maybe = None if each.mask is None else jnp.sum(each.mask, axis=0, dtype=jnp.int32)
        if each.dropped is not None:
            maybe = each.dropped if maybe is None else maybe + each.dropped
        certain = jnp.shape(each.any_value())[0] if each.mask is None else 0
        keys = tuple(sorted(each.values))
        counts[keys[0]] = count(maybe, certain, each.batch(0), each.site)
        timelines.append(keys)
    return Reduced(counts, tuple(timelines))
