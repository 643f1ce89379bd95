"""What the public transformations share: how a function is decorated and run under a handler."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import lox._autodiff as _autodiff  # noqa: F401  (registers how JAX's transformations meet logs)
import lox._batching as _batching  # noqa: F401
import lox._rules as _rules  # noqa: F401
from lox._effect import recording
from lox._handler import Handler, under

Function = Callable[..., Any]


def decorate(fun: Function | None, transform: Callable[[Function], Function]) -> Any:
    """Applies a transformation, or returns it as a decorator when there is no function yet."""
    if fun is None:
        return lambda f: decorate(f, transform)
    if not callable(fun):
        raise TypeError(f"lox transforms functions, got {fun!r} of type {type(fun).__name__}.")
    return transform(fun)


def run(handler: Handler, fun: Function, args: Any, kwargs: Any) -> tuple[Any, tuple[Any, ...]]:
    """Calls `fun` under a handler; returns its result and the nodes that were collected."""
    with recording(True):
        return under(handler, fun)(*args, **kwargs)


def handle(fun: Function, handler: Handler, silent: bool) -> Function:
    """`fun` under a handler that only changes what a handler further out receives.

    Args:
        fun: The function.
        handler: The handler.
        silent: Whether it lets no log through, so that the function need not log at all.
    """

    @functools.wraps(fun, updated=())
    def handled(*args: Any, **kwargs: Any) -> Any:
        if not recording.value:
            return fun(*args, **kwargs)
        with recording(not silent):
            return under(handler, fun)(*args, **kwargs)[0]

    return handled
