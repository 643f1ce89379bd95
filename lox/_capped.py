"""The first n events that happened, where their number is not static: a buffer that goes through loops.

Events that surely happen are collected as ever, until the first event of their key that may not, or that is in a
`while_loop`. From there on the events of the key go to a buffer of n rows, which is part of the handler's state. It is
carried through the loops in which such events are, so that these take no memory for each iteration. A branch of a
`cond` does not carry it: it returns its events, with a mask, and they are written to the buffer after the `cond`. So
an iteration moves as many bytes as an event has, whatever n is.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import jax
import jax.extend as jex
import jax.numpy as jnp

from lox import _compat
from lox import _sharding as sharding
from lox._batching import Mask
from lox._collect import filled, zeroed
from lox._columns import (
    Columns,
    check_alike,
    in_equal_batches,
    in_sequence,
    promoted,
    types_of,
    with_event_axes,
    with_steps_of_one_dtype,
)
from lox._events import Log, Logs, Site, events, map_events, restrict
from lox._handler import Collector, Filter, Handler, Inside, Results, Rule, State
from lox._leading_axes import grown
from lox._logs_in import events_in, tapped_in
from lox._rules._call import discharge_from, split_results
from lox._rules._scan import scan, scan_p
from lox._rules._while import Loop, run_loop, while_p
from lox._split import plain
from lox._subsample import EventCounts, compact, subsampled
from lox._timeline import groups, refined
from lox._trace import under

FEW = 8
"""So many events are written to a buffer one by one, and more all at once, which moves the buffer."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Buffer:
    """The first events of the keys of a timeline.

    Attributes:
        rows: The events. There is one row more than events are kept, for those that are not.
        number: Number of events that happened, shape `batch`. It begins below zero where an interval skips some.
    """

    rows: Columns
    number: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Buffers:
    """The state of a `Capped` handler.

    Attributes:
        buffers: The events of the keys whose number of events is not static.
        counts: Numbers of events of the other keys.
        in_loop: Whether it is in a loop, where it has the same arrays after any events.
    """

    buffers: tuple[Buffer, ...] = ()
    counts: EventCounts = dataclasses.field(default=EventCounts(), metadata={"static": True})
    in_loop: bool = dataclasses.field(default=False, metadata={"static": True})

    def keys(self) -> set[str]:
        """The keys that have a buffer."""
        return {key for buffer in self.buffers for key in buffer.rows.values}

    def phase(self, key: str, interval: int) -> int:
        """Count the events of a key without a buffer that an interval skips before it keeps one."""
        return -dict(self.counts.counts).get(key, 0) % interval


