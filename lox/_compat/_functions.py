"""The flat functions under custom rules, which store what they find out when they run."""

from __future__ import annotations

from collections.abc import Callable
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
