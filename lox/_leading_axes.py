"""Selection by a mask that covers the leading axes of what it selects, and leading axes of other sizes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from lox._sharding import explicit_sharding, sharded_alike, spec_of


def where(mask: Any, first: Any, second: Any) -> Any:
    """`first` where `mask`, whose axes are the leading ones of the result, else `second`."""
    shape = jnp.broadcast_shapes(jnp.shape(first), jnp.shape(second))
    first, second = (jnp.broadcast_to(operand, shape) for operand in (first, second))
    first, second = sharded_alike([first, second])
    if jnp.ndim(mask):
        places = range(jnp.ndim(mask))
        mask = jax.lax.broadcast_in_dim(mask, shape, places, out_sharding=explicit_sharding(first))
    return jax.lax.select(mask, first, second)


def shared(mask: Any, array: Any) -> Any:
    """The mask of an array that elements of the mask share: where it is true for one of those that share.

    The array has the first axes of the mask, or all, and they may be of size one.
    """
    shape = jnp.shape(array)[: jnp.ndim(mask)]
    lacking = tuple(range(len(shape), jnp.ndim(mask)))
    single = tuple(axis for axis, size in enumerate(shape) if size == 1 != jnp.shape(mask)[axis])
    mask = jnp.any(mask, axis=lacking) if lacking else mask
    return jnp.any(mask, axis=single, keepdims=True) if single else mask


def grown(array: Any, batch: tuple[int, ...]) -> Any:
    """The array with zeros in what its leading axes lack of a batch; an axis that is as large, or larger, stays."""
    lacks = [(0, max(size - have, 0)) for size, have in zip(batch, array.shape, strict=False)]
    lacks += [(0, 0)] * (array.ndim - len(batch))
    return jnp.pad(array, lacks) if any(lack for _, lack in lacks) else array


def broadcast_as(value: Any, array: Any, ndim: int) -> Any:
    """The array broadcast to the first `ndim` axes of a value, and sharded like it.

    It has the first of these axes, or all, and they may be of size one.
    """
    shape = jnp.shape(value)[:ndim]
    if jnp.shape(array) == shape:
        return array
    sharding = explicit_sharding(value)
    if sharding is not None:
        sharding = sharding.update(spec=spec_of(value, stop=ndim))
    return jax.lax.broadcast_in_dim(array, shape, range(jnp.ndim(array)), out_sharding=sharding)
