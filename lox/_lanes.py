"""Selection by a mask that covers the leading axes of what it selects, for every kind of array."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def where(mask: Any, first: Any, second: Any) -> Any:
    """`first` where `mask`, whose axes are the leading ones of the result, else `second`."""
    dtype = jnp.result_type(first)
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):  # Not every backend selects typed keys.
        data = where(mask, jax.random.key_data(first), jax.random.key_data(second))
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(first))
    shape = jnp.broadcast_shapes(jnp.shape(first), jnp.shape(second))
    mask = jax.lax.expand_dims(mask, range(jnp.ndim(mask), len(shape)))
    operands = (jnp.broadcast_to(operand, shape) for operand in (mask, first, second))
    return jax.lax.select(*operands)
