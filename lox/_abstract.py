"""Functions as programs of their arrays alone, to be traced without being run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np


def abstractly(
    fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Callable[..., Any], list[int], list[Any]]:
    """Of a function and its arguments, what `jax.make_jaxpr` takes.

    Args:
        fun: The function.
        args: Its positional arguments; arrays may be `jax.ShapeDtypeStruct`s.
        kwargs: Its keyword arguments.

    Returns:
        The function of the arrays among the leaves of the arguments, whose other leaves are passed on as they are; the
        places of the arrays among the leaves; and the arrays.
    """
    leaves, structure = jax.tree.flatten((args, kwargs))
    traced = [place for place, leaf in enumerate(leaves) if _is_array(leaf)]

    def flat(*arrays: Any) -> Any:
        filled = list(leaves)
        for place, array in zip(traced, arrays, strict=True):
            filled[place] = array
        args, kwargs = jax.tree.unflatten(structure, filled)
        return fun(*args, **kwargs)

    return flat, traced, [leaves[place] for place in traced]


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, (jax.Array, np.ndarray, np.generic, jax.ShapeDtypeStruct))
