"""`lox.spool`: logs as arrays that a function returns."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, overload

import jax.numpy as jnp

from lox import _compat, _transform
from lox._capped import Capped
from lox._columns import Columns
from lox._deliver import INNER
from lox._effect import recording
from lox._exceptions import LogValueError
from lox._fold import Reduce
from lox._logdict import logdict, of_timelines
from lox._logged_names import taking
from lox._misspelt import says_what_was_meant
from lox._patterns import names_of
from lox._reduce import AnyReduction, Reductions, check_window, read_reductions
from lox._select import Selection
from lox._split import numbered
from lox._stack import Spool
from lox._trace import is_outermost
from lox._window import Windowed

Function = Callable[..., Any]


@overload
def spool(
    fun: None = None,
    *,
    argnames: str | Iterable[str] | None = None,
    tags: str | Iterable[str] | None = None,
    reduce: AnyReduction | Mapping[str, AnyReduction] | None = None,
    interval: int | None = None,
    window: int | None = None,
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
    reduce: AnyReduction | Mapping[str, AnyReduction] | None = None,
    interval: int | None = None,
    window: int | None = None,
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
    reduce: AnyReduction | Mapping[str, AnyReduction] | None = None,
    interval: int | None = None,
    window: int | None = None,
    prefix: str = "",
    keep_logs: bool = False,
    unify: bool = False,
    on_while: Literal["error", "warn"] = "error",
    max_iters: int | None = None,
    max_events: int | None = None,
    on_mismatch: Literal["error", "split"] = "error",
) -> Any:
    """Make a function return its logs as arrays, next to its result.

    Args:
        fun: The function. Without it, a decorator is returned.
        argnames: A key or keys to collect, or patterns: `*` stands for any characters of a key but slashes, as in
            ``"train/*"``, and `**` for any characters. None does not restrict; an empty iterable selects nothing.
        tags: A tag or tags, or patterns; a log call is selected when it carries any of them. With `argnames`, both
            must match.
        reduce: "mean", "sum", "std", "var", "min", "max", "first", "last" or "count", an object of `lox.reductions`,
            such as quantiles or a histogram, or a mapping from key to one of them: the events of a key become one, as
            they happen, so that memory does not grow with their number.
            Each is of every element of the values by itself. "var" is the variance of a population (divided by the
            number of events) and "std" its square root, so that of one event both are 0; they are NaN where an event is
            not finite, or larger than a quarter of the largest number of its dtype. Floats are added with
            compensation (Kahan): a sum, mean or variance of 10^7 events is as precise as one of a few. Keys that are
            not in the mapping are not reduced. With ``{"loss": "mean", "*": "last"}``, the name of a key comes first,
            then the first pattern that matches.
        interval: Of each key every `interval`-th event is kept, the first one first; n events take the memory of
            ceil(n / interval), plus those of one iteration of an outer loop. What only the events of an iteration of a
            `scan` need, also in a jitted function in it, is not computed where none of them is kept, if it is of more
            than some thousand array elements.
        window: With `reduce`, each `window` events that happen become one, and so the last ones if they are fewer: n
            events make ceil(n / window). Batch elements count for themselves. The memory is that of `interval`. A
            window has the counters of its last event, or of the first for "first". In a `while_loop` it takes
            `max_iters`.
        prefix: Put before every key.
        keep_logs: Whether the collected logs are also left for a handler further out. Others always are.
        unify: Whether an event that may not happen, because only some branches of a `cond` or `switch` log it, is
            returned with a mask (and NaN, 0 or False where it did not) rather than refused.
        on_while: What to do with logs in a `while_loop`, or a `fori_loop` with dynamic bounds, whose number
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
            "count" without `window` needs neither: it counts all events of a key, and adds up the batch axes that not
            all of them have.

    Returns:
        A function with the arguments of `fun` that returns its result and a `lox.logdict`.

    Raises:
        LogValueError: `reduce`, `interval`, `window`, `on_while`, `max_iters`, `max_events` or `on_mismatch` is none of
            the above; both of `reduce` and `interval`, or of `max_iters` and `max_events`, are given; or `window`
            without `reduce`. A `ValueError`.
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
    return labelled_spool(
        fun,
        False,
        argnames=argnames,
        tags=tags,
        reduce=reduce,
        interval=interval,
        window=window,
        prefix=prefix,
        keep_logs=keep_logs,
        unify=unify,
        on_while=on_while,
        max_iters=max_iters,
        max_events=max_events,
        on_mismatch=on_mismatch,
    )


