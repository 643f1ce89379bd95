"""`lox.tap`: logs streamed to the host as they happen."""

from __future__ import annotations

import dataclasses
import functools
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, overload

import jax

from lox import _channel, _compat, _transform
from lox._arguments import ARRAY_LIKE
from lox._channel import Callback, Channel
from lox._deliver import channel_p
from lox._effect import ordering, recording
from lox._endpoint import Endpoint
from lox._exceptions import LogValueError
from lox._handler import Handler, State
from lox._logdict import described, logdict
from lox._misspelt import says_what_was_meant
from lox._patterns import first_match, names_of
from lox._reduce import AnyReduction, Reductions, check_window, read_reductions
from lox._reductions import Reducer
from lox._select import Selection
from lox._stream import BufferedTap, Tap, start
from lox._summary import Summary, SummaryTap
from lox._trace import is_outermost

Function = Callable[..., Any]


def show(logs: logdict) -> None:
    """Prints logs, an event a line."""
    for event in range(max((len(value) for value in logs.data.values()), default=0)):
        parts = {}
        for key, value in logs.items():
            if event < len(value):
                for name, values in logs.steps.items():
                    if key in values:
                        parts[name] = values[key][event]
                parts[key] = value[event]
        print("  ".join(f"{name}={value}" for name, value in parts.items()))


@overload
def tap(
    fun: None = None,
    callback: Callback | None = None,
    *,
    argnames: str | Iterable[str] | None = None,
    tags: str | Iterable[str] | None = None,
    reduce: AnyReduction | Mapping[str, AnyReduction] | None = None,
    interval: int | None = None,
    window: int | None = None,
    prefix: str = "",
    buffer: int = 1,
    ordered: bool = True,
    on_error: Literal["raise", "warn"] = "raise",
) -> Callable[[Function], Function]: ...
@overload
def tap(
    fun: Function,
    callback: Callback | None = None,
    *,
    argnames: str | Iterable[str] | None = None,
    tags: str | Iterable[str] | None = None,
    reduce: AnyReduction | Mapping[str, AnyReduction] | None = None,
    interval: int | None = None,
    window: int | None = None,
    prefix: str = "",
    buffer: int = 1,
    ordered: bool = True,
    on_error: Literal["raise", "warn"] = "raise",
) -> Function: ...
@says_what_was_meant("lox.tap", "lox.tap(f, callback)(x)")
def tap(
    fun: Function | None = None,
    callback: Callback | None = None,
    *,
    argnames: str | Iterable[str] | None = None,
    tags: str | Iterable[str] | None = None,
    reduce: AnyReduction | Mapping[str, AnyReduction] | None = None,
    interval: int | None = None,
    window: int | None = None,
    prefix: str = "",
    buffer: int = 1,
    ordered: bool = True,
    on_error: Literal["raise", "warn"] = "raise",
) -> Any:
    """Make a function stream its logs to a callback while it runs.

    The callback gets a `lox.logdict` of NumPy arrays, laid out as `lox.spool` lays them out: the first axis is that
    of events. It has a mask for a key if an event happened in some batch elements only; an event that
    happened in none does not arrive. Under `vmap` there is one call for all batch elements. In a `shard_map`, each
    shard sends its own, with an axis for shards on which a mask tells it; what is the same on all arrives once. Typed
    PRNG keys arrive as their data.

    The logs stay for a handler further out as well. The callback runs on a thread of JAX's runtime, while the
    program waits for it. It must not call JAX, which may deadlock: use NumPy, or hand the logs to another thread.

    On CPU, JAX runs a program that has Python callbacks inside the call: the call returns when the program has ended,
    where without callbacks it returns at once. A jitted step that takes 50 ms returns after less than 3 ms without a
    handler and under `lox.spool`, and after all of its time under `lox.tap`, as with `jax.debug.callback`. The time
    of the callbacks is added. `buffer` and `ordered` do not change this.

    Args:
        fun: The function. Without it, a decorator is returned.
        callback: What takes the logs. Without it, they are printed.
        argnames: A key or keys to take, or patterns: `*` stands for any characters of a key but slashes, as in
            ``"train/*"``, and `**` for any characters. None does not restrict; an empty iterable selects nothing.
        tags: A tag or tags, or patterns; a log call is selected when it carries any of them. With `argnames`, both
            must match.
        reduce: As `lox.spool` takes it, such as "mean", `lox.reductions.quantiles(0.9)`, or a mapping from key to one
            of them: the events of a key become one, which arrives when the function has ended, or one for each
            `window`. They do not wait in a buffer. Inside a `shard_map`, in rules of differentiation and in backward
            passes they are refused.
        interval: Of each key every `interval`-th event is taken, the first one first. What is skipped calls nothing.
            Inside a `shard_map`, where a `TapWarning` says so, and in rules of differentiation nothing is skipped.
        window: With `reduce`, each `window` events that happen become one, which arrives with the last of them, and
            so the last ones, if they are fewer, when the function has ended. Batch elements count for themselves.
        prefix: Put before every key.
        buffer: How many logs the device collects at most for one call of the callback. What is left at the end of the
            function, also if an exception ends it while it runs eagerly, is handed over then. A scan that logs the
            same at each iteration hands over whole iterations, and what is left of them at its end. Inside a
            `shard_map` and in rules of differentiation nothing waits, nor do events of a key that has events of other
            shapes, dtypes or counters.
        ordered: Whether the logs of a device arrive in the order in which they happen. Without it they may arrive in
            any order. JAX does not compile ordered callbacks in a program that offloads values to the host, as a
            `checkpoint` policy may; `ordered=False` works there.
        on_error: What to do with an exception of the callback. The program finishes either way. With "raise",
            `lox.flush` raises it; "warn" warns once.

    Returns:
        A function of the same signature and results. Only `lox.flush` is sure to wait for all callbacks: on
        accelerators a call may return before they have run.

    Raises:
        LogValueError: `reduce`, `interval`, `window`, `buffer`, `prefix` or `on_error` is none of the above, both of
            `reduce` and `interval` are given, or `window` without `reduce`. A `ValueError`.
        LogDataError: `argnames` or `tags` are not names. A `TypeError`.

    Warns:
        SelectionWarning: A name or pattern selects nothing, although the function logs.

    >>> import jax, jax.numpy as jnp
    >>> import lox
    >>> arrived = []
    >>> @lox.tap(callback=arrived.append)
    ... def cumulative(xs):
    ...     def step(total, x):
    ...         lox.log({"total": total + x})
    ...         return total + x, None
    ...     return jax.lax.scan(step, 0.0, xs)[0]
    >>> cumulative(jnp.arange(4.0)).item()
    6.0
    >>> lox.flush()
    >>> [logs["total"].tolist() for logs in arrived]
    [[0.0], [1.0], [3.0], [6.0]]
    """
    return labelled_tap(
        fun,
        show if callback is None else callback,
        {},
        argnames=argnames,
        tags=tags,
        reduce=reduce,
        interval=interval,
        window=window,
        prefix=prefix,
        buffer=buffer,
        ordered=ordered,
        on_error=on_error,
    )


