"""`lox.watch` and `lox.points`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, overload

import jax

from lox import _compat, _transform
from lox._ambient import begin_handler
from lox._arguments import describe, names
from lox._compat import _tracebacks
from lox._effect import recording, watching
from lox._exceptions import LogDataError, SelectionWarning
from lox._handler import DropAll
from lox._misspelt import says_what_was_meant
from lox._site import calling_site, warn_at
from lox._trace import under
from lox._unmatched import warn_unmatched
from lox._watch._enclosing import beside, enclosing, run_inside
from lox._watch._levels import level_of
from lox._watch._observer import observed
from lox._watch._points import Operations, Point, Points, Selector
from lox._watch._resolve import Resolve, Resolver, Watcher, What, seeing
from lox._watch._scopes import enters, leaves, of_modules
from lox._watch._statistics import statistics

_IN_PYTHON = (
    "Under jax.disable_jit, Python runs loops, branches and jitted functions. lox.watch and lox.points do not see "
    "these."
)

Function = Callable[..., Any]
At = str | Iterable[str] | Callable[[Point], Any]


@functools.cache
def _begin() -> None:
    """Let JAX tell what programs bind, from the first watched function on."""
    _tracebacks.hide_lox()
    _compat.observe_bind(observed)
    _compat.observe_scopes(enters, leaves)


@overload
def watch(
    fun: None = None,
    *,
    at: At,
    what: What | None = None,
    tags: str | Iterable[str] = ("watch",),
    prefix: str = "",
) -> Callable[[Function], Function]: ...
@overload
def watch(
    fun: Function,
    *,
    at: At,
    what: What | None = None,
    tags: str | Iterable[str] = ("watch",),
    prefix: str = "",
) -> Function: ...
@says_what_was_meant("lox.watch", 'lox.watch(f, at="**")(x)')
def watch(
    fun: Function | None = None,
    *,
    at: At,
    what: What | None = None,
    tags: str | Iterable[str] = ("watch",),
    prefix: str = "",
) -> Any:
    """Log values at points of a function without log calls: its loops, layers, branches and jitted functions.

    The watched function logs as if the log calls were written in it, for the handler around: `lox.spool`, `lox.tap` or
    a logger. Without a handler it is the function itself. What holds for log calls holds for points, inside `jit`,
    `vmap`, `grad`, `checkpoint` and custom rules: an event happens once, where it happens, for each batch element. Only
    branches need not have the same points: `lox.spool` masks the events of those that do not run, without `unify=True`.

    Run operation by operation, results and derivatives are bitwise those of the function. Compiled, they are bitwise
    those of the function with the log calls written in it: XLA may fuse a program with more outputs in another way, so
    that the last bits differ from those of the function alone.

    Args:
        fun: The function: jitted or not, or one that runs Python around jitted functions. Without it, a decorator is
            returned.
        at: The points. A pattern of their paths, or several: `*` stands for any characters but slashes, and `**` for
            any characters, as in ``"**/Dense_*"``. A part without a number stands for all numbers: ``"scan/while"``
            matches ``"scan[1]/while"``. A primitive is selected where the pattern ends with its name, as in
            ``"**/dot_general"``. Or a function that takes a `Point` and tells whether it is selected. `lox.points`
            lists the points of a function.
        what: ``what(point, values)`` returns the mapping to log of a point, or None for nothing. `values` is a tuple of
            arrays: of a loop its carry after the iteration, or what `scan` stacks of it if it carries nothing; of a
            name scope the results of the last operation in it, of a module of flax.linen what it returns; of a scope
            in a backward pass the cotangents that leave it; else the results. It gets the values of one event of one
            batch element, is traced, and must be pure. By default a scalar is logged as it is, as ``value``, and an
            array as ``mean``, ``std``, ``min``, ``max`` and ``nonfinite``, the number of elements that are NaN or
            infinite. Where there are several values, each has its number before its name: ``0/mean``.
        tags: A tag or tags of the logs.
        prefix: Put before every key. A key is the prefix, the path of the point, a slash, and the name that `what`
            gave.

    Returns:
        A function of the same signature and results.

    Raises:
        LogDataError: `at`, `what`, `tags` or `prefix` has the wrong type. A `TypeError`.
        UnsupportedPrimitiveError: When the function runs: a selected point cannot be watched; `lox.points` says why.

    Warns:
        SelectionWarning: A pattern matches no point of the function; or `jax.disable_jit` is on, so that Python runs
            loops, branches and jitted functions, and lox does not see these.

    >>> import jax, jax.numpy as jnp
    >>> import lox
    >>> def newton(x):
    ...     def step(guess):
    ...         return 0.5 * (guess + x / guess)
    ...     return jax.lax.while_loop(lambda guess: abs(guess**2 - x) > 1e-3, step, x)
    >>> root, logs = lox.spool(lox.watch(newton, at="while"), max_iters=8)(2.0)
    >>> print(logs.valid("while/value"))
    [1.5       1.4166667 1.4142157]
    """
    if what is not None and not callable(what):
        raise LogDataError(f"what= of lox.watch must be a function, got {describe(what)}.")
    if not isinstance(prefix, str):
        raise LogDataError(f"prefix= of lox.watch must be a string, got {describe(prefix)}.")
    watcher = Watcher(Selector.of(at), what or statistics, names(tags, "tags= of lox.watch", ""), prefix)
    site = calling_site()
    return _transform.decorate(fun, lambda f: _watched(f, watcher, site))


def _watched(fun: Function, watcher: Watcher, site: Any) -> Function:
    is_checked = not watcher.selector.patterns

    @functools.wraps(fun, updated=())
    def watched(*args: Any, **kwargs: Any) -> Any:
        nonlocal is_checked
        if not recording.value:
            return fun(*args, **kwargs)
        begin_handler()
        if is_checked:
            return _run(fun, watcher, args, kwargs, site)
        with seeing() as points:
            outs = _run(fun, watcher, args, kwargs, site)
        is_checked = True
        matched = set[str]().union(*map(watcher.selector.matched, points.values()))
        there = [path for path, point in points.items() if point.kind != "primitive"]  # Those have been named.
        for pattern in watcher.selector.patterns:
            if pattern not in matched:
                warn_unmatched("lox.watch", "at", pattern, there, site)
        return outs

    return watched


def _run(fun: Function, watcher: Watcher, args: Any, kwargs: Any, site: Any) -> Any:
    if jax.config.jax_disable_jit:  # type: ignore[attr-defined]
        warn_at(site, _IN_PYTHON, SelectionWarning)
    operations = watcher.selector.operations()
    return run_observed(
        lambda forwards: Resolve(watcher=watcher, forwards=forwards), None, operations, fun, args, kwargs
    )


def run_observed(
    resolver: Callable[[bool], Resolver], state: Any, operations: Operations, fun: Function, args: Any, kwargs: Any
) -> Any:
    """Call a function whose points are marked.

    Args:
        resolver: A function that makes the handler of the marks, and is told whether another one is around.
        state: Its state.
        operations: The operations that are marked.
        fun: The function.
        args: Its arguments.
        kwargs: Its keyword arguments.
    """
    _begin()
    around = watching.value
    if around is not None:
        operations |= around
    handler = resolver(around is not None)

    def run(*args: Any, **kwargs: Any) -> Any:
        with watching(operations), of_modules():
            return under(handler, fun)(state, *args, **kwargs)[0]

    level = None if around is None else level_of(_compat.current_trace())
    if level is None:
        return run(*args, **kwargs)
    parent = level.parent
    inside = enclosing(level, parent.parts, parent.numbers, parent.numbers)
    return beside(level, parent, {}, inside, lambda inside: run_inside(inside, run, args, kwargs))


@says_what_was_meant("lox.points", "lox.points(f)(x)")
def points(fun: Function) -> Callable[..., Points]:
    """Make a function that lists its points, at which `lox.watch` can log. The function runs once.

    Args:
        fun: The function.

    Returns:
        A function of the arguments of `fun`, that returns a list with each `Point` that the function came to, but for
        those of primitives. It prints as a table, and says which points cannot be watched, and why.

    >>> import jax, jax.numpy as jnp
    >>> import lox
    >>> @jax.jit
    ... def model(x):
    ...     with jax.named_scope("layer"):
    ...         x = jnp.tanh(x)
    ...     return jax.lax.scan(lambda c, _: (c + 1, None), x, length=3)[0]
    >>> [point.path for point in lox.points(model)(1.0)]
    ['model/layer', 'model/scan', 'model']
    """

    site = calling_site()

    @functools.wraps(fun, updated=())
    def found(*args: Any, **kwargs: Any) -> Points:
        with recording(True), seeing() as seen:
            under(DropAll(), lambda: _run(fun, Watcher(Selector(), statistics, (), ""), args, kwargs, site))(None)
        return Points(point for point in seen.values() if point.kind != "primitive")

    return _transform.decorate(fun, lambda _: found)