@says_what_was_meant("lox.spool")
def labelled_spool(
    fun: Function | None,
    labelled: bool = True,
    *,
    argnames: str | Iterable[str] | None = None,
    tags: str | Iterable[str] | None = None,
    reduce: AnyReduction | Mapping[str, AnyReduction] | None = None,
    interval: int | None = None,
    window: int | None = None,
    prefix: str = "",
    keep_logs: bool = False,
    unify: bool = False,
    on_while: str = "error",
    max_iters: int | None = None,
    max_events: int | None = None,
    on_mismatch: str = "error",
) -> Any:
    """`lox.spool`, of which events with batch axes also have the label `INNER` among their counters.

    The label has as many batch axes, all of size one: only their number matters.
    """
    bounds = (max_iters, max_events)
    asked = (argnames, tags, reduce, interval, window, prefix, keep_logs, unify, on_while, *bounds, on_mismatch)
    try:
        options = _remembered_options(labelled, *asked)
    except TypeError:  # Something that cannot be hashed, such as a list of names, or of the wrong type.
        options = _options(labelled, *asked)
    site = _transform.site_of(options.names)
    return _transform.decorate(
        fun, lambda f: _transform.checked(f, options, _spooled(f, options), "lox.spool", site, options.names)
    )


def _options(
    labelled: bool,
    argnames: Any,
    tags: Any,
    reduce: Any,
    interval: Any,
    window: Any,
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
    selection, reductions = Selection.of(argnames, tags), read_reductions(reduce)
    check_window("lox.spool", reduce, interval, window)
    if max_iters is not None and max_events is not None:
        raise LogValueError("lox.spool takes max_iters= or max_events=, not both.")
    _transform.string("prefix", prefix)
    bounds = _transform.positive("max_events", max_events), _transform.positive("window", window)
    return _options_of(selection, reductions, tuple(options.items()), prefix, *bounds, labelled)


# Written where it is called, `lox.spool(f)(x)` is made anew at each call.
_remembered_options: Any = functools.lru_cache(maxsize=128, typed=True)(_options)


@dataclasses.dataclass(frozen=True, eq=False)
class _Options:
    """The options of `lox.spool`. Equal ones are the same object, which is faster to look up."""

    selection: Selection
    reductions: Reductions
    make: tuple[tuple[str, Any], ...]
    prefix: str
    max_events: int | None
    window: int | None
    labelled: bool

    @functools.cached_property
    def names(self) -> dict[str, tuple[str, ...]]:
        """The names and patterns that select logs, by keyword."""
        return self.selection.names() | {"reduce": tuple(key for key, _ in self.reductions if key is not None)}

    def call(self, fun: Function, args: Any, kwargs: Any) -> tuple[Any, logdict]:
        timelines: list[Columns] = []
        order: tuple[str, ...] = ()

        def under(handler: Spool | Capped | Reduce, fun: Function) -> Function:
            def run(*args: Any, **kwargs: Any) -> Any:
                nonlocal timelines, order
                out, state, collected = _transform.run(handler, handler.start(), fun, args, kwargs)
                timelines = [*handler.result(state, collected), *timelines]
                order += handler.order(state, collected)
                return out

            return run

        for handler in _handlers(self, recording.value):
            fun = under(handler, fun)
        out = fun(*args, **kwargs)
        if self.labelled:
            timelines = [*map(_labelled, timelines)]
        logs = of_timelines(numbered(timelines, order) if order else timelines)
        return out, logs.prefix(self.prefix) if self.prefix else logs


_options_of = functools.lru_cache(maxsize=128)(_Options)


def _labelled(timeline: Columns) -> Columns:
    if not timeline.batch_ndim:
        return timeline
    label = jnp.zeros((len(timeline.any_value()), *[1] * timeline.batch_ndim), bool)
    return dataclasses.replace(timeline, steps=timeline.steps | {INNER: label})


@functools.lru_cache(maxsize=128)
def _handlers(options: _Options, forward: bool) -> tuple[Spool | Capped | Reduce, ...]:
    """The handler of the logs that are reduced, and around it that of the others, as far as there are."""
    make, reductions = dict(options.make), options.reductions

    def stacks(selection: Selection) -> Spool | Capped:
        spool = Spool(selection=selection, forward=forward, **make)
        if options.max_events is None:
            return spool
        stacking, interval = dataclasses.replace(spool, interval=1), spool.interval
        return Capped(forward=forward, spool=stacking, bound=options.max_events, interval=interval)

    if not reductions:
        return (stacks(options.selection),)
    common = {"keep_logs": make["keep_logs"] and forward, "reductions": reductions, "split": make["split"]}

    def reduces(selection: Selection, forward: bool) -> Reduce | Windowed:
        if options.window is None:
            return Reduce(selection=selection, forward=forward, **common)
        bounds = {"warn": make["warn"], "max_iters": make["max_iters"], "interval": options.window}
        return Windowed(selection=selection, forward=forward, unify=True, **bounds, **common)

    keys = names_of(key for key, _ in reductions if key is not None)
    if not keys:
        return (reduces(options.selection, forward),)
    others = dataclasses.replace(options.selection, without=keys)
    return reduces(dataclasses.replace(options.selection, among=keys), True), stacks(others)


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
