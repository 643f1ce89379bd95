"""`lox.spool`: logs as arrays that a function returns."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, cast, overload

from lox import _compat, _transform
from lox._arguments import names
from lox._bounded import bounded_while
from lox._capped import Capped
from lox._collect import difference, filled, of_logs, unify_branches
from lox._columns import with_event_axes
from lox._eager import reporting_deleted
from lox._effect import recording
from lox._events import Event, Logs, events, map_events
from lox._exceptions import LogValueError, SpoolError, SpoolWarning, StructureError
from lox._fold import NOTHING, Reduce
from lox._handler import Collector, Handler, Inside, Results, Rule, State
from lox._logdict import logdict, of_timelines
from lox._logged_names import taking
from lox._logs_in import equations, events_in, logs_in
from lox._misspelt import says_what_was_meant
from lox._patterns import names_of
from lox._reduce import Reduction, as_timeline, check_reduction
from lox._rules._scan import scan_p
from lox._rules._while import Loop, while_loop, while_p
from lox._select import PassThrough, Selecting, Selection
from lox._split import by_type, in_order, numbered
from lox._subsample import EventCounts, compact, subsampled, subsampled_scan
from lox._timeline import Timeline, refined
from lox._trace import is_outermost

Function = Callable[..., Any]


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

    @property
    def rules(self) -> Mapping[Any, Rule]:  # type: ignore[override]
        return _rules if self.interval == 1 or self.keeps_all else _rules_with_interval

    def collect(self, logs: Logs) -> Logs:
        selected = self.taken(logs)
        for event in events(selected):
            if event.optional and event.optional.needs_unify and not self.unify:
                raise StructureError(event.optional.message(event.site))
        return by_type(selected) if self.split else selected

    def join(self, state: EventCounts | None, logs: Logs) -> Results:
        if self.keeps_all:
            return state, logs
        if state is not None:
            return subsampled(logs, self.interval, state)
        # In the iteration, where it costs nothing.
        settled = all([event.mask is None for event in events(logs)])
        return state, logs if settled else map_events(filled, logs)

    def enter(
        self, state: EventCounts | None, programs: Sequence[Any], inside: Inside
    ) -> tuple[Spool, EventCounts | None]:
        # Which events of a loop or branch are kept is known after it. So it is for a call, which is compiled once then,
        # unless a scan in it logs too much for that.
        if state is None or inside in ("loop", "branch") or (inside == "call" and not any(map(_has_scan, programs))):
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
        return None if self.interval == 1 else EventCounts()

    def order(self, state: EventCounts | None, logs: Logs) -> tuple[str, ...]:
        """The names that `by_type` has made, in the order in which they first appear in the program."""
        return in_order(logs) if state is None else state.order

    def result(self, state: EventCounts | None, logs: Logs) -> list[Timeline]:
        """The timelines of all logs of a function.

        Raises:
            SpoolError: An array that was logged was deleted since.
        """
        uncertain = {} if state is None else dict(state.uncertain)
        found = []
        with reporting_deleted(logs):
            for each in refined(with_event_axes(logs), uncertain.get):
                offset = uncertain.get(next(iter(each.values)))
                found.append(filled(each if offset is None else compact(each, self.interval, offset)))
        return list[Timeline](found)


@_compat.weakref_lru_cache
def _has_scan(program: Any) -> bool:
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
        outs, logs = bounded_while(inner, handler.max_iters, loop, start)
        state, logs = handler.leave(state, None, logs)
        return outs, state, (*before, *logs)
    if selected:
        message = _unbounded(selected)
        if not handler.warn:
            raise SpoolError(message)
        _transform.warn_once(f"Logs were left out. {message}", SpoolWarning, selected[0][1].site)
    passed = PassThrough(handler.selection, handler.keep_logs, handler.forward)
    outs, _, _ = while_loop(passed, None, primitive, args, params)
    return outs, state, ()


def _scan(
    handler: Handler, state: State, primitive: Any, args: Sequence[Any], params: dict[str, Any]
) -> tuple[Any, State, Logs]:
    handler = cast(Spool, handler)
    return subsampled_scan(handler._keeping_all(), state, handler.interval, args, params)


_rules: Mapping[Any, Rule] = {while_p: _while}
_rules_with_interval: Mapping[Any, Rule] = {while_p: _while, scan_p: _scan}


def _unbounded(found: Sequence[tuple[str, Event]]) -> str:
    sites = ", ".join(f"{key!r} at {event.site}" for key, event in found)
    return (
        f"lox.spool cannot return logs from a while_loop (or a fori_loop whose bounds are not static), of which the "
        f"number of iterations is not known: {sites}. Give a bound with max_events= or max_iters=, reduce them with "
        "reduce=, leave them out with on_while='warn' or with argnames= or tags=, or log in a scan or a fori_loop "
        "with static bounds."
    )


@overload
def spool(
    fun: None = None,
    *,
    argnames: str | Iterable[str] | None = None,
    tags: str | Iterable[str] | None = None,
    reduce: Reduction | Mapping[str, Reduction] | None = None,
    interval: int | None = None,
    prefix: str = "",
    keep_logs: bool = False,
    unify: bool = False,
    on_while: Literal["error", "warn"] = "error",
    max_iters: int | None = None,
    max_events: int | None = None,
    on_mismatch: Literal["error", "split"] = "error",
) -> Callable[[Function], Callable[..., tuple[Any, logdict]]]: ...
@overload
def spool(
    fun: Function,
    *,
    argnames: str | Iterable[str] | None = None,
    tags: str | Iterable[str] | None = None,
    reduce: Reduction | Mapping[str, Reduction] | None = None,
    interval: int | None = None,
    prefix: str = "",
    keep_logs: bool = False,
    unify: bool = False,
    on_while: Literal["error", "warn"] = "error",
    max_iters: int | None = None,
    max_events: int | None = None,
    on_mismatch: Literal["error", "split"] = "error",
) -> Callable[..., tuple[Any, logdict]]: ...
@says_what_was_meant("lox.spool", "lox.spool(f)(x)")
def spool(
    fun: Function | None = None,
    *,
    argnames: str | Iterable[str] | None = None,
    tags: str | Iterable[str] | None = None,
    reduce: Reduction | Mapping[str, Reduction] | None = None,
    interval: int | None = None,
    prefix: str = "",
    keep_logs: bool = False,
    unify: bool = False,
    on_while: Literal["error", "warn"] = "error",
    max_iters: int | None = None,
    max_events: int | None = None,
    on_mismatch: Literal["error", "split"] = "error",
) -> Any:
    """Makes a function return what it logs, as arrays.

    Args:
        fun: The function. Without it, a decorator is returned.
        argnames: A key or keys to collect, or patterns: `*` stands for any characters of a key but slashes, as in
            ``"train/*"``, and `**` for any characters. None does not restrict; an empty iterable selects nothing.
        tags: A tag or tags, or patterns; a log call is selected when it carries any of them. With `argnames`, both
            must match.
        reduce: "mean", "sum", "min", "max", "first", "last" or "count", or a mapping from key to one of them: the
            events of a key become one, as they happen, so that memory does not grow with their number. Floats are
            added with compensation (Kahan): a sum or mean of 10^7 events is as precise as one event. Keys that are
            not in the mapping are not reduced. With ``{"loss": "mean", "*": "last"}``, the name of a key comes first,
            then the first pattern that matches.
        interval: Of each key every `interval`-th event is kept, the first one first; n events take the memory of
            ceil(n / interval), plus those of one iteration of an outer loop.
        prefix: Put before every key.
        keep_logs: Whether the collected logs are also left for a handler further out. Others always are.
        unify: Whether an event that may not happen, because only some branches of a `cond` or `switch` log it, is
            returned with a mask (and NaN, 0 or False where it did not) rather than refused.
        on_while: What to do with logs in a `while_loop`, or a `fori_loop` with dynamic bounds, of which the number
            is not known: "error" refuses them, "warn" leaves them out with a `SpoolWarning`. Neither matters where
            `reduce`, `max_events` or `max_iters` tell what to do.
        max_iters: Collects so many iterations of each such loop, with a mask, and counts in `logs.dropped` the
            events of further ones.
        max_events: Bounds the events whose number is not known before the function runs, those in `while_loop`s
            however nested and those that may not happen: of the keys that are logged together, and of each batch
            element, the first so many that happen are kept, in their order, and `logs.dropped` counts the others.
            Memory does not grow with the number of iterations. Events of these keys elsewhere count as well. In a
            `shard_map` it is the number for each shard. `interval` comes first: what it skips does not count.
        on_mismatch: What to do with events of one key that differ in shape, dtype, counters or the number of batch
            axes, such as those of a line that a library calls both under `vmap` and not: "error" refuses them, "split"
            returns them as ``"key"``, ``"key#2"`` and so on, in the order in which they first appear in the program. A
            number that makes a key that is logged is left out. All other arguments name the key without a number. A
            "count" needs neither: it counts all events of a key, and adds up the batch axes that not all of them have.

    Returns:
        A function with the arguments of `fun` that returns its result and a `lox.logdict`.

    Raises:
        LogValueError: `reduce`, `interval`, `on_while`, `max_iters`, `max_events` or `on_mismatch` is none of the
            above, or both of `reduce` and `interval`, or of `max_iters` and `max_events`, are given. A `ValueError`.
        LogDataError: `argnames` or `tags` are not names. A `TypeError`.

    Warns:
        SelectionWarning: A name or pattern selects nothing, although the function logs.

    When the returned function runs:
        SpoolError: Logs in a `while_loop` have no bound. A `ValueError`.
        StructureError: An event may not happen and `unify` is False, or events of one key differ in shape, dtype or
            counters. A `ValueError`.
        UnsupportedPrimitiveError: A log is inside a primitive that lox has no rule for. A `NotImplementedError`.

    >>> import jax, jax.numpy as jnp
    >>> import lox
    >>> @lox.spool
    ... def cumulative(xs):
    ...     def step(total, x):
    ...         lox.log({"total": total + x})
    ...         return total + x, None
    ...     return jax.lax.scan(step, 0.0, xs)[0]
    >>> out, logs = cumulative(jnp.arange(4.0))
    >>> out.item(), logs["total"].tolist()
    (6.0, [0.0, 1.0, 3.0, 6.0])
    """
    asked = (argnames, tags, reduce, interval, prefix, keep_logs, unify, on_while, max_iters, max_events, on_mismatch)
    try:
        options = _remembered_options(*asked)
    except TypeError:  # Something that cannot be hashed, such as a list of names, or of the wrong type.
        options = _options(*asked)
    site = _transform.site_of(options.names)
    return _transform.decorate(
        fun, lambda f: _transform.checked(f, options, _spooled(f, options), "lox.spool", site, options.names)
    )


def _options(
    argnames: Any,
    tags: Any,
    reduce: Any,
    interval: Any,
    prefix: Any,
    keep_logs: Any,
    unify: Any,
    on_while: Any,
    max_iters: Any,
    max_events: Any,
    on_mismatch: Any,
) -> _Options:
    """Checks the keywords of `lox.spool`."""
    options = {
        "keep_logs": bool(keep_logs),
        "unify": bool(unify),
        "warn": _transform.choice("on_while", on_while, ("error", "warn")) == "warn",
        "max_iters": _transform.positive("max_iters", max_iters),
        "interval": _transform.positive("interval", interval) or 1,
        "split": _transform.choice("on_mismatch", on_mismatch, ("error", "split")) == "split",
    }
    selection, reductions = Selection.of(argnames, tags), _reductions(reduce)
    if reduce is not None and interval is not None:
        raise LogValueError("lox.spool takes reduce= or interval=, not both.")
    if max_iters is not None and max_events is not None:
        raise LogValueError("lox.spool takes max_iters= or max_events=, not both.")
    _transform.string("prefix", prefix)
    return _options_of(
        selection, reductions, tuple(options.items()), prefix, _transform.positive("max_events", max_events)
    )


# Written where it is called, `lox.spool(f)(x)` is made anew at each call.
_remembered_options: Any = functools.lru_cache(maxsize=128, typed=True)(_options)


@dataclasses.dataclass(frozen=True, eq=False)
class _Options:
    """The options of `lox.spool`. Equal ones are the same object, which is faster to look up."""

    selection: Selection
    reductions: tuple[tuple[str | None, str], ...]
    make: tuple[tuple[str, Any], ...]
    prefix: str
    max_events: int | None

    @functools.cached_property
    def names(self) -> dict[str, tuple[str, ...]]:
        """The names and patterns that select logs, by keyword."""
        return self.selection.names() | {"reduce": tuple(key for key, _ in self.reductions if key is not None)}

    def call(self, fun: Function, args: Any, kwargs: Any) -> tuple[Any, logdict]:
        spool, reduce = _handlers(self, recording.value)
        folded = NOTHING

        def reducing(*args: Any, **kwargs: Any) -> Any:
            nonlocal folded
            out, folded, _ = _transform.run(reduce, NOTHING, fun, args, kwargs)
            return out

        timelines: list[Timeline] = []
        order: tuple[str, ...] = ()
        inner = fun if reduce is None else reducing
        if spool is None:
            out = inner(*args, **kwargs)
        else:
            out, state, collected = _transform.run(spool, spool.start(), inner, args, kwargs)
            timelines += spool.result(state, collected)
            order = spool.order(state, collected)
        with reporting_deleted(folded):
            timelines += [as_timeline({key: folded.accumulators[key] for key in keys}) for keys in folded.timelines]
        order += folded.order
        logs = of_timelines(numbered(timelines, order) if order else timelines)
        return out, logs.prefix(self.prefix) if self.prefix else logs


_options_of = functools.lru_cache(maxsize=128)(_Options)


@functools.lru_cache(maxsize=128)
def _handlers(options: _Options, forward: bool) -> tuple[Spool | Capped | None, Any]:
    """The handlers of the logs that are stacked, and inside it that of those that are reduced, as far as there are."""
    make, reductions = dict(options.make), options.reductions

    def stacks(selection: Selection) -> Spool | Capped:
        spool = Spool(selection=selection, forward=forward, **make)
        if options.max_events is None:
            return spool
        stacking, interval = dataclasses.replace(spool, interval=1), spool.interval
        return Capped(forward=forward, spool=stacking, bound=options.max_events, interval=interval)

    if not reductions:
        return stacks(options.selection), None
    common = {"keep_logs": make["keep_logs"] and forward, "reductions": reductions, "split": make["split"]}
    keys = names_of(key for key, _ in reductions if key is not None)
    if not keys:
        return None, Reduce(selection=options.selection, forward=forward, **common)
    others = dataclasses.replace(options.selection, without=keys)
    reduce = Reduce(selection=dataclasses.replace(options.selection, among=keys), forward=True, **common)
    return stacks(others), reduce


def _spooled(fun: Function, options: _Options) -> Callable[..., tuple[Any, logdict]]:
    jitted = _jitted(fun, options) if _compat.is_jitted(fun) else None

    def spooled(*args: Any, **kwargs: Any) -> tuple[Any, logdict]:
        # Under no other transformation, compile what is to be returned too, and let JAX dispatch to that.
        if jitted is not None and is_outermost() and not recording.value:
            return jitted(*args, **kwargs)
        if recording.value:
            return taking(options, options.selection.has, options.call, fun, args, kwargs)
        return options.call(fun, args, kwargs)

    return spooled


@_compat.cached_by_function
def _jitted(fun: Function, options: _Options) -> Function | None:
    return _transform.jitted(fun, options.call)


def _reductions(reduce: Any) -> tuple[tuple[str | None, str], ...]:
    if reduce is None:
        return ()
    if not isinstance(reduce, Mapping):
        return ((None, check_reduction(reduce)),)
    return tuple((key, check_reduction(reduce[key])) for key in names(reduce, "keys of reduce=", ""))
