"""`lox.spool`: logs as arrays that a function returns."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, overload

import jax

from lox import _compat, _transform
from lox._collect import Collect, Maker, align, difference, filled
from lox._columns import columns, with_event_axes
from lox._eager import check_alive
from lox._effect import emit, recording
from lox._events import Event, Node, Site, events, map_events, restrict
from lox._exceptions import LogValueError, SpoolError, SpoolWarning, StructureError
from lox._handler import Handler, InPlace
from lox._logdict import logdict, of_timelines
from lox._loops import Reduced, ScanLoops, WhileLoops, align_reduced, merge_reduced, reduced, split_reduced
from lox._reduce import Accumulator, Reduction, as_timeline, check_reduction
from lox._select import Selection
from lox._thin import Seen, compact, thin
from lox._timeline import Timeline, refined

Function = Callable[..., Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spool(Collect):
    """Collects the selected logs.

    Attributes:
        selection: Which logs.
        forward: Whether a handler further out wants the others.
        keep_logs: Whether it gets the selected ones as well.
        reduce: The reduction of every key (under None) or of some.
        interval: Which events are kept, or None for all.
        seen: The events before those that the handler runs, while they are known.
        unify: Whether events that may not happen are masked rather than refused.
        warn: Whether logs in a `while_loop` are left out with a warning rather than refused.
        max_iters: How many iterations of a `while_loop` are collected.
        held: What a scan may begin with that reduces the events of some keys, a flattened mapping of accumulators.
        structure: The structure of that.
    """

    selection: Selection
    forward: bool
    keep_logs: bool
    reduce: tuple[tuple[str | None, str], ...]
    interval: int | None
    seen: Seen | None
    unify: bool
    warn: bool
    max_iters: int | None
    held: tuple[Any, ...] = ()
    structure: Any = dataclasses.field(default_factory=lambda: jax.tree.structure({}))

    @property
    def keeps_order_by_key(self) -> bool:  # type: ignore[override]
        return self.seen is None  # Else some nodes are thinned out already, and the others come after them.

    def receive(self, nodes: tuple[Node, ...]) -> tuple[Any, ...]:
        selected, others = self.selection.split(nodes)
        if self.forward:
            emit(nodes if self.keep_logs else others)
        stacked = selected
        folded: tuple[Node, ...] = ()
        if self.reduce:
            stacked = map_events(lambda event, _: restrict(event, lambda key: self.reduction(key) is None), selected)
            folded = map_events(lambda event, _: restrict(event, self.reduction), selected)
        for event in events(stacked):
            if event.optional and not self.unify:
                raise StructureError(event.optional)
        return (*stacked, reduced(columns(folded), self.reduction)) if folded else stacked

    def reduction(self, key: str) -> str | None:
        reductions = dict(self.reduce)
        return reductions.get(key, reductions.get(None))

    def append(self, nodes: list[Any], new: tuple[Any, ...]) -> None:
        for node in new:
            if not isinstance(node, Reduced):
                # In the iteration, where it costs nothing, unless it is still to be seen what is kept.
                is_settled = self.interval or all([event.mask is None for event in events((node,))])
                nodes.extend((node,) if is_settled else map_events(filled, (node,)))
            elif nodes and isinstance(nodes[0], Reduced):
                nodes[0] = merge_reduced(nodes[0], node)
            else:
                nodes.insert(0, node)

    def join(self, nodes: Sequence[Any]) -> tuple[Any, ...]:
        folded = [node for node in nodes if isinstance(node, Reduced)]
        others: tuple[Any, ...] = tuple(node for node in nodes if not isinstance(node, Reduced))
        if self.seen is not None:
            others = thin(others, self.interval or 1, self.seen)
        return (*others, functools.reduce(merge_reduced, folded)) if folded else others

    def private(self) -> Handler:
        return dataclasses.replace(self, forward=False)

    def beside(self, sites: frozenset[Site]) -> Handler:
        return Pass(self.selection, self.keep_logs, self.forward, sites)

    def inside(self) -> Handler:
        return self.continuing({}, seen=None)

    def continuing(self, sofar: Mapping[str, Accumulator], **changes: Any) -> Handler:
        """The handler of what comes after these events, if it is a scan."""
        held, structure = jax.tree.flatten(dict(sofar))
        return dataclasses.replace(self, held=tuple(held), structure=structure, **changes)

    def arrays(self) -> tuple[Any, ...]:
        return self.held

    def holding(self, arrays: Sequence[Any]) -> Handler:
        return dataclasses.replace(self, held=tuple(arrays))

    def after(self, nodes: list[Any]) -> tuple[Handler, list[Any]]:
        if self.seen is None:
            return self, nodes
        nodes = list(self.join(nodes))
        (seen,) = (node for node in nodes if isinstance(node, Seen))
        return dataclasses.replace(self, seen=seen), nodes

    def scan_loops(self, length: int) -> Any:
        if not self.reduce and self.seen is None:
            return None
        sofar = jax.tree.unflatten(self.structure, self.held)
        return ScanLoops(length, None if self.seen is None else self.interval, self.seen or Seen(), sofar)

    def while_loops(self, found: Sequence[Event]) -> Any:
        selected = [(key, event) for event in found for key in event.values if self.selection.has(key, event.site.tags)]
        unbounded = [(key, event) for key, event in selected if self.reduction(key) is None]
        if not selected:
            return Pass(self.selection, self.keep_logs, self.forward)
        if not unbounded or self.max_iters is not None:
            return WhileLoops(self.max_iters)
        message = _unbounded(unbounded)
        if not self.warn:
            raise SpoolError(message)
        _transform.warn_once(f"Logs were left out. {message}", SpoolWarning, unbounded[0][1].site)
        return Pass(self.selection, self.keep_logs, self.forward)

    def branches(self, nodes: Sequence[tuple[Any, ...]]) -> Sequence[Maker]:
        folded, others = zip(*map(split_reduced, nodes), strict=True)
        if not self.unify and (reason := difference(others)):
            raise StructureError(reason)
        alike = align_reduced(folded)

        def make(nodes: tuple[Any, ...], maker: Maker, complete: Callable[[Reduced], Reduced]) -> tuple[Any, ...]:
            mine, rest = split_reduced(nodes)
            mine = complete(mine)
            return (*maker(rest), mine) if mine.accumulators else maker(rest)

        makers = zip(align(others), alike, strict=True)
        return [functools.partial(make, maker=maker, complete=complete) for maker, complete in makers]

    def result(self, nodes: Sequence[Any], prefix: str) -> logdict:
        """What `lox.spool` returns of the nodes of a whole function.

        Raises:
            SpoolError: An array that was logged was deleted since.
        """
        try:
            return self._result(nodes, prefix)
        except (RuntimeError, ValueError):
            check_alive(nodes)
            raise

    def _result(self, nodes: Sequence[Any], prefix: str) -> logdict:
        folded, others = split_reduced(nodes)
        seen = next((node for node in others if isinstance(node, Seen)), Seen())
        uncertain = dict(seen.uncertain)
        found = with_event_axes([node for node in others if not isinstance(node, Seen)])
        timelines: list[Timeline] = []
        for each in refined(found, uncertain.get):
            offset = uncertain.get(next(iter(each.values)))
            if offset is not None:
                each = compact(each, self.interval or 1, offset)
            timelines.append(filled(each))
        for keys in folded.timelines:
            timelines.append(as_timeline({key: folded.accumulators[key] for key in keys}))
        logs = of_timelines(timelines)
        return logs.prefix(prefix) if prefix else logs


@dataclasses.dataclass(frozen=True)
class Pass(InPlace):
    """Leaves selected logs out, and passes on what a `Spool` would.

    Attributes:
        selection: Which logs are selected.
        keep_logs: Whether these are passed on as well.
        forward: Whether a handler further out wants any.
        sites: The log calls among which to select; None for all.
    """

    selection: Selection
    keep_logs: bool
    forward: bool
    sites: frozenset[Site] | None = None

    def replace(self, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        if not self.forward:
            return ()
        if self.keep_logs:
            return nodes

        def left(event: Event, depth: int) -> Event | None:
            if self.sites is not None and event.site not in self.sites:
                return event
            return restrict(event, lambda key: not self.selection.has(key, event.site.tags))

        return map_events(left, nodes)


def _unbounded(found: Sequence[tuple[str, Event]]) -> str:
    sites = ", ".join(f"{key!r} at {event.site}" for key, event in found)
    return (
        f"lox.spool cannot return logs from a while_loop (or a fori_loop whose bounds are not static), of which the "
        f"number of iterations is not known: {sites}. Give a bound with max_iters=, reduce them with reduce=, leave "
        f"them out with on_while='warn' or with argnames= or tags=, or log in a scan or a fori_loop with static bounds."
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
) -> Callable[..., tuple[Any, logdict]]: ...
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
) -> Any:
    """Makes a function return what it logs, as arrays.

    Args:
        fun: The function. Without it, a decorator is returned.
        argnames: A key or keys to collect. None does not restrict; an empty iterable selects nothing.
        tags: A tag or tags; a log call is selected when it carries any of them. With `argnames`, both must match.
        reduce: "mean", "sum", "min", "max", "first", "last" or "count", or a mapping from key to one of them: the
            events of a key become one, as they happen, so that memory does not grow with their number. Floats are
            added with compensation (Kahan): a sum or mean of 10^7 events is as precise as one event. Keys that are
            not in the mapping are not reduced.
        interval: Of each key every `interval`-th event is kept, the first one first; n events take the memory of
            ceil(n / interval), plus those of one iteration of an outer loop.
        prefix: Put before every key.
        keep_logs: Whether the collected logs are also left for a handler further out. Others always are.
        unify: Whether an event that may not happen, because only some branches of a `cond` or `switch` log it, is
            returned with a mask (and NaN, 0 or False where it did not) rather than refused.
        on_while: What to do with logs in a `while_loop`, or a `fori_loop` with dynamic bounds, of which the number
            is not known: "error" refuses them, "warn" leaves them out with a `SpoolWarning`. Neither matters where
            `reduce` or `max_iters` tell what to do.
        max_iters: Collects so many iterations of each such loop, with a mask, and counts in `logs.dropped` the
            events of further ones.

    Returns:
        A function with the arguments of `fun` that returns its result and a `lox.logdict`.

    Raises:
        LogValueError: `reduce`, `interval`, `on_while` or `max_iters` is none of the above, or `reduce` and
            `interval` are both given. A `ValueError`.
        LogDataError: `argnames` or `tags` are not names. A `TypeError`.

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
    asked = (argnames, tags, reduce, interval, prefix, keep_logs, unify, on_while, max_iters)
    try:
        options = _remembered_options(*asked)
    except TypeError:  # Something that cannot be hashed, such as a list of names, or of the wrong type.
        options = _options(*asked)
    return _transform.decorate(fun, lambda f: _spooled(f, options))


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
) -> _Options:
    """Checks the keywords of `lox.spool`."""
    options = {
        "selection": Selection.of(argnames, tags),
        "keep_logs": bool(keep_logs),
        "reduce": _reductions(reduce),
        "interval": _transform.positive("interval", interval),
        "seen": None if interval in (None, 1) else Seen(),
        "unify": bool(unify),
        "warn": _transform.choice("on_while", on_while, ("error", "warn")) == "warn",
        "max_iters": _transform.positive("max_iters", max_iters),
    }
    if reduce is not None and interval is not None:
        raise LogValueError("lox.spool takes reduce= or interval=, not both.")
    _transform.string("prefix", prefix)
    return _options_of(tuple(options.items()), prefix)


