"""Runs what encloses points, so that these get longer paths."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.extend as jex

from lox import _compat
from lox._trace import HandlerTrace, under
from lox._watch import _backward
from lox._watch._inside import Inside
from lox._watch._levels import Level, Parent, levels_begun
from lox._watch._points import Numbers, Part


def enclosing(
    level: Level, parts: tuple[Part, ...], numbers: Numbers = (), scopes: Numbers = (), loops: int = 0
) -> Inside:
    """The handler of what encloses an operation that is bound now, with what encloses that in turn."""
    trace = _compat.current_trace()
    outer = trace.handler if isinstance(trace, HandlerTrace) and isinstance(trace.handler, Inside) else None
    return Inside(parts, numbers, scopes, level.home, loops=loops, outer=outer)


def outside(inside: Inside) -> contextlib.AbstractContextManager[Any]:
    """The context outside all that encloses an operation: nested functions take few frames of Python's stack."""
    if inside.outer is None:
        return contextlib.nullcontext()
    return jex.core.set_current_trace(_compat.current_trace().parent_trace)


def run_inside(inside: Inside, fun: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call a function, with longer paths of the marks that it emits."""
    with outside(inside):
        return under(inside, fun)(None, *args, **kwargs)[0]


def beside(
    level: Level, parent: Parent, counts: Mapping[str, int], inside: Inside, run: Callable[[Inside], Any]
) -> Any:
    """Run something that is no part of paths, and number what comes after it in its parent.

    Args:
        level: The level that runs it.
        parent: Its parent.
        counts: The number of parts of each name in it, as far as it is known before it runs.
        inside: The handler of what is in it.
        run: A function that runs it under this handler.
    """
    with _backward.numbered(level, parent.numbers), levels_begun(inside, level) as (inside, levels):
        outs = run(inside)
    counts = dict(counts)
    for inner in levels:
        counts |= {name: max(counts.get(name, 0), count) for name, count in inner.counts.items()}
    parent.add(counts)
    return outs