@says_what_was_meant("lox.tap")
def labelled_tap(
    fun: Function | None,
    callback: Callback,
    labels: dict[str, Any],
    *,
    argnames: str | Iterable[str] | None = None,
    tags: str | Iterable[str] | None = None,
    reduce: AnyReduction | Mapping[str, AnyReduction] | None = None,
    interval: int | None = None,
    window: int | None = None,
    prefix: str = "",
    buffer: int = 1,
    ordered: bool = True,
    on_error: str = "raise",
) -> Any:
    """`lox.tap`, of which each event the callback gets has labels among its counters.

    The labels are arrays of shape `()`, traced or not, by names that begin with `LABEL`. They arrive with the axis of
    events and those of the batches around the tap, and no handler further out sees them.
    """
    if not callable(callback):
        advice = " A logger has a tap of its own: logger.tap(f, run)." if hasattr(callback, "tap") else ""
        if isinstance(callback, (*ARRAY_LIKE, jax.Array)):
            advice = " To call the function, write lox.tap(f)(x)."
        raise LogValueError(f"The callback of lox.tap must be callable, got {callback!r}.{advice}")
    _transform.string("prefix", prefix)
    warns = _transform.choice("on_error", on_error, ("raise", "warn")) == "warn"
    check_window("lox.tap", reduce, interval, window)
    options = _Options(
        Selection.of(argnames, tags),
        bool(ordered),
        _transform.positive("interval", interval) or 1,
        _transform.positive("buffer", buffer) or 1,
        read_reductions(reduce),
        _transform.positive("window", window),
    )
    take = _describing(callback, prefix, options.reductions)
    names = options.names()
    site = _transform.site_of(names)

    def transform(f: Function) -> Function:
        tapped = _tapped(f, options, Channel(take, prefix, warns), labels)
        return _transform.checked(f, options, tapped, "lox.tap", site, names, heeds_rules=True)

    return _transform.decorate(fun, transform)


