"""`lox.progress`: bars for the loops of a function."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping
from typing import Any, overload

from lox import _channel, _compat, _transform
from lox._ambient import begin_handler
from lox._arguments import describe
from lox._deliver import channel_p
from lox._effect import recording
from lox._exceptions import LogDataError, LogValueError
from lox._extras import extra
from lox._misspelt import says_what_was_meant
from lox._progress._bars import Bars
from lox._progress._board import Board
from lox._progress._chunks import begin
from lox._progress._names import Names
from lox._site import calling_site
from lox._unmatched import warn_unmatched
from lox._watch._points import LOOPS, Operations, matches
from lox._watch._resolve import seeing
from lox._watch._watch import run_observed

Function = Callable[..., Any]


@overload
def progress(
    fun: None = None,
    *,
    total: int | Mapping[str, int] | None = None,
    label: str | Mapping[str, str] | None = None,
    refresh: float = 10,
) -> Callable[[Function], Function]: ...
@overload
def progress(
    fun: Function,
    *,
    total: int | Mapping[str, int] | None = None,
    label: str | Mapping[str, str] | None = None,
    refresh: float = 10,
) -> Function: ...
@says_what_was_meant("lox.progress", "lox.progress(f)(x)")
def progress(
    fun: Function | None = None,
    *,
    total: int | Mapping[str, int] | None = None,
    label: str | Mapping[str, str] | None = None,
    refresh: float = 10,
) -> Any:
    """Show a progress bar for each loop of a function. Needs the extra `console`.

    Each outermost `scan`, `while_loop`, `fori_loop` and `lax.map` gets a bar as it runs: how many iterations are done,
    how many there are in a second, and, where the length is known, the time that is left. The loops may be in jitted
    functions, libraries, branches, `checkpoint`, `shard_map` and functions with derivative rules. A loop of a jitted
    function that Python calls again and again has one bar, which starts again.

    Under `vmap` there is one bar for all batch elements, since JAX runs one loop for them: the iterations are those of
    the slowest, and for a `while_loop` the bar says how many elements are done. ``jax.grad(lox.progress(f))`` shows the
    loops of the forward pass, and ``lox.progress(jax.grad(f))`` those of the backward pass as well.

    The compiled loop runs its iterations in chunks, and asks the host after each how long the next one is to be. A
    chunk takes a small part of the time between two updates, or one iteration where that takes longer: so the bar goes
    on when iterations suddenly take a hundred times as long. Run operation by operation, results and derivatives are
    bitwise those of the function; compiled, they are so within rounding, since XLA may fuse operations in another way.

    On a terminal the bars are drawn on standard error, below what the program prints; in a notebook, in an output of
    the cell. Elsewhere, as in a file or pipe, a line is printed every five seconds. A call that takes less than half a
    second shows nothing, nor does a test under pytest. A display that fails never ends the program: it warns once.

    Args:
        fun: The function: jitted or not. Without it, a decorator is returned.
        total: The number of iterations of loops whose length is not known, as that of a `while_loop` is not. Or one for
            each of several loops, by patterns of their paths: ``{"solve/while": 500}``.
        label: The text before the bars. By default it is the path of the loop, which `lox.points` lists. Or a text for
            each of several loops, by patterns of their paths. Nested loops that a pattern selects get a bar as well,
            which starts again in each iteration of the loop around: ``{"scan/while": "line search"}``.
        refresh: The largest number of times a second that the display changes. A terminal is drawn ten times a second.

    Returns:
        A function of the same signature and results.

    Raises:
        ImportError: rich is not installed.
        LogDataError: `total`, `label` or `refresh` has the wrong type. A `TypeError`.
        LogValueError: `refresh` or a total is not positive. A `ValueError`.

    Warns:
        SelectionWarning: A pattern matches no loop of the function.
        ProgressWarning: The display failed. The program goes on without it.

    >>> import jax, jax.numpy as jnp
    >>> import lox
    >>> @lox.progress(label="newton", total=20)
    ... @jax.jit
    ... def newton(x):
    ...     def step(guess):
    ...         return 0.5 * (guess + x / guess)
    ...     return jax.lax.while_loop(lambda guess: abs(guess**2 - x) > 1e-3, step, x)
    >>> print(newton(2.0))
    1.4142157
    """
    with extra("console", "lox.progress"):
        import rich.progress  # noqa: F401
    names = Names.of(total, label)
    if isinstance(refresh, bool) or not isinstance(refresh, int | float):
        raise LogDataError(f"refresh= of lox.progress must be a number, got {describe(refresh)}.")
    if not 0 < refresh < float("inf"):
        raise LogValueError(f"refresh= of lox.progress must be positive, got {refresh}.")
    site = calling_site()
    return _transform.decorate(fun, lambda f: _with_bars(f, names, float(refresh), site))


def _with_bars(fun: Function, names: Names, refresh: float, site: Any) -> Function:
    begin()
    board = Board(names, refresh)
    nested = names.nested()
    unchecked = set(names.patterns())

    def call(number: Any, args: Any, kwargs: Any) -> Any:
        make = functools.partial(Bars, nested=nested)
        return run_observed(
            lambda forwards: make(forwards=forwards), number, Operations(unheard=True), fun, args, kwargs
        )

    def checked(number: Any, args: Any, kwargs: Any) -> Any:
        with seeing() as seen:
            outs = call(number, args, kwargs)
        loops = [point for point in seen.values() if point.kind in LOOPS]
        for keyword, pattern in sorted(unchecked):
            if not any(matches(pattern, point) for point in loops):
                warn_unmatched("lox.progress", keyword, pattern, {point.path for point in loops}, site)
        unchecked.clear()
        return outs

    @functools.wraps(fun, updated=())
    def progressing(*args: Any, **kwargs: Any) -> Any:
        if recording.value:
            begin_handler()
        number = channel_p.bind(channel=board)
        run = checked if unchecked else call
        if not _compat.runs_at_once(_compat.current_trace()):
            return run(number, args, kwargs)
        _channel.release()
        with board.calling(), _channel.interruptible():
            return run(number, args, kwargs)

    weakref.finalize(progressing, _channel.close, board)
    return progressing
