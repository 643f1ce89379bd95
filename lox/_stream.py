"""The handler that sends logs to the host as they happen: one by one, or as many at a time as a buffer holds."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, cast

import jax
import jax.extend as jex
import jax.numpy as jnp

import lox._shard_divergence as _shard_divergence  # noqa: F401  (refuses to lower what would lose logs)
from lox import _compat
from lox import _sharding as sharding
from lox._chunks import chunk_size, scan_in_chunks
from lox._collect import zeroed
from lox._columns import with_event_axes
from lox._deliver import ORDER
from lox._effect import emit, log_p, received
from lox._endpoint import Endpoint, manual_axes
from lox._events import (
    Event,
    Log,
    Logs,
    Site,
    StackedEvents,
    events,
    map_events,
    narrow_mask,
    single_events,
    with_depths,
    with_values,
)
from lox._exceptions import TapWarning
from lox._handler import Filter, Handler, Inside, Results, State, Streamer
from lox._leading_axes import grown
from lox._logs_in import jaxprs_in
from lox._rules._scan import scan
from lox._select import Selection
from lox._site import warn_at
from lox._timeline import canonical, refined

Kind = tuple[Any, tuple[Any, ...]]
primitives = jex.core.primitives


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tap(Filter):
    """Sends each selected log to the host, and leaves all for a handler further out. Its state is an `Endpoint`.

    Attributes:
        selection: Which logs.
        forward: Whether a handler further out wants logs.
        ordered: Whether they arrive in the order in which they happen.
        interval: Every how many events of a key one was to be sent: here all are, which a warning says.
    """

    selection: Selection
    forward: bool
    ordered: bool
    interval: int = 1

    def rewrite(self, state: Endpoint, logs: Logs) -> Logs:
        selected, _ = self.selection.split(logs)
        if selected:
            if self.interval > 1 and manual_axes():
                _warn_that_nothing_is_skipped(selected)
            state.send(selected, self.ordered)
        return logs if self.forward else ()

    def enter(self, state: Endpoint, programs: Sequence[Any], inside: Inside) -> tuple[Tap, Endpoint]:
        return self, state if inside in ("loop", "branch") else state.with_number()

    def backward(self, state: Endpoint) -> tuple[Filter, Endpoint]:
        return self, state.with_number()


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Slots:
    """The logs of one kind that have not been sent yet.

    Attributes:
        logs: What was logged, along a new first axis.
        order: The place of each among all that have not been sent, shape `(buffer,)`. None for logs of the only kind.
        used: How many there are. None for logs of the only kind: all that wait.
    """

    logs: Logs
    order: Any = None
    used: Any = None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Buffer:
    """The state of a tap that does not send each log as it happens.

    Attributes:
        endpoint: Where it sends them.
        counts: For the timelines that are subsampled, how many events there were, per batch element.
        waiting: How many logs have not been sent yet.
        slots: These logs, by kind.
        pending: Logs that surely happened, before any that takes a slot: how many there are is known.
        kinds: The kinds of logs that have slots.
    """

    endpoint: Endpoint
    counts: dict[tuple[str, ...], Any]
    waiting: Any
    slots: tuple[Slots, ...]
    pending: tuple[Event, ...] = ()
    kinds: tuple[Kind, ...] = dataclasses.field(default=(), metadata={"static": True})


def start(endpoint: Endpoint) -> Buffer:
    """The state of a tap before it has met a log."""
    return Buffer(endpoint, {}, jnp.int32(0), ())


def _scan(
    handler: Handler, state: State, primitive: Any, args: Sequence[Any], params: dict[str, Any]
) -> tuple[list[Any], State, Logs]:
    handler = cast(BufferedTap, handler)
    size = handler.chunk_size(params["jaxpr"], params["length"])
    if size is None:
        return scan(handler, state, primitive, args, params)
    state = handler.finish(state)

    def take(logs: Logs) -> None:
        state.endpoint.send(jax.lax.stop_gradient(logs), handler.ordered)

    return scan_in_chunks(handler.selection, size, take, args, params), state, ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class BufferedTap(Streamer):
    """Sends the selected logs to the host, some of them or many at a time, and leaves all for a handler further out.

    Attributes:
        selection: Which logs.
        forward: Whether a handler further out wants logs.
        ordered: Whether they arrive in the order in which they happen.
        interval: Every how many events of a key one is sent.
        buffer: How many logs are sent at a time.
        whole: Whether it runs the whole function, rather than a part of it, where nothing can be added to the state.
    """

    rules = {primitives.scan_p: _scan}

    selection: Selection
    forward: bool
    ordered: bool
    interval: int
    buffer: int
    whole: bool = True

    def handle(self, state: Buffer, logs: Logs) -> Results:
        selected, _ = self.selection.split(logs)
        if selected:
            pends = self._pends(state, selected)
            state = self._pended(state, selected) if pends else self._met(self._settled(state), selected)
        if self.forward:
            emit(logs)
        return state, ()

    def enter(self, state: Buffer, programs: Sequence[Any], inside: Inside) -> tuple[BufferedTap, Buffer]:
        found = [with_values(logs) for program in programs for logs in self._met_one_by_one(program)]
        selected = [logs for each in found if (logs := self.selection.split(each)[0])]
        return dataclasses.replace(self, whole=False), self._prepared(self._settled(state), selected)

    def leave(self, state: Buffer, after: Buffer | None, collected: Logs, trips: Any = 1) -> Results:
        return (state if after is None else jax.lax.stop_gradient(after)), ()

    def detached(self, state: Buffer, sites: frozenset[Site] = frozenset()) -> tuple[Filter, Endpoint]:
        del sites
        tap = Tap(selection=self.selection, forward=self.forward, ordered=self.ordered, interval=self.interval)
        return tap, state.endpoint

    def backward(self, state: Buffer) -> tuple[Filter, Endpoint]:
        return self.detached(state)

    def finish(self, state: Buffer) -> Buffer:
        if not state.pending:
            return self._stepped(BufferedTap._flushed, state) if state.kinds else state
        state.endpoint.send(state.pending, self.ordered)
        return dataclasses.replace(state, pending=())

    def chunk_size(self, jaxpr: Any, length: Any) -> int | None:
        """Return how many iterations of a scan are met at a time; None to meet each log as it happens."""
        # Without an interval each log is sent, so that nothing has to be counted on the way.
        if self.buffer == 1 or self.interval > 1 or self.forward or manual_axes():
            return None
        return chunk_size(jaxpr, length, self.selection, self.buffer)

    def _pends(self, state: Buffer, logs: Sequence[Log]) -> bool:
        # Once there are slots, what they hold and what comes next is sent together.
        if self.buffer == 1 or self.interval > 1 or state.kinds or not self.whole or manual_axes():
            return False
        if not all(isinstance(log, Event) and log.mask is None for log in logs):
            return False
        return not _conflict(logs, _layouts(state.pending, 0))

    def _pended(self, state: Buffer, logs: Sequence[Any]) -> Buffer:
        # What is logged may be donated later, as slots are not. In a compiled program, a copy is nothing.
        leaves, structure = jax.tree.flatten(jax.lax.stop_gradient(tuple(logs)))
        new = jax.tree.unflatten(structure, _copied(leaves))
        state = dataclasses.replace(state, pending=(*state.pending, *new))
        return state if len(state.pending) < self.buffer else self.finish(state)

    def _settled(self, state: Buffer) -> Buffer:
        """The same, with what is pending in slots."""
        return self._met(dataclasses.replace(state, pending=()), state.pending) if state.pending else state

    def _met(self, state: Buffer, logs: Logs) -> Buffer:
        return self._stepped(BufferedTap._one_by_one, self._prepared(state, [logs]), logs)

    def _stepped(self, step: Callable[..., Buffer], state: Buffer, *logs: Logs) -> Buffer:
        """The state after a step, which is compiled, once for all that is alike, where operations run at once."""
        if not _compat.runs_at_once(_compat.current_trace()):
            return step(self, state, *logs)
        return _compiled(state, logs, tap=self, step=step)

    def _one_by_one(self, state: Buffer, logs: Sequence[Log]) -> Buffer:
        """Takes the logs as they happened, also those that come with all iterations of a loop."""
        for log in logs:
            if isinstance(log, Event):
                state = self._taken(state, (log,))
            elif log.length:
                iterate: Any = lambda state, body: (self._one_by_one(state, body), None)  # noqa: E731
                state, _ = jax.lax.scan(iterate, state, log.body)
        return state

    def _met_one_by_one(self, program: Any) -> Iterator[Logs]:
        """The logs in a program that are not those of chunks, with abstract values in place of arrays."""
        for eqn in _compat.open_jaxpr(program).eqns:
            if eqn.primitive is log_p:
                logs, to = received([var.aval for var in eqn.invars], eqn.params)
                yield from [logs] if to is None else []
            elif eqn.primitive is not primitives.scan_p or not self.chunk_size(
                eqn.params["jaxpr"], eqn.params["length"]
            ):
                for inner in jaxprs_in(eqn.params):
                    yield from self._met_one_by_one(inner)

    def _prepared(self, state: Buffer, found: Sequence[Logs]) -> Buffer:
        """The same with a place for these logs, as far as it can have a new one."""
        if not self.whole or manual_axes():
            return state
        counts, kinds, slots = dict(state.counts), list(state.kinds), list(state.slots)
        for event in (event for logs in found for event in single_events(logs)):
            if any(map(_compat.varying_axes, jax.tree.leaves(event))):  # Logs of shards are sent as they come.
                continue
            logs: Logs = (event,)
            if self.interval > 1:
                counts = _counting(counts, event)
            if self.interval > 1 and self.buffer > 1:
                logs, _ = _compat.abstract(functools.partial(_subsampled, counts=dict(counts), interval=2), logs)
            if self.buffer > 1 and (kind := _kind(logs)) not in kinds and not _conflict(logs, _in_slots(slots)):
                kinds.append(kind)
                slots.append(Slots(jax.tree.map(self._empty, logs)))
        if len(slots) > 1:
            slots = [self._numbered(state, each, first=place == 0) for place, each in enumerate(slots)]
        return dataclasses.replace(state, counts=counts, slots=tuple(slots), kinds=tuple(kinds))

    def _numbered(self, state: Buffer, slots: Slots, first: bool) -> Slots:
        """The slots of the first kind, or new ones, when they are those of one kind among several."""
        if slots.used is not None:
            return slots
        used = state.waiting if first else jnp.int32(0)
        return Slots(slots.logs, jnp.arange(self.buffer, dtype=jnp.int32), used)

    def _empty(self, aval: Any) -> Any:
        return _compat.zeros_like_aval(jex.core.unmapped_aval(self.buffer, 0, aval))

    def _taken(self, state: Buffer, logs: Logs) -> Buffer:
        if self.interval > 1 and manual_axes():
            _warn_that_nothing_is_skipped(logs)
        elif self.interval > 1:
            logs, counts = _subsampled(logs, state.counts, self.interval)
            state = dataclasses.replace(state, counts=counts)
        kind = _kind(logs)
        if kind in state.kinds and not manual_axes():
            return self._buffered(state, logs, state.kinds.index(kind))
        if self.buffer > 1:
            state = self._flushed(state)
        state.endpoint.send(logs, self.ordered)
        return state

    def _buffered(self, state: Buffer, logs: Logs, place: int) -> Buffer:
        slots = state.slots[place]
        logs = jax.lax.stop_gradient(map_events(zeroed, logs))
        happened = _happened(logs)
        at = state.waiting if slots.used is None else slots.used

        def put(buffer: Any, array: Any) -> Any:
            return sharding.put(buffer, array, at)

        new = Slots(jax.tree.map(put, slots.logs, logs))
        if slots.used is not None:
            new = Slots(new.logs, put(slots.order, state.waiting), slots.used + happened)
        all_slots = (*state.slots[:place], new, *state.slots[place + 1 :])
        waiting = state.waiting + happened
        state = dataclasses.replace(state, waiting=waiting, slots=all_slots)
        return self._emptied(state, waiting >= self.buffer)

    def _flushed(self, state: Buffer) -> Buffer:
        return self._emptied(state, state.waiting > 0) if state.kinds else state

    def _emptied(self, state: Buffer, when: Any) -> Buffer:
        """The same after all that waits was sent, if `when`."""
        used = [slots.used for slots in state.slots]

        def send() -> Any:
            state.endpoint.send(tuple(self._waiting(state)), self.ordered)
            return jax.tree.map(lambda count: jnp.int32(0), (state.waiting, used))

        waiting, used = jax.lax.cond(when, send, lambda: (state.waiting, used))
        slots = tuple(dataclasses.replace(slots, used=count) for slots, count in zip(state.slots, used, strict=True))
        return dataclasses.replace(state, waiting=waiting, slots=slots)

    def _waiting(self, state: Buffer) -> Iterator[Log]:
        for slots in state.slots:
            used = state.waiting if slots.used is None else slots.used
            here = jnp.arange(self.buffer, dtype=jnp.int32) < used

            def narrow(event: Event, depth: int, here: Any = here, slots: Slots = slots) -> Event:
                value = next(iter(event.values.values()))
                shape = jnp.shape(value)[: depth + event.batch_ndim]
                mask = jax.lax.broadcast_in_dim(here, shape, (0,))
                steps = dict(event.steps)
                if slots.order is not None:
                    steps[ORDER] = jax.lax.broadcast_in_dim(slots.order, shape, (0,))
                return dataclasses.replace(narrow_mask(event, mask), steps=steps)

            (loop,) = map_events(narrow, [StackedEvents(slots.logs, {}, self.buffer)])
            yield loop


@functools.partial(jax.jit, static_argnames=("tap", "step"))
def _compiled(state: Buffer, logs: tuple[Logs, ...], tap: BufferedTap, step: Callable[..., Buffer]) -> Buffer:
    return step(tap, state, *logs)


@functools.partial(jax.jit, inline=True)  # One dispatch where it is eager, which alone takes as long for one array.
def _copied(arrays: list[Any]) -> list[Any]:
    return [jnp.copy(array) for array in arrays]


def _warn_that_nothing_is_skipped(logs: Sequence[Log]) -> None:
    for event in events(logs):
        message = (
            "interval= of lox.tap skips nothing inside of a shard_map, where shards do not count together: every event "
            f"of {', '.join(map(repr, event.values))} arrives. Log every k-th one with lax.cond, or outside of it."
        )
        warn_at(event.site, message, TapWarning)


def _conflict(logs: Sequence[Log], held: Iterable[tuple[str, Any]]) -> bool:
    """Tell whether a key is held with another shape, dtype or counters, so that one array cannot have both."""
    layouts = dict(held)
    return any(layouts.get(key, layout) != layout for key, layout in _layouts(logs, 0))


def _in_slots(slots: Sequence[Slots]) -> Iterator[tuple[str, Any]]:
    return (layout for each in slots for layout in _layouts(each.logs, 1))


def _layouts(logs: Sequence[Log], depth: int) -> Iterator[tuple[str, Any]]:
    for event, inside in with_depths(logs, depth):
        steps = {name: step.dtype for name, step in event.steps.items()}
        for key, value in event.values.items():
            yield key, (value.shape[inside:], value.dtype, event.batch_ndim, steps)


def _kind(logs: tuple[Log, ...]) -> Kind:
    leaves, structure = jax.tree.flatten(logs)
    return structure, tuple((aval.shape, aval.dtype) for aval in map(_compat.aval_of, leaves))


def _happened(logs: Sequence[Log]) -> Any:
    masks = [event.mask for event in events(logs)]
    if any(mask is None for mask in masks):
        return jnp.int32(1)
    return functools.reduce(jnp.logical_or, [jnp.any(mask) for mask in masks]).astype(jnp.int32)


def _counting(counts: dict[tuple[str, ...], Any], event: Event) -> dict[tuple[str, ...], Any]:
    """The counts, with one for the keys of an event that have none, where keys share one that are logged together.

    They are of a batch that is as large as that of the event, or larger.
    """
    have = {name for names in counts for name in names}
    value, names = next(iter(event.values.values())), {_counted(key, event.batch_ndim) for key in event.values}
    batch = value.shape[: event.batch_ndim]
    none = sharding.sharded_as(value, jnp.zeros(batch, jnp.int32))
    known = counts | ({tuple(sorted(names - have)): none} if names - have else {})
    of_name = {name: count for names, count in known.items() for name in names}
    of_name |= {name: grown(of_name[name], batch) for name in names}
    return {names: of_name[names[0]] for names in canonical([*known, names])}


def _counted(key: str, batch_ndim: int) -> str:
    """The name by which the events of a key are counted: those with other batch axes are counted apart."""
    return f"{batch_ndim} {key}"


def _subsampled(
    logs: tuple[Log, ...], counts: dict[tuple[str, ...], Any], interval: int
) -> tuple[tuple[Log, ...], dict[tuple[str, ...], Any]]:
    """Masks all but every `interval`-th event of a timeline, of which there were `counts` before."""
    kept, counts = [], dict(counts)
    of_name = {name: names for names in counts for name in names}
    for timeline in with_event_axes(logs):

        def count_of(key: str, batch_ndim: int = timeline.batch_ndim) -> tuple[str, ...] | None:
            return of_name.get(_counted(key, batch_ndim))

        for each in refined([timeline], count_of):
            names = count_of(next(iter(each.values)))
            if names is not None:
                mask = each.happened()
                before = grown(counts[names], mask.shape[1:])
                happened = jnp.sum(mask, axis=0, dtype=jnp.int32)
                counts[names] = before + grown(happened, before.shape)
                if before.shape != happened.shape:
                    before = before[tuple(map(slice, happened.shape))]
                number = before[None] + jnp.cumsum(mask, axis=0, dtype=jnp.int32) - 1
                each = dataclasses.replace(each, mask=mask & (number % interval == 0), is_filled=False)
            kept.append(each.as_log())
    return tuple(kept), counts
