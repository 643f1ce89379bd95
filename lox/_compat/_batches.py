"""Batched values and batched jaxprs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax.interpreters import batching

from lox._compat._jaxprs import as_fun, out_avals
from lox._compat._names import Feature, private

_batch_jaxpr = private(
    "jax.interpreters.batching:batch_jaxpr_axes",  # From jax 0.11 on.
    "jax._src.interpreters.batching:batch_jaxpr_axes",
    purpose="to tell which carried values of a loop are batched",
    needed_for=Feature.VMAPPED_WHILE,
)
_if_mapped = private(
    "jax.interpreters.batching:zero_if_mapped",  # From jax 0.11 on.
    "jax._src.interpreters.batching:zero_if_mapped",
    purpose="to tell which carried values of a loop are batched",
    needed_for=Feature.VMAPPED_WHILE,
)


def with_axis(axis_data: Any, dim: int | None, place: int, value: Any) -> Any:
    """The value with its batch axis, which is at `dim`, at `place`, or copied along a new one if it has none."""
    if dim is None:
        return batching.broadcast(value, axis_data.size, place, axis_data.explicit_mesh_axis)
    if dim == place:
        return value
    axes = [axis for axis in range(value.ndim) if axis != dim]
    return jax.lax.transpose(value, [*axes[:place], dim, *axes[place:]])


def batch(jaxpr: Any, axis_data: Any, args: Sequence[Any], dims: Sequence[Any]) -> None:
    """Run a jaxpr batched, for its effects."""
    batched, _ = _batched(jaxpr, axis_data, dims)
    as_fun(batched)(*args)


def batched_outputs(jaxpr: Any, axis_data: Any, batched: Sequence[bool]) -> list[bool]:
    """Tell which outputs of a jaxpr are batched when these inputs are."""
    _, out = _batched(jaxpr, axis_data, [0 if each else None for each in batched])
    return list(out)


def _batched(jaxpr: Any, axis_data: Any, dims: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
    return _batch_jaxpr.value(jaxpr, axis_data, list(dims), [_if_mapped.value] * len(out_avals(jaxpr)))
