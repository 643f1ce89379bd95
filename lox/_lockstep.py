"""Loops that a `vmap` around runs until the last batch element is done, without a copy of each array that they carry.

Where the predicate of a `while_loop` is batched, JAX selects between the old and the new value of every carried
array, in each iteration. For a large buffer that costs more than the rest of the loop. Here the loop carries its
predicate, and lets finished elements stand still itself: `any_live` makes a predicate that no `vmap` batches, and
`settle` selects the values that need it. Without a `vmap`, both compile to nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.extend as jex
import jax.numpy as jnp
from jax.interpreters import ad, batching, mlir

from lox import _compat
from lox._leading_axes import where

any_live_p = jex.core.Primitive("lox_any_live")
settle_p = jex.core.Primitive("lox_settle")


def any_live(live: Any) -> Any:
    """Say whether any batch element goes on, for the elements of each `vmap` around.

    Args:
        live: Whether this element goes on, a bool of shape `()`.
    """
    return any_live_p.bind(live)


def settle(live: Any, new: Any, old: Any) -> Any:
    """The new value of an element that goes on, which all do without a `vmap` around, and the old one of another."""
    return settle_p.bind(live, new, old)


@any_live_p.def_impl
@any_live_p.def_abstract_eval
def _live(live: Any) -> Any:
    return live


@settle_p.def_impl
@settle_p.def_abstract_eval
def _new(live: Any, new: Any, old: Any) -> Any:
    del live, old
    return new


mlir.register_lowering(any_live_p, lambda ctx, live: [live])
mlir.register_lowering(settle_p, lambda ctx, live, new, old: [new])


def _batch_live(args: Sequence[Any], dims: Sequence[Any]) -> tuple[Any, Any]:
    return any_live(jnp.any(args[0], dims[0])), None


def _batch_settle(args: Sequence[Any], dims: Sequence[Any]) -> tuple[Any, Any]:
    (size,) = {arg.shape[dim] for arg, dim in zip(args, dims, strict=True) if dim is not None}
    live, new, old = (
        jnp.broadcast_to(arg, (size, *arg.shape)) if dim is None else jnp.moveaxis(arg, dim, 0)
        for arg, dim in zip(args, dims, strict=True)
    )
    return (settle(args[0], new, old) if dims[0] is None else where(live, new, old)), 0


def _jvp_settle(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    live, _, _ = primals
    _, new, old = tangents
    out = settle_p.bind(*primals)
    if _compat.is_zero(new) and _compat.is_zero(old):
        return out, new
    return out, settle(live, _compat.instantiate(new), _compat.instantiate(old))


batching.primitive_batchers[any_live_p] = _batch_live
batching.primitive_batchers[settle_p] = _batch_settle
ad.primitive_jvps[settle_p] = _jvp_settle
