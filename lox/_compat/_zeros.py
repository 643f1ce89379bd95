"""Symbolic zeros and what derivative rules return."""

from __future__ import annotations

from typing import Any

import jax
from jax.custom_derivatives import SymbolicZero
from jax.interpreters import ad
from jax.sharding import AxisType, PartitionSpec

from lox._compat._traces import current_trace, runs_at_once


def zeros_like_aval(aval: Any) -> Any:
    """Zeros of an abstract value; typed keys get key data of zeros (jax 0.10 makes float0 of them)."""
    if jax.numpy.issubdtype(aval.dtype, jax.dtypes.prng_key):
        return jax.lax.full(aval.shape, 0, aval.dtype)
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty and AxisType.Explicit in aval.sharding.mesh.axis_types:
        if runs_at_once(current_trace()):  # Only a mesh that is set has devices.
            return ad.zeros_like_aval(aval.update(sharding=aval.sharding.update(mesh=mesh, spec=PartitionSpec())))
        with jax.sharding.use_abstract_mesh(aval.sharding.mesh):
            return ad.zeros_like_aval(aval)
    if mesh.manual_axes and getattr(aval, "sharding", None) is not None and aval.sharding.mesh != mesh:
        aval = aval.update(sharding=aval.sharding.update(mesh=mesh))  # That of a value from outside the shard_map.
    return ad.zeros_like_aval(aval)


def is_zero(tangent: Any) -> bool:
    """Tell whether a tangent or cotangent is a symbolic zero."""
    return isinstance(tangent, (ad.Zero, SymbolicZero))


def zero_tangent(primal: Any) -> Any:
    """The symbolic zero among the tangents of a value."""
    return ad.Zero(jax.typeof(primal).to_tangent_aval())


def instantiate(tangent: Any) -> Any:
    """A tangent or cotangent as an array, also when it is a symbolic zero."""
    return zeros_like_aval(tangent.aval) if is_zero(tangent) else tangent


def rule_zero(tangent: Any) -> Any:
    """A tangent as a custom rule may return it: JAX's internal zero becomes the public symbolic one."""
    return SymbolicZero(tangent.aval) if isinstance(tangent, ad.Zero) else tangent


def cotangents(result: Any) -> list[Any]:
    """The cotangents that the flat bwd function of a `custom_vjp` returned, without the backward logs of jax 0.12."""
    if isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], (list, tuple)):
        result, _ = result
    return list(result)