@dataclasses.dataclass(frozen=True, kw_only=True)
class Capped(Collector):
    """Collects logs: all of those whose number is static, and the first n that happen of the others.

    Its state is None where no buffer can be carried: in branches, and in functions with rules of their own. All events
    of these are collected, those of a loop up to n.

    Attributes:
        forward: Whether a handler further out wants the other logs.
        spool: Collects all logs. It says which, and whether they may be masked.
        bound: The number n.
        interval: Stride of the events of a key that are kept; the others do not count.
        takes_all: Whether the number of no event is static, as in a `while_loop`.
    """

    forward: bool
    spool: Collector
    bound: int
    interval: int
    takes_all: bool = False

    @property
    def rules(self) -> Mapping[Any, Rule]:  # type: ignore[override]
        return _rules

    def collect(self, logs: Logs) -> Logs:
        return self.spool.collect(logs)

    def unify_branches(self, branches: Sequence[Results]) -> Sequence[Callable[[Results], Results]]:
        return self.spool.unify_branches(branches)

    def detached(self, state: Buffers | None, sites: frozenset[Site]) -> tuple[Filter, State]:
        del state
        return self.spool.detached(None, sites)

    def join(self, state: Buffers | None, logs: Logs) -> Results:
        if state is None:
            return None, logs
        collected: list[Log] = []
        state = dataclasses.replace(state, counts=state.counts.appeared(logs))
        for log in logs:
            state = self._with_room(state, log)
            kept = state.keys()
            rest = _restricted(log, kept, False)
            if rest and self.interval > 1 and not state.in_loop:
                counts, rest = subsampled(rest, self.interval, state.counts)
                state = dataclasses.replace(state, counts=counts)
            collected += rest
            if written := _restricted(log, kept, True):
                at_once = _compat.runs_at_once(_compat.current_trace())
                state = (_compiled if at_once else Capped.written)(self, state, written)
        return state, tuple(collected)

    def enter(self, state: Buffers | None, programs: Sequence[Any], inside: Inside) -> tuple[Capped, Buffers | None]:
        if state is None or inside in ("branch", "rule"):  # An interval counts what is before it, which comes later.
            return dataclasses.replace(self, bound=self.bound * self.interval, interval=1), None
        if inside == "call":
            return self, dataclasses.replace(state, counts=state.counts.modulo(self.interval))
        return self, self._in_loop(state, programs)

    def leave(self, state: Buffers | None, after: Buffers | None, collected: Logs, trips: Any = 1) -> Results:
        del trips
        if state is None or after is None:
            return self.join(state, collected)
        if not after.in_loop:  # What is collected in a call comes before what is in its buffers.
            return dataclasses.replace(after, counts=state.counts.after(after.counts, self.interval)), collected
        counts = dataclasses.replace(state.counts, order=after.counts.order)
        return self.join(dataclasses.replace(after, counts=counts, in_loop=state.in_loop), collected)

    def rows(self, buffer: Buffer) -> Columns:
        """The events in a buffer, with a mask, and the number of those that it dropped."""
        kept = (buffer.number + (self.interval - 1)) // self.interval
        places = jax.lax.broadcasted_iota(jnp.int32, (self.bound, *kept.shape), 0)
        rows = buffer.rows.map(lambda array: array[: self.bound])
        dropped = jnp.maximum(kept - self.bound, 0)
        return dataclasses.replace(rows, mask=places < kept, dropped=dropped, is_filled=False)

    def start(self) -> Buffers:
        """The state before a function."""
        return Buffers()

    def order(self, state: Buffers, logs: Logs) -> tuple[str, ...]:
        """The names that `by_type` has made, in the order in which they first appear in the program."""
        del logs
        return state.counts.order

    def result(self, state: Buffers, logs: Logs) -> list[Columns]:
        """The timelines of all logs of a function."""
        parts = [*with_event_axes(logs), *map(self.rows, state.buffers)]
        found: list[Columns] = []
        for keys, places in groups(part.values for part in parts).items():
            # Those that were collected came before those in the buffer.
            rows = [parts[place].only(keys) for place in places]
            found.append(filled(rows[0] if len(rows) == 1 else self._first(in_sequence(rows))))
        return found

    def _first(self, rows: Columns) -> Columns:
        happened = jnp.sum(rows.happened(), axis=0, dtype=jnp.int32)
        first = compact(rows, 1, 0)
        first = first.map(lambda array: array[: self.bound])
        return dataclasses.replace(first, dropped=rows.dropped + jnp.maximum(happened - self.bound, 0))

    def _with_room(self, state: Buffers, log: Log) -> Buffers:
        """The state with a buffer for each key that needs one, and buffers whose keys are logged together."""
        known, logged = state.keys(), list(events((log,)))
        takes = {key for event in logged if self.takes_all or event.mask is not None for key in event.values} | known
        if takes.isdisjoint(key for event in logged for key in event.values):
            return state
        fits = (
            event.values.keys() >= keys or event.values.keys().isdisjoint(keys)
            for event in logged
            for keys in (buffer.rows.values.keys() for buffer in state.buffers)
        )
        if takes == known and all(fits):
            return state
        like = jax.tree.map(_compat.aval_of, _restricted(log, takes, True))
        found = refined(
            _compat.abstract(with_event_axes, like), lambda key: key in known or state.phase(key, self.interval)
        )
        return self._regrouped(state, [Buffer(each, None) for each in found])

    def before(self, loop: Loop, state: Buffers) -> Buffers:
        """The state before a loop, with buffers that vary over the shards over which the number of iterations does."""
        if not (axes := loop.differs_over):
            return state
        logged = {key for program in loop.programs for event in events_in(program) for key in event.values}
        prepared = self._in_loop(state, loop.programs)
        buffers = (
            buffer
            if logged.isdisjoint(map(plain, buffer.rows.values))
            else jax.tree.map(lambda leaf: _compat.vary_in_branch(leaf, axes), buffer)
            for buffer in prepared.buffers
        )
        return dataclasses.replace(prepared, buffers=tuple(buffers), in_loop=state.in_loop)

    def _in_loop(self, state: Buffers, programs: Sequence[Any]) -> Buffers:
        """The state with all arrays that it has after any iteration."""
        after = state
        while True:
            before = after
            for program in programs:
                after = self._after(after, program)
            counts = dataclasses.replace(state.counts, order=after.counts.order)
            after = dataclasses.replace(after, counts=counts)
            if _types(before) == _types(after):
                return dataclasses.replace(self._regrouped(state, after.buffers), counts=counts, in_loop=True)

    def _after(self, state: Buffers, program: Any) -> Buffers:
        """The state after a program, with abstract values in place of arrays."""
        state = dataclasses.replace(state, in_loop=False)
        leaves, structure = jax.tree.flatten(state)
        return _after(program, self, structure, tuple(map(_compat.aval_of, leaves)))

    def _regrouped(self, state: Buffers, found: Sequence[Buffer]) -> Buffers:
        """The state with a buffer for each timeline of it and of others, which have the types of arrays to come."""
        of_key = {key: buffer for buffer in state.buffers for key in buffer.rows.values}
        like = {key: buffer for buffer in found for key in buffer.rows.values}
        buffers = []
        for keys in groups(buffer.rows.values for buffer in (*state.buffers, *found)):
            if keys[0] in of_key:
                buffer = _only(of_key[keys[0]], keys)
                if keys[0] in like:
                    other = _only(like[keys[0]], keys)
                    if other.number is not None:  # A state, whose batches are at least as large.
                        buffer, _ = _in_equal_batches(buffer, other.rows)
                    buffer = _varying_as(buffer, other)
                buffers.append(buffer)
            else:
                buffers.append(self._empty(_only(like[keys[0]], keys), state.phase(keys[0], self.interval)))
        return dataclasses.replace(state, buffers=tuple(buffers))

    def _empty(self, like: Buffer, phase: int) -> Buffer:
        def empty(aval: Any) -> Any:
            row = jex.core.mapped_aval(aval.shape[0], 0, aval)
            return _compat.zeros_like_aval(jex.core.unmapped_aval(self.bound + 1, 0, row))

        rows = dataclasses.replace(like.rows, mask=None, dropped=None, is_filled=False)
        rows = rows.map(empty)
        if like.number is not None:
            return Buffer(rows, _compat.zeros_like_aval(like.number) - phase)
        spec = sharding.spec_of(rows.any_value(), 1, 1 + rows.batch_ndim)
        return Buffer(rows, sharding.sharded(spec, rows.any_value(), jnp.zeros(rows.batch(0), jnp.int32)) - phase)

    def written(self, state: Buffers, logs: Logs) -> Buffers:
        """The state with further events written to their buffers."""
        buffers = list(state.buffers)
        for log in logs:
            for found in with_event_axes((log,)):
                for place, buffer in enumerate(buffers):
                    if buffer.rows.values.keys() <= found.values.keys():
                        buffers[place] = self._put(buffer, found.only(buffer.rows.values))
        return dataclasses.replace(state, buffers=tuple(buffers))

    def _put(self, buffer: Buffer, new: Columns) -> Buffer:
        buffer, new = _in_equal_batches(buffer, zeroed(new))
        check_alike(types_of(buffer.rows), buffer.rows, new)
        rows, new = with_steps_of_one_dtype([buffer.rows, new])
        buffer = Buffer(rows, buffer.number)
        happened, count = new.happened(), new.any_value().shape[0]
        if count > FEW:
            buffer = self._merged(buffer, new)
        else:
            for place in range(count):
                buffer = self._append(buffer, new.map(operator.itemgetter(place)), happened[place])
        return buffer if new.dropped is None else Buffer(buffer.rows, buffer.number + new.dropped)

    def _append(self, buffer: Buffer, event: Columns, happened: Any) -> Buffer:
        wanted, row = happened, buffer.number
        if self.interval > 1:
            wanted, row = happened & (row % self.interval == 0), row // self.interval
        row = jnp.where(wanted, jnp.minimum(row, self.bound), self.bound)

        def put(rows: Any, value: Any) -> Any:
            if not event.batch_ndim:
                return sharding.put(rows, value, row)
            return sharding.without_sharding(_put_each, lambda: sharding.spec_of(rows), rows, row, value)

        values = {key: put(rows, event.values[key]) for key, rows in buffer.rows.values.items()}
        steps = {name: put(rows, event.steps[name]) for name, rows in buffer.rows.steps.items()}
        return Buffer(
            dataclasses.replace(buffer.rows, values=values, steps=steps), buffer.number + happened.astype(jnp.int32)
        )

    def _merged(self, buffer: Buffer, new: Columns) -> Buffer:
        """The same for many events, which moves all rows."""
        happened = new.happened()
        number = buffer.number + jnp.cumsum(happened, axis=0, dtype=jnp.int32)
        wanted = happened & ((number - 1) % self.interval == 0)
        rows = dataclasses.replace(self.rows(buffer), dropped=None)
        both = compact(in_sequence([rows, dataclasses.replace(new, mask=wanted, dropped=None)]), 1, 0)
        rows = dataclasses.replace(both.map(lambda array: array[: self.bound + 1]), mask=None)
        return Buffer(rows, number[-1])


