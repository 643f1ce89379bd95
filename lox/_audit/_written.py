"""Whether people wrote an operation, or JAX did for something else that they wrote."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lox._audit._location import NOWHERE, is_internal, locate

Functions = frozenset[tuple[str, str]]
"""Functions by their file and name."""


def is_written(equation: Any, as_in: Callable[[], Functions]) -> bool:
    """Whether an operation is written in a program rather than being a detail of a function of JAX.

    JAX computes hashes, indices and random numbers with integers that may wrap around, as they should.
    """
    return locate(equation) != NOWHERE and _inside(equation) <= as_in()


def is_squaring(equation: Any) -> bool:
    """Whether an operation is of `jnp.power` of integers, which computes more squares than it uses."""
    return any(function == "power" for _, function in _inside(equation))


def _inside(equation: Any) -> Functions:
    """The functions of JAX, lox and Python through which an equation came about."""
    traceback = equation.source_info.traceback
    found: set[tuple[str, str]] = set()
    for frame in traceback.frames if traceback is not None else ():
        if not is_internal(frame.file_name) or frame.file_name == __file__:
            break
        found.add((frame.file_name, frame.function_name))
    return frozenset(found)


def _functions(written: Callable[..., Any], *args: Any) -> Functions:
    """The functions through which the operations of a function come about."""
    with jax.numpy_dtype_promotion("standard"):
        jaxprs = [
            jax.make_jaxpr(written)(*args),
            jax.make_jaxpr(jax.vmap(written))(*(arg[None] for arg in args)),
            jax.make_jaxpr(lambda *args: jax.vjp(written, *args)[0])(*args),
        ]
    return frozenset().union(*(_inside(equation) for jaxpr in jaxprs for equation in jaxpr.eqns))


@functools.cache
def arithmetic() -> Functions:
    def written(a: Any, b: Any, c: Any) -> Any:
        sums = (a + b, jnp.add(a, b), jax.lax.add(a, b), a - b, a * b, 2 * a, a**2, jnp.square(a))
        return sums, a.sum(), jnp.sum(a), jnp.cumsum(a), jax.lax.cumsum(a), a + c

    return _functions(written, *(np.zeros(shape, np.float32) for shape in ((3,), (3,), (2, 3))))


@functools.cache
def conversion() -> Functions:
    def written(a: Any) -> Any:
        x = a.astype(jnp.float32)
        return x, x.astype(jnp.int8), jnp.int8(x), jax.lax.convert_element_type(x, jnp.int8), a * x, jnp.asarray(x, int)

    return _functions(written, np.zeros(3, np.int32))


@functools.cache
def counting() -> Functions:
    return _functions(lambda x: x + jnp.arange(3, dtype=x.dtype), np.zeros(3, np.float32))
