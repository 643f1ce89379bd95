"""Over which axes of a mesh values vary in a `shard_map`, and primitives that change nothing else about them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend as jex
from jax.interpreters import ad, batching, mlir


def varying_axes(value: Any) -> frozenset[Any]:
    """The manual mesh axes over which a value, concrete or abstract, varies (`vma` until jax 0.11, then in `mat`)."""
    aval = value if isinstance(value, jax.core.ShapedArray) else jax.typeof(value)
    if hasattr(aval, "mat"):
        return frozenset(aval.mat.varying)
    return frozenset(getattr(aval, "vma", ()))


def vary(value: Any, axes: Sequence[Any]) -> Any:
    """The value, marked as varying over these manual mesh axes (`pvary` until jax 0.11, then `pcast`)."""
    missing = tuple(name for name in axes if name not in varying_axes(value))
    if not missing:
        return value
    if hasattr(jax.lax, "pcast"):
        return jax.lax.pcast(value, missing, to="varying")
    return jax.lax.pvary(value, missing)


def vary_in_branch(value: Any, axes: Sequence[Any]) -> Any:
    """The same in a branch of a `cond`.

    JAX runs all branches when it batches the predicate, with operands that vary like it, which `pvary` refuses.
    """
    here = jax.sharding.get_abstract_mesh().manual_axes  # None where JAX lowers what was traced on shards.
    missing = [name for name in axes if name in here and name not in varying_axes(value)]
    return vary_p.bind(value, axes=tuple(missing)) if missing else value


def unvary(value: Any, axes: frozenset[Any]) -> Any:
    """The value, marked as varying over no more than these axes, although it does.

    JAX selects what finished elements of a batched `while_loop` keep when types are checked already, and so does the
    same without telling: the type of such a loop may say that a value is the same on all shards when it is not.
    """
    return value if varying_axes(value) <= axes else unvary_p.bind(value, axes=axes)


def _varying_over(aval: Any, axes: frozenset[Any]) -> Any:
    sharding = aval.sharding.update(mesh=jax.sharding.get_abstract_mesh())
    if hasattr(aval, "mat"):
        return aval.update(sharding=sharding, manual_axis_type=aval.mat.update(varying=axes))
    return aval.update(sharding=sharding, vma=axes)


def _sum_over_new(cotangent: Any, value: Any, *, axes: tuple[Any, ...]) -> list[Any]:
    return [jax.lax.psum(cotangent, tuple(frozenset(axes) - varying_axes(value.aval)))]


def identity(name: str, type_of: Callable[..., Any], transpose: Callable[..., Any]) -> Any:
    """A primitive that changes nothing but the type of a value.

    Args:
        name: Its name.
        type_of: Gives the type of its result, of that of the value and its parameters.
        transpose: Gives the cotangent of the value in a list, of that of the result and the value.
    """
    primitive = jex.core.Primitive(name)
    primitive.def_impl(lambda value, **params: value)
    primitive.def_abstract_eval(type_of)
    mlir.register_lowering(primitive, lambda ctx, value, **params: [value])
    batching.defvectorized(primitive)
    ad.deflinear2(primitive, transpose)
    return primitive


vary_p = identity("lox_vary", lambda aval, *, axes: _varying_over(aval, varying_axes(aval).union(axes)), _sum_over_new)
unvary_p = identity(
    "lox_unvary",
    lambda aval, *, axes: _varying_over(aval, varying_axes(aval) & axes),
    lambda cotangent, value, *, axes: [cotangent],
)
