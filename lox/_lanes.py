"""Selection by a mask that covers the leading axes of what it selects."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def where(mask: Any, first: Any, second: Any) -> Any:
    """`first` where `mask`, whose axes are the leading ones of the result, else `second`."""
    shape = jnp.broadcast_shapes(jnp.shape(first), jnp.shape(second))
    mask = jax.lax.expand_dims(mask, range(jnp.ndim(mask), len(shape)))
    operands = (jnp.broadcast_to(operand, shape) for operand in (mask, first, second))
    return jax.lax.select(*operands)
