"""Functions that JAX makes of those of users: flat ones, which store what they find out, or ones of some arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from jax.extend.linear_util import StoreException


def renew(fun: Any) -> None:
    """Make a flat function of JAX's as if it had not run; what it stores may be stored once."""
    for store in fun.stores:
        if store is not None:
            store.reset()


def renewed(fun: Any) -> Callable[..., Any]:
    """A flat function of JAX's, callable more than once."""

    def call(*args: Any) -> Any:
        renew(fun)
        return fun.call_wrapped(*args)

    return call


def settle(fun: Any, *rules: Any) -> None:
    """Make a flat function as if it had not run, if one of its rules has: under several handlers both may have.

    What such a function stores may be stored by it or by a rule, not by both.
    """
    if any(map(_has_run, rules)) and _has_run(fun):
        renew(fun)


def _has_run(fun: Any) -> bool:
    return any(_occupied(store) for store in fun.stores if store is not None)


def _occupied(store: Any) -> bool:
    try:
        store.val  # noqa: B018  (the only way to ask)
    except StoreException:
        return False
    return True


def function_of_arguments(fun: Any) -> tuple[Callable[..., Any], Sequence[int]]:
    """The function that JAX made one of some of its arguments of, as `jax.grad` does, and the places of these.

    Where JAX has other names for them, the function itself, without places.
    """
    around = inspect.getclosurevars(fun).nonlocals if inspect.isfunction(fun) else {}
    if callable(around.get("f")) and isinstance(around.get("dyn_argnums"), tuple):
        return around["f"], around["dyn_argnums"]
    return fun, ()
