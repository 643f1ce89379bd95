"""The handler that collects logs and stacks those of loops: what `lox.spool` returns where nothing is reduced."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, cast

from lox import _compat
from lox._bounded import bounded_while
from lox._collect import difference, filled, of_logs, unify_branches
from lox._columns import Columns, with_event_axes
from lox._eager import reporting_deleted
from lox._events import Event, Logs, events, map_events
from lox._exceptions import SpoolError, SpoolWarning, StructureError
from lox._handler import Collector, Handler, Inside, Results, Rule, State
from lox._logs_in import equations, events_in, logs_in
from lox._rules._scan import scan_p
from lox._rules._while import Loop, while_loop, while_p
from lox._select import PassThrough, Selecting
from lox._site import warn_at
from lox._split import by_type, in_order
from lox._subsample import EventCounts, compact, subsampled, subsampled_scan
from lox._timeline import refined


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spool(Selecting, Collector):
    """Collects the selected logs.

    Attributes:
        unify: Whether events that may not happen are masked rather than refused.
        warn: Whether logs in a `while_loop` are left out with a warning rather than refused.
        max_iters: How many iterations of a `while_loop` are collected.
        interval: Which events are kept.
        keeps_all: Whether it is still to be seen which are.
        split: Whether events of one key that are not alike are collected apart rather than refused.
    """

    unify: bool
    warn: bool
    max_iters: int | None
    interval: int = 1
    keeps_all: bool = False
    split: bool = False
    ways: ClassVar[str] = "Give a bound with max_events= or max_iters=, reduce them with reduce="

    @property
    def rules(self) -> Mapping[Any, Rule]:  # type: ignore[override]
        return rules if self.interval == 1 or self.keeps_all else _rules_with_interval

    def collect(self, logs: Logs) -> Logs:
        selected = self.taken(logs)
        for event in events(selected):
            if event.optional and event.optional.needs_unify and not self.unify:
                raise StructureError(event.optional.message(event.site))
        return by_type(selected) if self.split else selected

    def join(self, state: EventCounts | None, logs: Logs) -> Results:
        if self.keeps_all:
            return state, logs
        if state is not None and self.interval > 1:
            return subsampled(logs, self.interval, state)
        # In the iteration, where it costs nothing.
        for event in events(logs):
            if event.mask is not None:
                logs = map_events(filled, logs)
                break
        return state and state.appeared(logs), logs

    def enter(
        self, state: EventCounts | None, programs: Sequence[Any], inside: Inside
    ) -> tuple[Spool, EventCounts | None]:
        # Which events of a loop or branch are kept is known after it. So it is for a call, which is compiled once then,
        # unless a scan in it logs too much for that.
        if state is None or inside in ("loop", "branch") or (inside == "call" and not any(map(has_scan, programs))):
            return self._keeping_all(), None
        return self, state.modulo(self.interval)

    def leave(self, state: EventCounts | None, after: EventCounts | None, collected: Logs, trips: Any = 1) -> Results:
        if state is None or after is None:
            return self.join(state, collected)
        return state.after(after, self.interval), collected

    def _keeping_all(self) -> Spool:
        return self if self.interval == 1 else dataclasses.replace(self, keeps_all=True)

    def unify_branches(self, branches: Sequence[Results]) -> Sequence[Callable[[Results], Results]]:
        logs = [logs for _, logs in branches]
        if not self.unify and (reason := difference(logs)):
            raise StructureError(reason.message())
        return of_logs(unify_branches(logs))

    def start(self) -> EventCounts | None:
        """The state before a function."""
        return EventCounts() if self.interval > 1 or self.split else None

    def order(self, state: EventCounts | None, logs: Logs) -> tuple[str, ...]:
        """The names that `by_type` has made, in the order in which they first appear in the program."""
        return in_order(logs) if state is None else state.order

    def result(self, state: EventCounts | None, logs: Logs) -> list[Columns]:
        """The timelines of all logs of a function.

        Raises:
            SpoolError: An array that was logged was deleted since.
        """
        with reporting_deleted(logs):
            return list(map(filled, self.columns(state, logs)))

    def columns(self, state: EventCounts | None, logs: Logs) -> list[Columns]:
        """The same, with arbitrary values where the mask is False."""
        uncertain = {} if state is None else dict(state.uncertain)
        found = []
        for each in refined(with_event_axes(logs), uncertain.get):
            offset = uncertain.get(next(iter(each.values)))
            found.append(each if offset is None else compact(each, self.interval, offset))
        return found


@_compat.weakref_lru_cache
def has_scan(program: Any) -> bool:
    """Tell whether a program has a scan that logs."""
    return any(eqn.primitive is scan_p and logs_in(eqn.params) for eqn in equations(program))


def _while(
    handler: Handler, state: State, primitive: Any, args: Sequence[Any], params: dict[str, Any]
) -> tuple[Any, State, Logs]:
    handler = cast(Spool, handler)
    loop = Loop(args, params)
    selected = [
        (key, event)
        for program in loop.programs
        for event in events_in(program)
        for key in event.values
        if handler.selection.has(key, event.site.tags)
    ]
    if selected and handler.max_iters is not None:
        start, state, before = loop.start(handler, state)
        inner, _ = handler.enter(state, loop.programs, "loop")
        # The carry of the loop has the logs in it: NaN, where an event did not happen, would look like the program's.
        inner = dataclasses.replace(inner, keeps_all=True)
        outs, logs = bounded_while(inner, handler.max_iters, loop, start)
        state, logs = handler.leave(state, None, logs)
        return outs, state, (*before, *logs)
    if selected:
        message = _unbounded(selected, handler.ways)
        if not handler.warn:
            raise SpoolError(message)
        warn_at(selected[0][1].site, f"Logs were left out. {message}", SpoolWarning)
    passed = PassThrough(handler.selection, handler.keep_logs, handler.forward)
    outs, _, _ = while_loop(passed, None, primitive, args, params)
    return outs, state, ()


def _scan(
    handler: Handler, state: State, primitive: Any, args: Sequence[Any], params: dict[str, Any]
) -> tuple[Any, State, Logs]:
    handler = cast(Spool, handler)
    return subsampled_scan(handler._keeping_all(), state, handler.interval, args, params)[:3]


rules: Mapping[Any, Rule] = {while_p: _while}
_rules_with_interval: Mapping[Any, Rule] = {while_p: _while, scan_p: _scan}


def _unbounded(found: Sequence[tuple[str, Event]], ways: str) -> str:
    sites = ", ".join(f"{key!r} at {event.site}" for key, event in found)
    return (
        f"lox.spool cannot return logs from a while_loop (or a fori_loop whose bounds are not static), of which the "
        f"number of iterations is not known: {sites}. {ways}, leave them out with on_while='warn' or with argnames= or "
        "tags=, or log in a scan or a fori_loop with static bounds."
    )
