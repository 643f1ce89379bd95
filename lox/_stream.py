"""The handler that sends logs to the host as they happen: one by one, or as many at a time as a buffer holds."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.extend as jex
import jax.numpy as jnp

import lox._apart as _apart  # noqa: F401  (refuses to lower what would lose logs)
from lox import _compat, _transform
from lox._channel import Channel
from lox._chunks import CollectSelected, chunk_size
from lox._columns import with_event_axes
from lox._deliver import INNER, ORDER, SHARDED, channel_p
from lox._effect import emit, log_p, received
from lox._events import (
    Destination,
    Event,
    Node,
    StackedEvents,
    events,
    map_events,
    masked,
    narrow_mask,
    with_depths,
    with_values,
)
from lox._exceptions import TapWarning
from lox._handler import Chunks, Handler, InPlace, jaxprs_in
from lox._select import Selection
from lox._timeline import canonical, refined

Kind = tuple[Any, tuple[Any, ...]]
primitives = jex.core.primitives


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Slots:
    """The logs of one kind that have not been sent yet.

    Attributes:
        nodes: What was logged, along a new first axis.
        order: The place of each among all that have not been sent, shape `(buffer,)`. None for logs of the only kind.
        used: How many there are. None for logs of the only kind: all that wait.
    """

    nodes: tuple[Node, ...]
    order: Any = None
    used: Any = None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    """What a tap carries through a program.

    Attributes:
        channel: What the host knows it as: a number, or itself where that saves the number's way.
        counts: For the timelines that are thinned out, how many events there were, per batch element.
        waiting: How many logs have not been sent yet.
        slots: These logs, by kind.
        labels: Counters that what is sent has besides its own, each of shape `()`, by name.
    """

    channel: Any
    counts: dict[tuple[str, ...], Any]
    waiting: Any
    slots: tuple[Slots, ...]
    labels: dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tap(InPlace):
    """Sends the selected logs to the host, and leaves all for a handler further out.

    Attributes:
        selection: Which logs.
        passes_on: Whether a handler further out wants logs.
        ordered: Whether they arrive in the order in which they happen.
        interval: Every how many events of a key one is sent.
        buffer: How many logs are sent at a time.
        leaves: What it carries, a flattened `State`.
        structure: The structure of that.
        kinds: The kinds of logs that have slots.
        whole: Whether it runs the whole function, rather than a part of it, where nothing can be added to the state.
        pending: Logs that surely happened, before any that takes a slot: how many there are is known.
    """

    selection: Selection
    passes_on: bool
    ordered: bool
    interval: int
    buffer: int
    leaves: tuple[Any, ...]
    structure: Any
    kinds: tuple[Kind, ...] = ()
    whole: bool = True
    pending: tuple[Event, ...] = ()

    @property
    def state(self) -> State:
        return jax.tree.unflatten(self.structure, self.leaves)

    def _with(self, state: State, **changes: Any) -> Tap:
        leaves, structure = jax.tree.flatten(state)
        return dataclasses.replace(self, leaves=tuple(leaves), structure=structure, **changes)

    @property
    def carries(self) -> bool:  # type: ignore[override]
        return self.interval > 1 or self.buffer > 1

    @property
    def foresees(self) -> bool:  # type: ignore[override]
        return self.carries

    def arrays(self) -> tuple[Any, ...]:
        return self.leaves

    def holding(self, arrays: Sequence[Any]) -> Tap:
        return dataclasses.replace(self, leaves=tuple(arrays))

    def shared(self) -> Tap:
        channel, labels = self.state.channel, self.state.labels
        return self._with(start(channel_p.bind(channel=channel), labels)) if isinstance(channel, Channel) else self

    def detached(self) -> Tap:
        return dataclasses.replace(self.on_shards(), interval=1, buffer=1)

    def on_shards(self) -> Tap:
        return self._with(start(self.state.channel, self.state.labels), kinds=())

    def backward(self) -> Handler:
        return self.detached()

    def join(self, nodes: Sequence[Any]) -> tuple[Any, ...]:
        if not self.carries:
            return ()
        return self._all_sent().leaves if self.whole else self.leaves

    def abandon(self) -> None:
        if self.carries and self.whole:
            self._all_sent()

    def meet(self, nodes: tuple[Node, ...]) -> tuple[Handler, tuple[Any, ...]]:
        selected, _ = self.selection.split(nodes)
        handler = self
        if selected:
            handler = self._pended(selected) if self._pends(selected) else self._settled()._met(selected)
        if self.passes_on:
            emit(nodes)
        return handler, ()

    def _pends(self, nodes: Sequence[Node]) -> bool:
        # Once there are slots, what they hold and what comes next is sent together.
        if self.buffer == 1 or self.interval > 1 or self.kinds or not self.whole or _manual_axes():
            return False
        if not all(isinstance(node, Event) and node.mask is None for node in nodes):
            return False
        return not _conflict(nodes, _layouts(self.pending, 0))

    def _pended(self, nodes: Sequence[Any]) -> Tap:
        # What is logged may be donated later, as slots are not. In a compiled program, a copy is nothing.
        leaves, structure = jax.tree.flatten(jax.lax.stop_gradient(tuple(nodes)))
        new = jax.tree.unflatten(structure, _copied(leaves))
        handler = dataclasses.replace(self, pending=(*self.pending, *new))
        return handler if len(handler.pending) < self.buffer else handler._all_sent()

    def _all_sent(self) -> Tap:
        """The same after all was sent that waits or is pending."""
        if not self.pending:
            return self._stepped(Tap._flushed) if self.kinds else self
        self._send(self.pending)
        return dataclasses.replace(self, pending=())

    def _settled(self) -> Tap:
        """The same, with what is pending in slots."""
        return dataclasses.replace(self, pending=())._met(self.pending) if self.pending else self

    def _met(self, nodes: tuple[Node, ...]) -> Tap:
        tap = self._prepared([nodes])
        return tap._stepped(Tap._one_by_one, nodes) if tap.carries else tap._one_by_one(nodes)

    def _stepped(self, step: Callable[..., Tap], *logs: tuple[Node, ...]) -> Tap:
        """The same after a step, which is compiled, once for all that is alike, where operations run at once."""
        if not _compat.runs_at_once(_compat.current_trace()):
            return step(self, *logs)
        leaves, structure = jax.tree.flatten(logs)
        alike = self.holding([_aval(leaf) for leaf in self.leaves])
        return self.holding(_compiled(self.leaves, leaves, tap=alike, step=step, structure=structure))

    def _one_by_one(self, nodes: Sequence[Node]) -> Tap:
        """Takes the logs as they happened, also those that come with all iterations of a loop."""
        handler = self
        for node in nodes:
            if isinstance(node, Event):
                handler = handler._taken((node,))
            elif node.length:
                held, _ = jax.lax.scan(handler._iteration, handler.arrays(), node.body)
                handler = handler.holding(held)
        return handler

    def _iteration(self, held: Sequence[Any], body: tuple[Node, ...]) -> tuple[tuple[Any, ...], None]:
        return self.holding(held)._one_by_one(body).arrays(), None

    def before(self, primitive: Any, params: dict[str, Any]) -> Handler:
        if not self.carries:
            return self
        found = map(with_values, self._met_one_by_one(primitive, params))
        selected = [nodes for all_nodes in found if (nodes := self.selection.split(all_nodes)[0])]
        if not params.get("check_vma", True):  # Shards of which JAX does not know what differs, as those of `pmap`.
            return self._settled()._flushed()
        return self._settled()._prepared(selected)

    def _met_one_by_one(self, primitive: Any, params: dict[str, Any]) -> Iterator[tuple[Node, ...]]:
        """The logs inside of a primitive that are not those of chunks, with abstract values in place of arrays."""
        if primitive is primitives.scan_p and self.chunks(params["jaxpr"], params["length"]):
            return
        for jaxpr in jaxprs_in(params):
            for eqn in _compat.open_jaxpr(jaxpr).eqns:
                if eqn.primitive is log_p:
                    nodes, to = received([var.aval for var in eqn.invars], eqn.params)
                    yield from [nodes] if to is None else []
                else:
                    yield from self._met_one_by_one(eqn.primitive, eqn.params)

    def chunks(self, jaxpr: Any, length: Any) -> Chunks | None:
        # Without an interval each log is sent, so that nothing has to be counted on the way.
        if self.buffer == 1 or self.interval > 1 or self.passes_on or _manual_axes():
            return None
        size = chunk_size(jaxpr, length, self.selection, self.buffer)
        return None if size is None else TapChunks(self, size)

    def after(self, nodes: list[Any]) -> tuple[Handler, list[Any]]:
        return dataclasses.replace(self, whole=False), nodes

    def _prepared(self, logs: Sequence[tuple[Node, ...]]) -> Tap:
        """The same with a place in its state for these logs, as far as it can have a new one."""
        if not self.carries or not self.whole or _manual_axes():
            return self
        counts, kinds, slots = dict(self.state.counts), list(self.kinds), list(self.state.slots)
        for event in (event for nodes in logs for event in _single_events(nodes)):
            if any(map(_compat.varying_axes, jax.tree.leaves(event))):  # Logs of shards are sent as they come.
                continue
            nodes: tuple[Node, ...] = (event,)
            if self.interval > 1:
                counts = _counting(counts, event)
            if self.interval > 1 and self.buffer > 1:
                nodes, _ = _compat.abstract(functools.partial(_thinned, counts=dict(counts), interval=2), nodes)
            if self.buffer > 1 and (kind := _kind(nodes)) not in kinds and not _conflict(nodes, _in_slots(slots)):
                kinds.append(kind)
                slots.append(Slots(jax.tree.map(self._empty, nodes)))
        if len(slots) > 1:
            slots = [self._numbered(each, first=place == 0) for place, each in enumerate(slots)]
        return self._with(dataclasses.replace(self.state, counts=counts, slots=tuple(slots)), kinds=tuple(kinds))

    def _numbered(self, slots: Slots, first: bool) -> Slots:
        """The slots of the first kind, or new ones, when they are those of one kind among several."""
        if slots.used is not None:
            return slots
        used = self.state.waiting if first else jnp.int32(0)
        return Slots(slots.nodes, jnp.arange(self.buffer, dtype=jnp.int32), used)

    def _empty(self, aval: Any) -> Any:
        return _compat.zeros_like_aval(jex.core.unmapped_aval(self.buffer, 0, aval))

    def _taken(self, nodes: tuple[Node, ...]) -> Tap:
        handler = self
        if self.interval > 1 and _manual_axes():
            _warn_that_nothing_is_skipped(nodes)
        elif self.interval > 1:
            nodes, counts = _thinned(nodes, self.state.counts, self.interval)
            handler = self._with(dataclasses.replace(self.state, counts=counts))
        kind = _kind(nodes)
        if kind in self.kinds and not _manual_axes():
            return handler._buffered(nodes, self.kinds.index(kind))
        if self.buffer > 1:
            handler = handler._flushed()
        handler._send(nodes)
        return handler

    def _buffered(self, nodes: tuple[Node, ...], place: int) -> Tap:
        state, slots = self.state, self.state.slots[place]
        nodes = jax.lax.stop_gradient(nodes)
        happened = _happened(nodes)
        at = state.waiting if slots.used is None else slots.used

        def put(buffer: Any, array: Any) -> Any:
            return jax.lax.dynamic_update_index_in_dim(buffer, array, at, 0)

        new = Slots(jax.tree.map(put, slots.nodes, nodes))
        if slots.used is not None:
            new = Slots(new.nodes, put(slots.order, state.waiting), slots.used + happened)
        all_slots = (*state.slots[:place], new, *state.slots[place + 1 :])
        waiting = state.waiting + happened
        return self._with(dataclasses.replace(state, waiting=waiting, slots=all_slots))._emptied(waiting >= self.buffer)

    def _flushed(self) -> Tap:
        return self._emptied(self.state.waiting > 0) if self.kinds else self

    def _emptied(self, when: Any) -> Tap:
        """The same after all that waits was sent, if `when`."""
        state = self.state
        used = [slots.used for slots in state.slots]

        def send() -> Any:
            self._send(tuple(self._waiting()))
            return jax.tree.map(lambda count: jnp.int32(0), (state.waiting, used))

        waiting, used = jax.lax.cond(when, send, lambda: (state.waiting, used))
        slots = tuple(dataclasses.replace(slots, used=count) for slots, count in zip(state.slots, used, strict=True))
        return self._with(dataclasses.replace(state, waiting=waiting, slots=slots))

    def _waiting(self) -> Iterator[Node]:
        for slots in self.state.slots:
            used = self.state.waiting if slots.used is None else slots.used
            here = jnp.arange(self.buffer, dtype=jnp.int32) < used

            def narrow(event: Event, depth: int, here: Any = here, slots: Slots = slots) -> Event:
                value = next(iter(event.values.values()))
                shape = jnp.shape(value)[: depth + event.batch_ndim]
                mask = jax.lax.broadcast_in_dim(here, shape, (0,))
                steps = dict(event.steps)
                if slots.order is not None:
                    steps[ORDER] = jax.lax.broadcast_in_dim(slots.order, shape, (0,))
                return dataclasses.replace(narrow_mask(event, mask), steps=steps)

            (loop,) = map_events(narrow, [StackedEvents(slots.nodes, {}, self.buffer)])
            yield loop

    def _send(self, nodes: tuple[Node, ...]) -> None:
        labels = {name: jnp.asarray(value) for name, value in self.state.labels.items()}
        if labels:
            nodes = _labelled(nodes, labels)
        axes = _manual_axes()
        if not axes:
            emit(nodes, Destination(self.state.channel, None, 1, self.ordered))
            return
        tracked = all(name in _compat.varying_axes(jax.lax.axis_index(name)) for name in axes)

        def varies(node: Any) -> frozenset[Any]:
            leaves = jax.tree.leaves(node)
            return frozenset[Any]().union(*map(_compat.varying_axes, leaves)) if tracked else frozenset(axes)

        told_apart = varies(labels) if tracked else frozenset[Any]()
        for node in _split_by(varies, nodes):
            varying = varies(node)
            over = tuple(name for name in axes if name in varying - told_apart)
            if varying and labels:
                own = tuple(name for name in axes if name in told_apart)
                (node,) = _labelled([node], {SHARDED: -1 - jax.lax.axis_index(own) if own else jnp.int32(0)})
            first = tuple(name for name in axes if name not in varying)
            for name in first:  # Where all are alike, the first one speaks.
                (node,) = masked([node], jax.lax.axis_index(name) == 0)
            shard = jax.lax.axis_index(over) if over else None
            shards = jax.lax.axis_size(over) if over else 1
            emit([node], Destination(self.state.channel, shard, shards, self.ordered, first))


@functools.partial(jax.jit, static_argnames=("tap", "step", "structure"))
def _compiled(
    held: Sequence[Any], leaves: Sequence[Any], tap: Tap, step: Callable[..., Tap], structure: Any
) -> Sequence[Any]:
    return step(tap.holding(held), *jax.tree.unflatten(structure, leaves)).arrays()


@functools.partial(jax.jit, inline=True)  # One dispatch where it is eager, which alone takes as long for one array.
def _copied(arrays: list[Any]) -> list[Any]:
    return [jnp.copy(array) for array in arrays]


@dataclasses.dataclass(frozen=True)
class TapChunks:
    """A tap on a scan whose logs fill the buffer in so many iterations: what these have collected is sent as it is."""

    tap: Tap
    size: int

    @property
    def collect(self) -> Handler:
        return CollectSelected(self.tap.selection)

    def begin(self) -> Chunks:
        return dataclasses.replace(self, tap=self.tap._flushed())

    def take(self, nodes: tuple[Any, ...]) -> None:
        self.tap._send(jax.lax.stop_gradient(nodes))

    def arrays(self) -> tuple[Any, ...]:
        return self.tap.arrays()


def _split_by(group: Callable[[Event], Any], nodes: Sequence[Node]) -> Iterator[Node]:
    """The nodes, an event being split into those of its keys for which `group` is the same."""
    for node in nodes:
        if isinstance(node, StackedEvents):
            yield node
            continue
        of = {key: group(dataclasses.replace(node, values={key: value})) for key, value in node.values.items()}
        for each in dict.fromkeys(of.values()):
            yield dataclasses.replace(node, values={key: node.values[key] for key in of if of[key] == each})


def start(channel: Any, labels: dict[str, Any]) -> State:
    """The state of a tap before it has met a log."""
    return State(channel, {}, jnp.int32(0), (), labels)


def _labelled(nodes: Sequence[Node], labels: dict[str, Any]) -> tuple[Node, ...]:
    """The nodes with labels, each of shape `()`."""

    def label(event: Event, depth: int) -> Event:
        shape = event.lengths(depth + event.batch_ndim)
        of_event = labels | {INNER: jnp.int32(event.batch_ndim)}
        steps = {name: jnp.broadcast_to(value, shape) for name, value in of_event.items()}
        return dataclasses.replace(event, steps=event.steps | steps)

    return map_events(label, nodes)


def _aval(value: Any) -> Any:
    return value if isinstance(value, jax.core.ShapedArray) else jax.typeof(value)


def _warn_that_nothing_is_skipped(nodes: Sequence[Node]) -> None:
    for event in events(nodes):
        message = (
            "interval= of lox.tap skips nothing inside of a shard_map, where shards do not count together: every event "
            f"of {', '.join(map(repr, event.values))} arrives. Log every k-th one with lax.cond, or outside of it."
        )
        _transform.warn_once(message, TapWarning, event.site)


def _single_events(nodes: Sequence[Node]) -> Iterator[Event]:
    """The events as they are in one iteration of the loops around them, with abstract values."""
    for event, depth in with_depths(nodes):
        for _ in range(depth):
            event = jax.tree.map(lambda aval: jex.core.mapped_aval(aval.shape[0], 0, _aval(aval)), event)
        yield jax.tree.map(_aval, event)


def _conflict(nodes: Sequence[Node], held: Iterable[tuple[str, Any]]) -> bool:
    """Whether a key is held with another shape, dtype or counters, so that one array cannot have both."""
    layouts = dict(held)
    return any(layouts.get(key, layout) != layout for key, layout in _layouts(nodes, 0))


def _in_slots(slots: Sequence[Slots]) -> Iterator[tuple[str, Any]]:
    return (layout for each in slots for layout in _layouts(each.nodes, 1))


def _layouts(nodes: Sequence[Node], depth: int) -> Iterator[tuple[str, Any]]:
    for event, inside in with_depths(nodes, depth):
        steps = {name: step.dtype for name, step in event.steps.items()}
        for key, value in event.values.items():
            yield key, (value.shape[inside:], value.dtype, event.batch_ndim, steps)


def _manual_axes() -> tuple[Any, ...]:
    """The axes of the shards that the program runs on one by one."""
    return tuple(jax.sharding.get_abstract_mesh().manual_axes)


def _kind(nodes: tuple[Node, ...]) -> Kind:
    leaves, structure = jax.tree.flatten(nodes)
    return structure, tuple((aval.shape, aval.dtype) for aval in map(_aval, leaves))


def _happened(nodes: Sequence[Node]) -> Any:
    masks = [event.mask for event in events(nodes)]
    if any(mask is None for mask in masks):
        return jnp.int32(1)
    return functools.reduce(jnp.logical_or, [jnp.any(mask) for mask in masks]).astype(jnp.int32)


def _counting(counts: dict[tuple[str, ...], Any], event: Event) -> dict[tuple[str, ...], Any]:
    """The counts, with one for the keys of an event that have none, where keys share one that are logged together."""
    have = {key for keys in counts for key in keys}
    value = next(iter(event.values.values()))
    none = jnp.zeros(value.shape[: event.batch_ndim], jnp.int32)
    new = {tuple(sorted(event.values.keys() - have)): none} if event.values.keys() - have else {}
    known = counts | new
    of_key = {key: count for keys, count in known.items() for key in keys}
    return {keys: of_key[keys[0]] for keys in canonical([*known, event.values])}


def _thinned(
    nodes: tuple[Node, ...], counts: dict[tuple[str, ...], Any], interval: int
) -> tuple[tuple[Node, ...], dict[tuple[str, ...], Any]]:
    """Masks all but every `interval`-th event of a timeline, of which there were `counts` before."""
    kept, counts = [], dict(counts)
    of_key = {key: keys for keys in counts for key in keys}
    for each in refined(with_event_axes(nodes), of_key.get):
        keys = of_key.get(next(iter(each.values)))
        if keys is not None:
            mask = each.happened()
            number = counts[keys][None] + jnp.cumsum(mask, axis=0, dtype=jnp.int32) - 1
            counts[keys] = counts[keys] + jnp.sum(mask, axis=0, dtype=jnp.int32)
            each = dataclasses.replace(each, mask=mask & (number % interval == 0), is_filled=False)
        kept.append(each.as_node())
    return tuple(kept), counts
