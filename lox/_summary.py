"""`lox.tap(reduce=)`: the events of a window, or of the whole function, are sent to the host as one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from lox import _compat
from lox._effect import emit, log_p, received
from lox._endpoint import Endpoint, manual_axes
from lox._events import Event, Log, Logs, Site, StackedEvents, events, with_values
from lox._exceptions import UnsupportedPrimitiveError
from lox._handler import Filter, Handler, Inside, Results, State, Streamer
from lox._logs_in import jaxprs_in
from lox._reduce import Accumulator, Reductions
from lox._select import Selection
from lox._timeline import canonical
from lox._window import Folding, folded, rows_of, timelines_in, with_room, without_missing


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Summary:
    """The state of a `SummaryTap`.

    Attributes:
        endpoint: Where to send.
        folding: The last window of each key. One that is full was sent.
        timelines: The keys that are logged together.
    """

    endpoint: Endpoint
    folding: Folding
    timelines: tuple[tuple[str, ...], ...] = dataclasses.field(default=(), metadata={"static": True})


@dataclasses.dataclass(frozen=True, kw_only=True)
class SummaryTap(Streamer):
    """Sends the selected events to the host when they are reduced, and leaves all for a handler further out.

    Attributes:
        selection: Which events.
        forward: Whether a handler further out wants logs.
        ordered: Whether what is sent arrives in the order in which it is sent.
        reductions: The reduction of every key (under None) or of some.
        window: How many events are reduced to one; None for all events of the function.
    """

    selection: Selection
    forward: bool
    ordered: bool
    reductions: Reductions
    window: int | None

    def handle(self, state: Summary, logs: Logs) -> Results:
        selected, _ = self.selection.split(logs)
        if selected:
            state = self._with_room(state, [selected])
            at_once = _compat.runs_at_once(_compat.current_trace())
            state = (_compiled if at_once else _taken)(self, state, selected)
        if self.forward:
            emit(logs)
        return state, ()

    def enter(self, state: Summary, programs: Sequence[Any], inside: Inside) -> tuple[Handler, Summary]:
        del inside
        found = [self.selection.split(logs)[0] for program in programs for logs in _logged(program)]
        return self, self._with_room(state, [logs for logs in found if logs])

    def leave(self, state: Summary, after: Summary | None, collected: Logs, trips: Any = 1) -> Results:
        return (state if after is None else jax.lax.stop_gradient(after)), ()

    def detached(self, state: Summary, sites: frozenset[Site] = frozenset()) -> tuple[Filter, State]:
        del sites
        return Refuse(self.selection, self.forward), None

    def backward(self, state: Summary) -> tuple[Filter, State]:
        return self.detached(state)

    def finish(self, state: Summary) -> Summary:
        rows: list[Event] = []
        for keys in state.timelines:
            first = state.folding[keys[0]]
            event = Event({}, {}, None, (), first.site, len(first.batch_shape))
            rows += rows_of([keys], state.folding, event, lambda window, _: self._waits(window.maybe))
        self._send(state, rows)
        return dataclasses.replace(state, folding={}, timelines=())

    def met(self, state: Summary, event: Event) -> Summary:
        """The state after an event. A window that is full now is sent."""
        if manual_axes():
            raise UnsupportedPrimitiveError(_refusal(event, "in a shard_map, where shards do not count together"))
        event = jax.lax.stop_gradient(event)
        _, after = folded(self.reductions, self.window, state.folding, event)
        if self.window is not None:

            def is_full(window: Accumulator, happened: Any) -> Any:
                return (window.maybe == self.window) & (True if happened is None else happened)

            self._send(state, rows_of(state.timelines, after, event, is_full))
        return dataclasses.replace(state, folding=state.folding | after)

    def _send(self, state: Summary, rows: Sequence[Event]) -> None:
        if rows:
            state.endpoint.send(tuple(jax.lax.stop_gradient([*map(without_missing, rows)])), self.ordered)

    def _waits(self, number: Any) -> Any:
        return number > 0 if self.window is None else (number > 0) & (number < self.window)

    def _with_room(self, state: Summary, found: Sequence[Logs]) -> Summary:
        folding, timelines = state.folding, [*map(list, state.timelines)]
        for logs in found:
            folding = with_room(self.reductions, folding, logs)
            timelines += timelines_in(self.reductions, logs)
        return dataclasses.replace(state, folding=folding, timelines=canonical(timelines))


def _taken(tap: SummaryTap, state: Summary, logs: Sequence[Log]) -> Summary:
    """Fold logs into the state, and send each window that becomes full. Return the new state."""
    for log in logs:
        if isinstance(log, StackedEvents):
            iterate: Any = lambda state, body: (_taken(tap, state, body), None)  # noqa: E731
            state, _ = jax.lax.scan(iterate, state, log.body) if log.length else (state, None)
        else:
            state = tap.met(state, log)
    return state


_compiled = jax.jit(_taken, static_argnums=0)


@dataclasses.dataclass(frozen=True)
class Refuse(Filter):
    """Refuses the selected logs, which cannot be counted, and leaves the others.

    Attributes:
        selection: Which logs.
        forward: Whether a handler further out wants logs.
    """

    selection: Selection
    forward: bool

    def rewrite(self, state: State, logs: Logs) -> Logs:
        for event in events(self.selection.split(logs)[0]):
            if event.values:
                where = "in a rule of differentiation, in a backward pass, or in a shard_map without check_vma"
                raise UnsupportedPrimitiveError(_refusal(event, where))
        return logs if self.forward else ()


def _refusal(event: Event, where: str) -> str:
    keys = ", ".join(map(repr, event.values))
    return (
        f"lox.tap cannot reduce {keys}, logged at {event.site}: it is {where}. Leave it out of reduce=, use "
        "lox.spool(reduce=), or tap it as it is."
    )


def _logged(program: Any) -> Iterator[Logs]:
    """The logs in a program, with abstract values in place of arrays."""
    for eqn in _compat.open_jaxpr(program).eqns:
        if eqn.primitive is log_p:
            logs, to = received([var.aval for var in eqn.invars], eqn.params)
            if to is None:
                yield with_values(logs)
        else:
            for inner in jaxprs_in(eqn.params):
                yield from _logged(inner)
