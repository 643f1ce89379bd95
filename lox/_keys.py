"""Typed PRNG keys as arrays of NumPy, which has no dtype for them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lox._arguments import untyped


class KeyData(np.ndarray[Any, Any]):
    """The data of typed PRNG keys, an array of their words, which says what keys they are of.

    Attributes:
        impl: Their implementation, so that `jax.random.wrap_key_data(data, impl=data.impl)` are the keys.
    """

    impl: str | None = None

    def __array_finalize__(self, source: Any) -> None:
        self.impl = getattr(source, "impl", None)


def key_data(words: np.ndarray, impl: str) -> KeyData:
    """The words of keys of this implementation."""
    data = words.view(KeyData)
    data.impl = impl
    return data


def impl_of(array: Any) -> str | None:
    """The implementation of typed keys, or of their data; None of other arrays."""
    if isinstance(array, KeyData):
        return array.impl
    return str(jax.random.key_impl(array)) if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key) else None


def on_host(array: Any) -> np.ndarray:
    """An array as JAX takes it, in the host's memory; of typed keys, their data."""
    if isinstance(array, np.ndarray):
        return array
    array = jnp.asarray(array)
    impl, words = impl_of(array), np.asarray(untyped(array))
    return words if impl is None else key_data(words, impl)