def _in_equal_batches(buffer: Buffer, new: Columns) -> tuple[Buffer, Columns]:
    """A buffer and events in one batch: what is in a smaller one gets the missing elements, which have no events."""
    rows, new = in_equal_batches([buffer.rows, new])
    if rows is buffer.rows:
        return buffer, new
    return Buffer(dataclasses.replace(rows, mask=None), grown(buffer.number, rows.batch(0))), new


def _put_each(rows: Any, row: Any, value: Any) -> Any:
    """The rows with a value for each batch element, in the row of its own."""
    places = (row, *jnp.indices(row.shape, dtype=jnp.int32))
    return rows.at[places].set(value, mode="promise_in_bounds", unique_indices=True)


def _restricted(log: Log, keys: set[str], wanted: bool) -> Logs:
    return map_events(lambda event, _: restrict(event, lambda key: (key in keys) == wanted), (log,))


def _only(buffer: Buffer, keys: Iterable[str]) -> Buffer:
    return Buffer(buffer.rows.only(set(keys)), buffer.number)


def _types(state: Buffers) -> tuple[Any, list[Any]]:
    leaves, structure = jax.tree.flatten(state)
    return structure, list(map(_compat.aval_of, leaves))


def _varying_as(buffer: Buffer, like: Buffer) -> Buffer:
    """The buffer, marked as varying over the shards over which what is written to it varies."""

    def vary(array: Any, like: Any) -> Any:
        return array if like is None else _compat.vary_in_branch(array, sorted(_compat.varying_axes(like)))

    values = {key: vary(rows, like.rows.values[key]) for key, rows in buffer.rows.values.items()}
    steps = {}
    for name, rows in buffer.rows.steps.items():
        new = like.rows.steps.get(name, rows)
        steps[name] = vary(rows.astype(promoted(rows.dtype, new.dtype)), new)
    return Buffer(dataclasses.replace(buffer.rows, values=values, steps=steps), vary(buffer.number, like.number))


