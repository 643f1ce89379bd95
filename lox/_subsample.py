"""Every k-th event of a key: how logs are subsampled as they are collected.

Events that surely happen are counted while the program is traced, so that only what is kept gets memory. From the
first event on that may not happen, the events of its key are collected in full, and subsampled at the end.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import jax
import jax.extend as jex
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from lox import _compat
from lox import _sharding as sharding
from lox._columns import Columns, with_event_axes
from lox._events import Log, Logs, StackedEvents, events, map_events, restrict
from lox._handler import Handler, State
from lox._leading_axes import where
from lox._rules._call import discharge, split_results
from lox._rules._scan import operands, options, run_scan
from lox._split import in_order
from lox._timeline import refined


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class EventCounts:
    """The numbers of events of each key, kept or not.

    Attributes:
        counts: The number of events, as long as it is known.
        uncertain: The keys of which an event may not have happened, with their number before that.
        order: The names that `_split.by_type` has made, in the order in which they appeared.
    """

    counts: tuple[tuple[str, int], ...] = dataclasses.field(default=(), metadata={"static": True})
    uncertain: tuple[tuple[str, int], ...] = dataclasses.field(default=(), metadata={"static": True})
    order: tuple[str, ...] = dataclasses.field(default=(), metadata={"static": True})

    def appeared(self, logs: Sequence[Log]) -> EventCounts:
        """The same counts, where further logs appear."""
        order = in_order(logs, self.order)
        return self if order == self.order else dataclasses.replace(self, order=order)

    def modulo(self, interval: int) -> EventCounts:
        """Return counts that keep the same events of what comes after. They are few, so that JAX's caches serve."""
        return dataclasses.replace(self, counts=tuple((key, count % interval) for key, count in self.counts))

    def after(self, inner: EventCounts, interval: int) -> EventCounts:
        """Return the counts after a program that began with `self.modulo(interval)` and ended with `inner`."""
        more = {key: count - count % interval for key, count in self.counts}
        uncertain = {key: count + more.get(key, 0) for key, count in inner.uncertain} | dict(self.uncertain)
        counts = tuple((key, count + more.get(key, 0)) for key, count in inner.counts)
        return EventCounts(counts, tuple(uncertain.items()), inner.order)


