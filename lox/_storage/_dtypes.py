"""Arrays of any dtype as arrays of dtypes that NumPy knows in files."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from lox._keys import key_data


def name_of(dtype: np.dtype, impl: str | None) -> str:
    """The name of a dtype, which NumPy need not know; ``"key<rbg>"`` of the data of keys."""
    return dtype.name if impl is None else f"key<{impl}>"


def can_be_stored(dtype: np.dtype) -> bool:
    """Say whether files can have a dtype."""
    return _is_of_bits(dtype) or dtype.kind in "biufc"


def stored_dtype(name: str) -> np.dtype:
    """The dtype on disk of a dtype by name.

    Raises:
        TypeError: There is no such dtype.
    """
    if _impl(name) is not None:
        return np.dtype(np.uint32)
    dtype = jnp.dtype(name)
    return np.dtype(f"u{dtype.itemsize}") if _is_of_bits(dtype) else dtype


def as_stored(array: np.ndarray) -> np.ndarray:
    """An array as an array of the dtype on disk."""
    return array.view(f"u{array.dtype.itemsize}") if _is_of_bits(array.dtype) else array


def from_stored(array: np.ndarray, name: str) -> np.ndarray:
    """Return a stored array as one of this dtype."""
    impl = _impl(name)
    return array.view(jnp.dtype(name)) if impl is None else key_data(array, impl)


def _is_of_bits(dtype: np.dtype) -> bool:
    """Say whether a dtype is not NumPy's own, so that files have its bits as integers of the same size."""
    return dtype.isbuiltin == 2


def _impl(name: str) -> str | None:
    return name[4:-1] if name.startswith("key<") else None
