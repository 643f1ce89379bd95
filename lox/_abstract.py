"""The program of a function: it is traced with abstract arguments, and nothing is computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from lox import _compat
from lox._effect import recording

ARRAYS = (jax.Array, np.ndarray, np.generic, jax.ShapeDtypeStruct)


def trace(fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, list[int]]:
    """The program of a function, log calls included.

    Args:
        fun: The function.
        args: Its positional arguments; arrays may be `jax.ShapeDtypeStruct` objects.
        kwargs: Its keyword arguments.

    Returns:
        The jaxpr, whose inputs are the arrays among the leaves of the arguments, while `fun` gets other leaves as
        they are; and the places of the arrays among the leaves.
    """
    leaves, structure = jax.tree.flatten((args, kwargs))
    traced = [place for place, leaf in enumerate(leaves) if is_array(leaf)]

    def flat(*arrays: Any) -> Any:
        filled = list(leaves)
        for place, array in zip(traced, arrays, strict=True):
            filled[place] = array
        args, kwargs = jax.tree.unflatten(structure, filled)
        return fun(*args, **kwargs)

    try:
        with recording(True):
            return jax.make_jaxpr(flat)(*(leaves[place] for place in traced)), traced
    except NotImplementedError as error:
        refused = _compat.refusal(error)
        if refused is None:
            raise
        raise refused from error


def is_array(leaf: Any) -> bool:
    """Say whether a value is an array of a kind that JAX has, unlike strings, dates, objects and records."""
    if not isinstance(leaf, ARRAYS):
        return False
    try:
        jax.typeof(leaf)
    except (TypeError, ValueError):  # The latter for masked arrays.
        return False
    return True
