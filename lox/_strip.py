"""`lox.strip` and `lox.keep`: logs removed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, overload

from lox import _transform
from lox._events import Logs
from lox._handler import Filter, State
from lox._misspelt import says_what_was_meant
from lox._select import Selection


@dataclasses.dataclass(frozen=True)
class Strip(Filter):
    """Removes the selected logs, or the others."""

    selection: Selection
    removes_selected: bool

    def backward(self, state: State) -> tuple[Filter, State]:
        return self, state

    def takes(self, key: str, tags: tuple[str, ...]) -> bool:
        """Say whether it removes the logs of a key and of a call with these tags."""
        return self.selection.has(key, tags) == self.removes_selected

    def rewrite(self, state: State, logs: Logs) -> Logs:
        selected, others = self.selection.split(logs)
        return others if self.removes_selected else selected


Function = Callable[..., Any]


@overload
def strip(
    fun: None = None, *, argnames: str | Iterable[str] | None = None, tags: str | Iterable[str] | None = None
) -> Callable[[Function], Function]: ...
@overload
def strip(
    fun: Function, *, argnames: str | Iterable[str] | None = None, tags: str | Iterable[str] | None = None
) -> Function: ...
@says_what_was_meant("lox.strip", "lox.strip(f)(x)")
def strip(
    fun: Function | None = None,
    *,
    argnames: str | Iterable[str] | None = None,
    tags: str | Iterable[str] | None = None,
) -> Any:
    """Remove logs from a function: all of them, or those that `argnames` and `tags` select.

    Args:
        fun: The function. Without it, a decorator is returned.
        argnames: A key or keys to remove, or patterns: `*` stands for any characters of a key but slashes, as in
            ``"train/*"``, and `**` for any characters. None does not restrict; an empty iterable selects nothing.
        tags: A tag or tags, or patterns; a log call is selected when it carries any of them. With `argnames`, both
            must match.

    Returns:
        A function of the same signature and results.

    >>> import jax.numpy as jnp
    >>> import lox
    >>> def f(x):
    ...     lox.log({"x": x, "y": 2 * x})
    ...     return x
    >>> _, logs = lox.spool(lox.strip(f, argnames="x"))(jnp.float32(1))
    >>> list(logs)
    ['y']
    """
    selection = Selection.of(argnames, tags)
    handler = Strip(selection, removes_selected=True)
    silent = selection == Selection()
    return _transform.decorate(fun, lambda f: _transform.handle(f, handler, silent, handler.takes))


@overload
def keep(
    fun: None = None, *, argnames: str | Iterable[str] | None = None, tags: str | Iterable[str] | None = None
) -> Callable[[Function], Function]: ...
@overload
def keep(
    fun: Function, *, argnames: str | Iterable[str] | None = None, tags: str | Iterable[str] | None = None
) -> Function: ...
@says_what_was_meant("lox.keep", "lox.keep(f)(x)")
def keep(
    fun: Function | None = None,
    *,
    argnames: str | Iterable[str] | None = None,
    tags: str | Iterable[str] | None = None,
) -> Any:
    """Remove all logs from a function except those that `argnames` and `tags` select.

    Args:
        fun: The function. Without it, a decorator is returned.
        argnames: A key or keys to keep, or patterns: `*` stands for any characters of a key but slashes, as in
            ``"train/*"``, and `**` for any characters. None does not restrict; an empty iterable selects nothing.
        tags: A tag or tags, or patterns; a log call is selected when it carries any of them. With `argnames`, both
            must match.

    Returns:
        A function of the same signature and results.

    >>> import jax.numpy as jnp
    >>> import lox
    >>> def f(x):
    ...     lox.log({"loss": x}, tags=["metric"])
    ...     lox.log({"norm": x}, tags=["debug"])
    ...     return x
    >>> _, logs = lox.spool(lox.keep(f, tags="metric"))(jnp.float32(1))
    >>> list(logs)
    ['loss']
    """
    selection = Selection.of(argnames, tags)
    handler = Strip(selection, removes_selected=False)
    return _transform.decorate(fun, lambda f: _transform.handle(f, handler, False, handler.takes))