def kept(start: int, count: int, interval: int) -> int:
    """Count the events that are kept of those numbered from `start` to `start + count - 1`."""
    return -(-(start + count) // interval) - -(-start // interval)


def subsampled(logs: Logs, interval: int, before: EventCounts) -> tuple[EventCounts, Logs]:
    """Keep every `interval`-th event of logs that come after so many others."""
    found: list[Log] = []
    counts, uncertain = dict(before.counts), dict(before.uncertain)
    for log in logs:
        found += _subsampled(log, interval, counts, uncertain)
    return EventCounts(tuple(counts.items()), tuple(uncertain.items()), before.appeared(logs).order), tuple(found)


def _subsampled(log: Log, interval: int, counts: dict[str, int], uncertain: dict[str, int]) -> list[Log]:
    for event in events([log]):
        if event.mask is not None:
            for key in event.values:
                uncertain.setdefault(key, counts.get(key, 0))
    certain = {key for event in events([log]) for key in event.values} - uncertain.keys()
    rest = map_events(lambda event, _: restrict(event, lambda key: key not in certain), [log])
    kept_here: list[Log] = list(rest)
    found = with_event_axes(map_events(lambda event, _: restrict(event, certain.__contains__), [log]))
    for each in refined(found, lambda key: counts.get(key, 0)):
        start, count = counts.get(next(iter(each.values)), 0), jnp.shape(each.any_value())[0]
        counts.update(dict.fromkeys(each.values, start + count))
        first = -start % interval
        if first < count or not count:
            kept_here.append(each.map(functools.partial(_every, interval=interval, first=first)).as_log())
    return kept_here


def _every(array: Any, interval: int, first: int) -> Any:
    return jax.lax.slice_in_dim(array, first, None, interval)


# scan: (consts, carry, xs) -> (carry, ys)  becomes  (consts, (carry, buffers), xs) -> ((carry, buffers), (ys, logs))
def subsampled_scan(
    collector: Handler,
    before: EventCounts,
    interval: int,
    args: Sequence[Any],
    params: dict[str, Any],
    state: State = None,
) -> tuple[list[Any], EventCounts, Logs, State]:
    """Run a scan of which every `interval`-th event is kept.

    Events that surely happen are written to buffers of those kept; the others are stacked.

    Args:
        collector: The handler of an iteration, which collects all.
        before: The events before the scan.
        interval: Which events are kept.
        args: The arguments of the scan.
        params: Its parameters.
        state: The state of the handler, which has the same arrays after any iteration.

    Returns:
        The outputs of the scan, the events after it, the logs, and the state of the handler.
    """
    length = params["length"]
    consts, init, xs = operands(args, params)
    discharged, captured, structure = discharge(collector, state, params["jaxpr"])
    held = jax.tree.leaves(state)
    captured, after = captured[: len(captured) - len(held)], state
    avals = _compat.out_avals(discharged)
    _, _, like = split_results(avals, structure)
    buffers = _Buffers(interval, before, length, like)
    body = _Body(discharged, buffers.may_be_skipped(split_results(range(len(avals)), structure)[2]))
    always = buffers.keys.difference(*body.late_keys)

    def iterate(carry: Any, index: Any, *values: Any) -> Any:
        nonlocal after
        del index
        held, (kept, *parts), number = carry
        outs, late = body([*captured, *held, *consts, *values])
        outs, after, logs = split_results(outs, structure)

        def write_late(place: int) -> list[Columns]:
            def write(kept: Sequence[Columns]) -> list[Columns]:
                return buffers.write(kept, number, split_results(late[place](), structure)[2], body.late_keys[place])

            return jax.lax.cond(keeps_any, write, list, parts[place])

        keeps_any = buffers.keeps_any(number) if parts else None
        kept = [buffers.write(kept, number, logs, always), *map(write_late, range(len(parts)))]
        return outs, (jax.tree.leaves(after), kept, number + 1), buffers.rest(logs)

    start = held, [buffers.start(keys) for keys in (always, *body.late_keys)], jnp.int32(0)
    outs, (held, kept, _), stacked = run_scan(iterate, start, init, xs, **options(params))
    logs = (*buffers.finish(sum(kept, [])), *((StackedEvents(stacked, {}, length),) if stacked else ()))
    return outs, buffers.counts_after(stacked), logs, jax.tree.unflatten(jax.tree.structure(after), held)


WORK = 4096
"""The number of array elements from which on a computation takes longer than a conditional."""


def _work_of_part(whole: int) -> int | None:
    """How much one conditional computes of what may be skipped.

    The arrays that it takes stay in memory until all of them are there, and a GPU waits at each conditional: there are
    up to eight, if there is that much to compute.
    """
    return None if whole < WORK else max(whole // 8, 16 * WORK)


class _Body:
    """The body of a scan in parts: the first runs always, the others compute values that only logs need.

    Attributes:
        late_keys: The keys of each of the others.
    """

    def __init__(self, jaxpr: Any, skipped: Mapping[int, Sequence[str]]):
        """Take the body, and the outputs that may be skipped with the keys of their events."""
        self._early, self._parts = _compat.split_late(jaxpr, skipped, _work_of_part)
        self._avals = _compat.out_avals(jaxpr)
        self.late_keys = [{key for out in part.outs for key in skipped[out]} for part in self._parts]

    def __call__(self, args: Sequence[Any]) -> tuple[list[Any], list[Callable[[], list[Any]]]]:
        """The outputs, with zeros for those that are computed later, and for each part a function that fills in its."""
        is_late = {out for part in self._parts for out in part.outs}
        found = iter(_compat.as_fun(self._early)(*args))
        outs = [
            _compat.zeros_like_aval(aval) if number in is_late else next(found)
            for number, aval in enumerate(self._avals)
        ]
        between = [_Handed.of(value) for value in found]

        def filled(part: _compat.LatePart) -> list[Any]:
            results = _compat.as_fun(part.jaxpr)(*(between[operand].value() for operand in part.operands))
            return list((dict(enumerate(outs)) | dict(zip(part.outs, results, strict=True))).values())

        return outs, [functools.partial(filled, part) for part in self._parts]


@dataclasses.dataclass(frozen=True)
class _Handed:
    """A value that a conditional takes, so that the program that computes it stays as it is without the conditional.

    Compilers simplify axes of size 1 away, if a conditional does not take them. The barrier keeps them from moving the
    change of shape into its branches.
    """

    squeezed: Any
    axes: tuple[int, ...]

    @classmethod
    def of(cls, value: Any) -> _Handed:
        axes = tuple(axis for axis, size in enumerate(np.shape(value)) if size == 1)
        return cls(jax.lax.optimization_barrier(jax.lax.squeeze(value, axes)) if axes else value, axes)

    def value(self) -> Any:
        return jax.lax.expand_dims(self.squeezed, self.axes)


class _Buffers:
    """The events that a scan keeps of the timelines whose events surely happen."""

    def __init__(self, interval: int, before: EventCounts, length: int, like: Logs):
        """Take the logs of one iteration, with abstract values in place of arrays."""
        self.interval, self.length = interval, length
        self.counts, self.uncertain = dict(before.counts), dict(before.uncertain)
        self.order = before.appeared(like).order
        self.shapes = _compat.abstract(self._timelines, self._split(like)[0])
        self.keys = {key for timeline in self.shapes for key in timeline.values}

    def start(self, keys: Set[str]) -> list[Columns]:
        """The buffers of these keys."""

        def buffers(timeline: Columns) -> Columns:
            count = kept(self._before(timeline), self.length * timeline.any_value().shape[0], self.interval)

            def buffer(aval: Any) -> Any:
                inner = jex.core.mapped_aval(aval.shape[0], 0, aval)
                return _compat.zeros_like_aval(jex.core.unmapped_aval(count, 0, inner))

            return timeline.map(buffer)

        return [buffers(timeline) for timeline in self.shapes if not keys.isdisjoint(timeline.values)]

    def write(self, state: Sequence[Columns], index: Any, logs: Logs, keys: Set[str]) -> list[Columns]:
        """The buffers of these keys after an iteration."""
        found = self._timelines(self._split(_restricted(logs, keys.__contains__))[0])
        return [self._write(buffers, index, new) for buffers, new in zip(state, found, strict=True)]

    def rest(self, logs: Logs) -> Logs:
        """The logs that are to be stacked."""
        return self._split(logs)[1]

    def may_be_skipped(self, logs: Logs) -> dict[Any, tuple[str, ...]]:
        """The leaves of the logs of an iteration that nothing needs where `keeps_any` is False.

        Each has the keys of its events: they are written together.
        """
        skipped = {key for timeline in self._skipped() for key in timeline.values}
        found: dict[Any, tuple[str, ...]] = {}
        for event in events(_restricted(logs, skipped.__contains__)):
            for leaf in jax.tree.leaves(event):
                found[leaf] = (*found.get(leaf, ()), *event.values)
        needed = set(jax.tree.leaves(_restricted(logs, lambda key: key not in skipped)))
        return {leaf: keys for leaf, keys in found.items() if leaf not in needed}

    def keeps_any(self, index: Any) -> Any:
        """Tell whether any event of an iteration is kept, of those timelines of which it may keep none."""
        counts = {(self._before(each) % self.interval, each.any_value().shape[0]) for each in self._skipped()}
        kept = [-(before + index * count) % self.interval < count for before, count in sorted(counts)]
        return functools.reduce(jnp.logical_or, kept, jnp.bool_(False))

    def _skipped(self) -> list[Columns]:
        """The timelines of which an iteration may keep no event."""
        return [timeline for timeline in self.shapes if timeline.any_value().shape[0] < self.interval]

    def finish(self, state: Sequence[Columns]) -> list[Log]:
        """The logs of all buffers."""
        written = {next(iter(buffers.values)): buffers for buffers in state}
        return [
            buffers.as_log()
            for each in self.shapes
            for buffers in [written[next(iter(each.values))]]
            if buffers.any_value().shape[0] or not self.length * each.any_value().shape[0]
        ]

    def counts_after(self, stacked: Logs) -> EventCounts:
        counts, uncertain = dict(self.counts), dict(self.uncertain)
        for event in events(stacked):
            for key in event.values:
                uncertain.setdefault(key, counts.get(key, 0))
        for each in self.shapes:
            for key, value in each.values.items():
                counts[key] = counts.get(key, 0) + self.length * value.shape[0]
        return EventCounts(tuple(counts.items()), tuple(uncertain.items()), self.order)

    def _timelines(self, logs: Logs) -> list[Columns]:
        """The timelines, of which those keys are together that had as many events before."""
        return refined(with_event_axes(logs), lambda key: self.counts.get(key, 0))

    def _split(self, logs: Logs) -> tuple[Logs, Logs]:
        uncertain = {key for event in events(logs) if event.mask is not None for key in event.values}
        uncertain |= self.uncertain.keys()
        return _restricted(logs, lambda key: key not in uncertain), _restricted(logs, uncertain.__contains__)

    def _before(self, timeline: Columns) -> int:
        return self.counts.get(next(iter(timeline.values)), 0)

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
                return sharding.put(buffer, where(hit, new, old), slot)

            buffers = jax.tree.map(put, buffers, new)
        return buffers


def _restricted(logs: Logs, chosen: Callable[[str], bool]) -> Logs:
    """The logs of the keys that are chosen."""
    return map_events(lambda event, _: restrict(event, chosen), logs)


def compact(timeline: Columns, interval: int, offset: int) -> Columns:
    """Every `interval`-th event that happened, of a timeline whose first `offset` events were subsampled already."""

    def specs() -> Columns:
        return dataclasses.replace(
            timeline.map(lambda array: PartitionSpec(None, *sharding.spec_of(array, 1))),
            mask=PartitionSpec(None, *sharding.spec_of(timeline.any_value(), 1, 1 + timeline.batch_ndim)),
            dropped=None if timeline.dropped is None else sharding.spec_of(timeline.dropped),
            is_filled=False,
        )

    return sharding.without_sharding(functools.partial(_compact, interval=interval, offset=offset), specs, timeline)


def _compact(timeline: Columns, interval: int, offset: int) -> Columns:
    value = timeline.any_value()
    slots = jnp.shape(value)[0]
    done = min(-(-offset // interval), slots)
    capacity = -(-(offset + slots - done) // interval)
    shape = jnp.shape(value)[: 1 + timeline.batch_ndim]
    mask = timeline.happened()
    place = jax.lax.broadcasted_iota(jnp.int32, shape, 0)
    late = mask & (place >= done)
    before: Any = offset
    if done:  # Elements of a batch that has become larger have had none of the first events.
        before = jnp.any(mask[:done], axis=0).astype(jnp.int32) * offset
    number = where(place < done, place * interval, before + jnp.cumsum(late, axis=0, dtype=jnp.int32) - 1)
    wanted = mask & (number % interval == 0)
    source = jax.lax.slice_in_dim(jnp.sort(where(wanted, place, jnp.full_like(place, slots)), axis=0), 0, capacity)
    inside = jnp.minimum(source, max(slots - 1, 0))

    def move(array: Any) -> Any:
        return over_batches(_take, timeline.batch_ndim)(array, inside)

    return dataclasses.replace(timeline.map(move), mask=source < slots, is_filled=False)


def over_batches(function: Callable[..., Any], batch_ndim: int) -> Callable[..., Any]:
    """A function of arrays with an event axis, for arrays that have batch axes after it."""
    for _ in range(batch_ndim):
        function = jax.vmap(function, in_axes=1, out_axes=1)
    return function


def _take(array: Any, places: Any) -> Any:
    return jnp.take(array, places, axis=0, mode="clip")
