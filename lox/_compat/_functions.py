"""Functions that JAX makes of those of users: flat ones, which store what they find out, or ones of some arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any


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


def function_of_arguments(fun: Any) -> tuple[Callable[..., Any], Sequence[int]]:
    """The function that JAX made one of some of its arguments of, as `jax.grad` does, and the places of these.

    Where JAX has other names for them, the function itself, without places.
    """
    around = inspect.getclosurevars(fun).nonlocals if inspect.isfunction(fun) else {}
    if callable(around.get("f")) and isinstance(around.get("dyn_argnums"), tuple):
        return around["f"], around["dyn_argnums"]
    return fun, ()