@functools.partial(jax.jit, static_argnums=0)
def _compiled(handler: Capped, state: Buffers, logs: Logs) -> Buffers:
    return handler.written(state, logs)


@_compat.weakref_lru_cache
def _after(program: Any, handler: Capped, structure: Any, avals: tuple[Any, ...]) -> Buffers:
    """The state after a program, from one with these abstract values to one with abstract values."""
    discharged, results = discharge_from(handler, structure, avals, program)
    return cast(Buffers, split_results(_compat.out_avals(discharged), results)[1])


# while: (consts, carry) -> carry  becomes  (consts, ((carry, predicate), buffers)) -> ((carry, predicate), buffers)
def _while(
    handler: Handler, state: State, primitive: Any, args: Sequence[Any], params: dict[str, Any]
) -> tuple[Any, State, Logs]:
    del primitive
    capped = dataclasses.replace(cast(Capped, handler), takes_all=True)
    # A log that is left in the loop is masked by what JAX makes of the loop under a `vmap`.
    # On shards JAX does it by types, which the loop must not change.
    on_shards = bool(jax.sharding.get_abstract_mesh().manual_axes)
    loop = Loop(args, params, lockstep=not capped.forward and not tapped_in(params) and not on_shards)

    def iterate(*values: Any) -> list[Any]:
        if not loop.lockstep:
            return loop.iterate(*values)
        return cast(list[Any], under(Mask(), loop.iterate)(values[-1], *values)[0])

    outs, after, logs = run_loop(capped, capped.before(loop, state or Buffers()), loop, iterate)
    return _out_of_loop(capped, state, outs, after, logs)


# scan: (consts, carry, xs) -> (carry, ys)  becomes  (consts, (carry, buffers), xs) -> ((carry, buffers), (ys, logs))
def _scan(
    handler: Handler, state: State, primitive: Any, args: Sequence[Any], params: dict[str, Any]
) -> tuple[Any, State, Logs]:
    outs, after, logs = scan(handler, state or Buffers(), primitive, args, params)
    return _out_of_loop(cast(Capped, handler), state, outs, after, logs)


def _out_of_loop(
    capped: Capped, state: Buffers | None, outs: Any, after: Buffers, logs: Logs
) -> tuple[Any, Buffers | None, Logs]:
    if state is not None:
        return outs, after, logs
    return outs, None, (*logs, *(capped.rows(buffer).as_log() for buffer in after.buffers))


_rules: Mapping[Any, Rule] = {while_p: _while, scan_p: _scan}
