"""Statistics of each k events of a key: `window=`.

A window is folded as its events happen. The event that begins the next one stands for it: it gets the values of the
window that is over, and the others what is of no use. So every k-th event is kept, by what keeps every k-th event of
`interval=`. The first one stands for nothing, and the last window, which no event follows, is what is left.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, ClassVar, TypeVar, cast

import jax
import jax.numpy as jnp

from lox import _compat
from lox._collect import filled
from lox._columns import Columns, in_sequence, one_event
from lox._eager import reporting_deleted
from lox._events import Event, Log, Logs, StackedEvents, single_events, with_depths
from lox._fold import check_alike, reduction_of
from lox._handler import Handler, Inside, Results, Rule, State
from lox._leading_axes import broadcast_as, grown, where
from lox._reduce import (
    Accumulator,
    Reductions,
    apart,
    as_event,
    empty_in_loop,
    in_batch_of,
    in_equal_batches,
    lift,
    made_by,
    merge,
    of_last,
    pooled_ndim,
    result,
    with_certain,
    with_steps_as,
)
from lox._rules._call import discharge, split_results
from lox._rules._scan import scan, scan_p
from lox._sharding import sharded_as
from lox._split import is_typed
from lox._stack import Spool, has_scan, rules
from lox._subsample import EventCounts, subsampled, subsampled_scan
from lox._timeline import canonical, grouped

T = TypeVar("T", Event, Columns)

Folding = dict[str, Accumulator]
"""For each key the events of its last window. They are those of a loop: the same arrays after any events."""

KEPT = "\0kept"
"""The counter of a row that says which elements there are."""

Timelines = Sequence[Sequence[str]]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Windows:
    """The state of a `Windowed` handler.

    Attributes:
        folding: The last window of each key. It is full until the next event.
        timelines: The keys that are logged together.
        counts: How many events there were.
        in_loop: Whether it is in a loop, where it has the same arrays after any events.
        grown: The keys whose batches have become larger: elements that came later have had fewer events.
    """

    folding: Folding
    timelines: tuple[tuple[str, ...], ...] = dataclasses.field(default=(), metadata={"static": True})
    counts: EventCounts = dataclasses.field(default=EventCounts(), metadata={"static": True})
    in_loop: bool = dataclasses.field(default=False, metadata={"static": True})
    grown: frozenset[str] = dataclasses.field(default=frozenset(), metadata={"static": True})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Windowed(Spool):
    """Folds each `interval` selected events of a key, and collects what comes of it.

    Its state is `Windows`. It is None where none can go through: in branches, in `while_loop`s, in a `shard_map` and in
    functions with rules of their own. All events of these are collected, and folded after them.

    Attributes:
        reductions: The reduction of every key (under None) or of some.
    """

    reductions: Reductions
    ways: ClassVar[str] = "With window=, give a bound with max_iters=, or reduce all events to one, without window="

    @property
    def rules(self) -> Mapping[Any, Rule]:  # type: ignore[override]
        return _rules

    def join(self, state: State, logs: Logs) -> Results:
        if state is None:
            return None, logs
        at_once = _compat.runs_at_once(_compat.current_trace())
        timelines = canonical([*state.timelines, *timelines_in(self.reductions, logs)])
        state = _with_folding(state, with_room(self.reductions, state.folding, logs))
        folding, rows = (_compiled if at_once else _folded)(self, timelines, state.grown, state.folding, logs)
        state = dataclasses.replace(state, folding=folding, timelines=timelines)
        if self.keeps_all:
            return state, rows
        counts, rows = subsampled(rows, self.interval, state.counts)
        return dataclasses.replace(state, counts=counts), rows

    def enter(self, state: State, programs: Sequence[Any], inside: Inside) -> tuple[Windowed, State]:
        if state is None or inside in ("branch", "rule") or (inside == "call" and not any(map(has_scan, programs))):
            return self, None
        if inside == "call":
            return self, dataclasses.replace(state, counts=state.counts.modulo(self.interval))
        inner = dataclasses.replace(self, keeps_all=True)
        state = dataclasses.replace(state, counts=EventCounts(), in_loop=True)
        for program in programs:
            jaxpr, _, structure = discharge(inner, Windows({}, in_loop=True), program)
            _, after, _ = split_results(_compat.out_avals(jaxpr), structure)
            timelines = canonical([*state.timelines, *after.timelines])
            state = _with_folding(state, _room_for(after.folding, state.folding))
            state = dataclasses.replace(state, timelines=timelines, grown=state.grown | after.grown)
        return inner, state

    def leave(self, state: State, after: State, collected: Logs, trips: Any = 1) -> Results:
        del trips
        if state is None or after is None:
            return self.join(state, collected)
        if self.keeps_all:
            return dataclasses.replace(after, counts=state.counts, in_loop=state.in_loop), collected
        counts = state.counts.after(after.counts, self.interval)
        return dataclasses.replace(after, counts=counts), collected

    def start(self) -> Any:
        return Windows({})

    def order(self, state: State, logs: Logs) -> tuple[str, ...]:
        del logs
        return state.counts.order

    def result(self, state: State, logs: Logs) -> list[Columns]:
        with reporting_deleted((state, logs)):
            rows = [self._with_last(state.folding, each) for each in self.columns(state.counts, logs)]
            return [without_missing(filled(each)) for each in rows]

    def _with_last(self, folding: Folding, rows: Columns) -> Columns:
        """Drop the first row, which stands for no window, and append the last window, which is still in the state."""
        rows = dataclasses.replace(rows, distributions=made_by({key: folding[key] for key in rows.values}))
        if not rows.any_value().shape[0]:
            return rows
        first = folding[next(iter(rows.values))]
        event = as_event({key: folding[key] for key in rows.values}).map(one_event)
        steps, mask = event.steps, None if rows.mask is None else one_event(first.happened())
        if first.reduction.takes_steps:
            steps = steps | {KEPT: event.mask}
            mask = None if mask is None else broadcast_as(event.mask, mask, event.mask.ndim)
        last = dataclasses.replace(rows, values=event.values, steps=steps, mask=mask, dropped=None)
        return in_sequence([rows.map(lambda array: array[1:]), last])

    def _met(
        self, timelines: Timelines, grown: Set[str], folding: Folding, event: Event
    ) -> tuple[Folding, list[Event]]:
        """The windows after an event, and what stands for those before it."""
        before, after = folded(self.reductions, self.interval, folding, event)
        rows = rows_of(
            timelines, before, event, lambda _, happened: happened, lambda window: window.maybe == self.interval
        )
        return folding | after, [row if grown.isdisjoint(row.values) else _with_mask(row) for row in rows]


def _with_folding(state: Windows, folding: Folding) -> Windows:
    """The state with windows that may be in larger batches."""
    grown = {key for key, each in state.folding.items() if each.batch_shape != folding[key].batch_shape}
    return dataclasses.replace(state, folding=folding, grown=state.grown | grown)


def _with_mask(event: Event) -> Event:
    """An event that may not have happened as far as its mask says."""
    if event.mask is not None:
        return event
    value = next(iter(event.values.values()))
    mask = sharded_as(value, jnp.ones(value.shape[: event.batch_ndim], bool))
    return dataclasses.replace(event, mask=mask)


def timelines_in(reductions: Reductions, logs: Logs) -> list[list[str]]:
    """The keys of each event of logs that have the same counters when they are reduced."""
    found: list[list[str]] = []
    for event, _ in with_depths(logs):
        found += grouped(event.values, lambda key: apart(reduction_of(reductions, key), key))
    return found


def with_room(reductions: Reductions, folding: Folding, logs: Logs) -> Folding:
    """Make room for logs: add an empty window for each new key, and widen batches and the dtypes of counters."""
    for event in single_events(logs):
        folding = _room_for(_compat.abstract(functools.partial(_lifted, reductions), event), folding)
    return folding


def _room_for(like: Folding, folding: Folding) -> Folding:
    """Make room for the keys and counters of `like`, which has abstract values in place of arrays."""
    found = dict(folding)
    for key, each in like.items():
        if key in folding:
            window = in_batch_of(with_steps_as(folding[key], each), each, of_any_call=is_typed(key))
            found[key] = dataclasses.replace(window, is_masked=False)
        else:
            found[key] = empty_in_loop(each)
    return found


def folded(reductions: Reductions, size: int | None, folding: Folding, event: Event) -> tuple[Folding, Folding]:
    """The windows of the keys of an event, before it and after it. A window that is full begins anew."""
    before: Folding = {}
    after: Folding = {}
    for key, one in _lifted(reductions, event).items():
        window, one = in_equal_batches(folding[key], one, of_any_call=is_typed(key))
        check_alike(key, window, one)
        before[key] = window
        if size is not None:
            is_over = (one.maybe > 0) & (window.maybe == size)
            window = _anew(is_over, window)
        after[key] = dataclasses.replace(merge(window, one), is_masked=False)
    return before, after


def _anew(is_over: Any, window: Accumulator) -> Accumulator:
    """The window, or an empty one where it is over."""

    def begun(window: Accumulator) -> Accumulator:
        none = dataclasses.replace(empty_in_loop(jax.tree.map(jax.typeof, window)), site=window.site)
        none = dataclasses.replace(none, state=none.reduction.after(none.state, window.state))
        return jax.tree.map(functools.partial(where, is_over), none, window)

    if not window.reduction.is_large:
        return begun(window)
    return jax.lax.cond(jnp.any(is_over), begun, lambda window: window, window)


def rows_of(
    timelines: Timelines,
    folding: Folding,
    event: Event,
    mask: Callable[[Accumulator, Any], Any],
    counts: Callable[[Accumulator], Any] | None = None,
) -> list[Event]:
    """Windows in place of an event, one for each timeline.

    Args:
        timelines: The keys that are logged together.
        folding: The windows.
        event: The event.
        mask: Takes a window and the mask of the event, and returns that of what is returned.
        counts: Where the value of a window is of use, if not where the mask is True.
    """
    rows = []
    for keys in ([key for key in timeline if key in folding] for timeline in timelines):
        if keys:
            first = folding[keys[0]]
            ndim = pooled_ndim(first.reduction, event.batch_ndim, event.where_ndim)
            happened = event.mask
            if happened is not None and happened.ndim > ndim:
                happened, _ = of_last(happened, {}, ndim)
            happened = mask(first, _in_batch(first, happened, event))
            result_of = functools.partial(_result_where, happened if counts is None else counts(first))
            found = as_event({key: folding[key] for key in keys}, result_of)
            row = dataclasses.replace(
                event,
                values=found.values,
                steps=found.steps,
                mask=happened,
                batch_ndim=ndim,
                where_ndim=0,
                is_filled=False,
            )
            if first.reduction.takes_steps:  # What is missing in a window counts as an event like the rest.
                kept = found.mask
                happened = None if happened is None else broadcast_as(kept, happened, kept.ndim)
                row = dataclasses.replace(row, steps=found.steps | {KEPT: kept}, mask=happened, batch_ndim=kept.ndim)
            rows.append(row)
    return rows


def _in_batch(window: Accumulator, happened: Any, event: Event) -> Any:
    """The mask of an event in the batch of a window: an event in a smaller batch did not happen in other elements."""
    batch = window.batch_shape
    have = next((value.shape[: len(batch)] for value in event.values.values()), batch)
    if have == batch:
        return happened
    mask = jnp.ones(have, bool) if happened is None else happened
    return grown(mask, batch)


def without_missing(events: T) -> T:
    """Rows without the elements that are missing in them."""
    if KEPT not in events.steps:
        return events
    steps = dict(events.steps)
    kept = steps.pop(KEPT)
    mask = kept if events.mask is None else events.mask & kept
    return filled(dataclasses.replace(events, steps=steps, mask=mask, is_filled=False))


def _result_where(is_of_use: Any, window: Accumulator) -> Any:
    """The result of a window, made only where it is of use if it is made of a large state."""
    if not window.reduction.is_large:
        return result(window)
    like = _compat.abstract(result, jax.tree.map(jax.typeof, window))
    none: Any = lambda _: jax.tree.map(_compat.zeros_like_aval, like)  # noqa: E731
    return jax.lax.cond(jnp.any(is_of_use), result, none, window)


def _lifted(reductions: Reductions, event: Event) -> Folding:
    event = event.with_full_steps(0)
    found = {}
    for key, value in event.values.items():
        fixed = (event.site, event.batch_ndim, event.where_ndim)
        one = lift(reduction_of(reductions, key), value, event.mask, event.steps, *fixed)
        one = dataclasses.replace(one, outer_batch_ndim=event.outer_batch_ndim)
        found[key] = dataclasses.replace(with_certain(one, 0), is_masked=False)
    return found


def _folded(
    handler: Windowed,
    timelines: tuple[tuple[str, ...], ...],
    grown: frozenset[str],
    folding: Folding,
    logs: Sequence[Log],
) -> tuple[Folding, Logs]:
    """The windows after logs, and what stands for them."""
    rows: list[Log] = []
    for log in logs:
        if isinstance(log, StackedEvents):

            def iterate(folding: Folding, body: Logs) -> tuple[Folding, Logs]:
                return _folded(handler, timelines, grown, folding, body)

            folding, stacked = jax.lax.scan(iterate, folding, log.body)
            rows.append(StackedEvents(stacked, log.dropped, log.length))
        else:
            folding, found = handler._met(timelines, grown, folding, log)
            rows += found
    return folding, tuple(rows)


_compiled = jax.jit(_folded, static_argnums=(0, 1, 2))


def _scan(
    handler: Handler, state: State, primitive: Any, args: Sequence[Any], params: dict[str, Any]
) -> tuple[Any, State, Logs]:
    handler = cast(Windowed, handler)
    if state is None or handler.keeps_all:
        return scan(handler, state, primitive, args, params)
    inner, inside = handler.enter(state, [params["jaxpr"]], "loop")
    outs, counts, logs, after = subsampled_scan(inner, state.counts, handler.interval, args, params, inside)
    return outs, dataclasses.replace(after, counts=counts, in_loop=False), logs


_rules: Mapping[Any, Rule] = {**rules, scan_p: _scan}