def _describing(callback: Callback, prefix: str, reductions: Reductions) -> Callback:
    """The callback, whose logs are told which of their keys are distributions: arrays do not say so on the host."""
    if not any(each.is_distribution for _, each in reductions):
        return callback
    of_key = dict(reductions)
    names = [name for name in of_key if name is not None]

    def distribution(key: str) -> Reducer[Any] | None:
        found = of_key.get(first_match(names, key.removeprefix(prefix)))
        return found if found is not None and found.is_distribution else None

    return lambda logs: callback(described(logs, distribution))


@dataclasses.dataclass(frozen=True)
class _Options:
    """The options of `lox.tap` on which the program depends."""

    selection: Selection
    ordered: bool
    interval: int
    buffer: int
    reductions: Reductions
    window: int | None

    def names(self) -> dict[str, tuple[str, ...]]:
        """The names and patterns that select logs, by keyword."""
        return self.selection.names() | {"reduce": tuple(key for key, _ in self.reductions if key is not None)}

    def call(self, fun: Function, channel: Any, labels: dict[str, Any], args: Any, kwargs: Any) -> Any:
        if self.ordered:
            _compat.need(_compat.Feature.ORDERED_TAP)
        endpoint = Endpoint(channel, labels)
        for handler, state in self._handlers(endpoint):
            fun = functools.partial(_under, handler, state, fun)
        token = ordering.set((*ordering.get(), self.selection) if self.ordered else ordering.get())
        try:
            return fun(*args, **kwargs)
        finally:
            ordering.reset(token)

    def _handlers(self, endpoint: Endpoint) -> Iterator[tuple[Handler, State]]:
        """The handler of the logs that are reduced, and around it that of the others, as far as there are."""
        keys = names_of(key for key, _ in self.reductions if key is not None)
        selection, forward = self.selection, recording.value
        if self.reductions:
            reduced = dataclasses.replace(selection, among=keys) if keys else selection
            common: dict[str, Any] = {"ordered": self.ordered, "reductions": self.reductions, "window": self.window}
            yield SummaryTap(selection=reduced, forward=forward or bool(keys), **common), Summary(endpoint, {})
            if not keys:
                return
            selection = dataclasses.replace(selection, without=keys)
        fixed: dict[str, Any] = {"selection": selection, "forward": forward, "ordered": self.ordered}
        if self.interval > 1 or self.buffer > 1:
            yield BufferedTap(interval=self.interval, buffer=self.buffer, **fixed), start(endpoint)
        else:
            yield Tap(**fixed), endpoint


def _under(handler: Handler, state: State, fun: Function, /, *args: Any, **kwargs: Any) -> Any:
    return _transform.run(handler, state, fun, args, kwargs)[0]


def _tapped(fun: Function, options: _Options, channel: Channel, labels: dict[str, Any]) -> Function:
    jitted = _jitted(fun, options) if _compat.is_jitted(fun) else None

    def tapped(*args: Any, **kwargs: Any) -> Any:
        if is_outermost() and not recording.value:
            _channel.release()
            with _channel.interruptible():
                if jitted is not None:
                    return jitted(channel.number, labels, *args, **kwargs)
                return call(*args, **kwargs)
        return call(*args, **kwargs)

    def call(*args: Any, **kwargs: Any) -> Any:
        number = channel_p.bind(channel=channel)
        # In a program that is being staged, the channel is part of it; but what is carried on is arrays.
        carries = options.interval > 1 or options.buffer > 1 or options.reductions
        staged = isinstance(number, jax.core.Tracer) and not carries
        return options.call(fun, channel if staged else number, labels, args, kwargs)

    weakref.finalize(tapped, _channel.close, channel)
    return tapped


@_compat.cached_by_function
def _jitted(fun: Function, options: _Options) -> Function | None:
    return _transform.jitted(fun, options.call)
