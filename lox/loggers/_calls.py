"""Every k-th call of a function in a Python loop."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

from lox._exceptions import LogValueError
from lox._trace import is_called_from_python

Function = Callable[..., Any]


def some_calls(count: int, taken: Function, skipped: Function) -> Function:
    """A function that calls `taken` at its first call and each `count`-th after that, and `skipped` otherwise.

    Raises:
        LogValueError: When it is called where JAX traces. A `ValueError`.
    """
    if count == 1:
        return taken
    numbers = itertools.count()

    @functools.wraps(taken, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        if not is_called_from_python():
            raise LogValueError(
                "every_calls= counts the calls of a loop in Python, and JAX is tracing this call, as in jit, vmap and "
                "scan: how often it happens is not known. Apply jit inside, as in logger.tap(jax.jit(f), run, "
                "every_calls=10), or take every k-th event with interval=."
            )
        return (skipped if next(numbers) % count else taken)(*args, **kwargs)

    return call