# Written where it is called, `lox.spool(f)(x)` is made anew at each call.
_remembered_options: Any = functools.lru_cache(maxsize=128, typed=True)(_options)


@dataclasses.dataclass(frozen=True, eq=False)
class _Options:
    """What `lox.spool` was asked for. Equal ones are the same object, which is faster to look up."""

    make: tuple[tuple[str, Any], ...]
    prefix: str

    def call(self, fun: Function, args: Any, kwargs: Any) -> tuple[Any, logdict]:
        handler = _handler(self, recording.value)
        out, nodes = _transform.run(handler, fun, args, kwargs)
        return out, handler.result(nodes, self.prefix)


_options_of = functools.lru_cache(maxsize=128)(_Options)


@functools.lru_cache(maxsize=128)
def _handler(options: _Options, forward: bool) -> Spool:
    return Spool(**dict(options.make), forward=forward)


def _spooled(fun: Function, options: _Options) -> Callable[..., tuple[Any, logdict]]:
    jitted = _jitted(fun, options) if _compat.is_jitted(fun) else None

    def spooled(*args: Any, **kwargs: Any) -> tuple[Any, logdict]:
        # Under no other transformation, compile what is to be returned too, and let JAX dispatch to that.
        if jitted is not None and _compat.is_top_level() and not recording.value:
            return jitted(*args, **kwargs)
        return options.call(fun, args, kwargs)

    return functools.wraps(fun, updated=())(spooled)


@_compat.cached_by_function
def _jitted(fun: Function, options: _Options) -> Function | None:
    return _transform.jitted(fun, options.call)


def _reductions(reduce: Any) -> tuple[tuple[str | None, str], ...]:
    if reduce is None:
        return ()
    if not isinstance(reduce, Mapping):
        return ((None, check_reduction(reduce)),)
    return tuple((key, check_reduction(name)) for key, name in reduce.items())
