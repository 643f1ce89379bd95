"""Values as programs know them that know no JAX."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax import dtypes

from lox._keys import on_host


def standard(array: Any) -> np.ndarray:
    """An array in a dtype of NumPy: small floats as float32, small integers as eight bits, typed keys as their words.

    >>> import jax.numpy as jnp
    >>> standard(jnp.array([0.5, 2], jnp.bfloat16))
    array([0.5, 2. ], dtype=float32)
    """
    array = np.asarray(on_host(array) if isinstance(array, jax.Array) else array)
    if array.dtype.kind in "biufc":
        return array
    if dtypes.issubdtype(array.dtype, np.signedinteger):
        return array.astype(np.int8)
    return array.astype(np.uint8 if dtypes.issubdtype(array.dtype, np.integer) else np.float32)


def plain(value: Any) -> Any:
    """An array as numbers and lists of Python; what is none stays as it is."""
    return standard(value).tolist() if hasattr(value, "dtype") else value
