"""Checks that what a benchmark compares is in the programs that it times.

JAX traces a function once: one that was traced without callbacks stays without them, and is timed as if it had them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax

import lox

Function = Callable[..., Any]

_CALLBACK = re.compile(r'custom_call_target="[^"]*python[^"]*callback[^"]*"')


def host_calls(function: Function, *args: Any) -> int:
    """How many calls of the host are in the compiled program of a function, which may be jitted."""
    jitted = function if hasattr(function, "lower") else jax.jit(lambda *args: function(*args))
    return len(_CALLBACK.findall(jitted.lower(*args).compile().as_text()))


def calling(function: Function, *args: Any, least: int = 1) -> Function:
    """The function, whose compiled program calls the host.

    Raises:
        AssertionError: It has less calls than `least`.
    """
    if (found := host_calls(function, *args)) < least:
        raise AssertionError(f"The compiled program has {found} calls of the host, and is to have at least {least}.")
    return function


def silent(function: Function, *args: Any) -> Function:
    """The function, whose compiled program does not call the host.

    Raises:
        AssertionError: It does.
    """
    if found := host_calls(function, *args):
        raise AssertionError(f"The compiled program has {found} calls of the host, and is to have none.")
    return function


def returning(function: Function, *args: Any, events: int = 1) -> Function:
    """The function, which returns `(out, logs)` with at least so many events.

    Raises:
        AssertionError: It does not.
    """
    _, logs = jax.eval_shape(function, *args)
    found = sum(max(1, leaf.shape[0] if leaf.shape else 1) for leaf in jax.tree.leaves(logs))
    if found < events:
        raise AssertionError(f"The function returns {found} logged values, and is to return at least {events}.")
    return function


def logging(function: Function, *args: Any) -> Function:
    """The function, which has log calls.

    Raises:
        AssertionError: It has none.
    """
    if not len(lox.sites(function)(*args)):
        raise AssertionError("The function has no log call.")
    return function
