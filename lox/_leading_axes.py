"""Selection by a mask that covers the leading axes of what it selects."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, PartitionSpec


def where(mask: Any, first: Any, second: Any) -> Any:
    """`first` where `mask`, whose axes are the leading ones of the result, else `second`."""
    shape = jnp.broadcast_shapes(jnp.shape(first), jnp.shape(second))
    first, second = (jnp.broadcast_to(operand, shape) for operand in (first, second))
    if jnp.ndim(mask):
        places = range(jnp.ndim(mask))
        mask = jax.lax.broadcast_in_dim(mask, shape, places, out_sharding=explicit_sharding(first))
    return jax.lax.select(mask, first, second)


def broadcast_as(value: Any, array: Any, ndim: int) -> Any:
    """The array broadcast to the first `ndim` axes of a value, and sharded like it.

    It has the first of these axes, or all, and they may be of size one.
    """
    shape = jnp.shape(value)[:ndim]
    if jnp.shape(array) == shape:
        return array
    sharding = explicit_sharding(value)
    if sharding is not None:
        sharding = sharding.update(spec=PartitionSpec(*(*sharding.spec, *[None] * ndim)[:ndim]))
    return jax.lax.broadcast_in_dim(array, shape, range(jnp.ndim(array)), out_sharding=sharding)


def sharded_as(value: Any, array: Any) -> Any:
    """The array, whose leading axes are those of the value as far as both have them, sharded like the value there."""
    sharding = explicit_sharding(value)
    if sharding is None:
        return array
    spec = (*sharding.spec, *[None] * jnp.ndim(array))[: jnp.ndim(array)]
    return jax.sharding.reshard(array, PartitionSpec(*spec))


def explicit_sharding(value: Any) -> Any:
    """The sharding that is part of the type of a value, or None."""
    sharding = jax.typeof(value).sharding
    return sharding if AxisType.Explicit in sharding.mesh.axis_types else None
