"""Reductions of events that need no more memory than one event: a monoid for each, to fold logs as they happen."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, Literal, get_args

import jax
import jax.extend as jex
import jax.numpy as jnp

from lox import _compat
from lox._collect import fill
from lox._events import Site
from lox._exceptions import LogValueError
from lox._lanes import where

Reduction = Literal["mean", "sum", "min", "max", "first", "last", "count"]
REDUCTIONS: tuple[str, ...] = get_args(Reduction)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Accumulator:
    """The events of one key so far.

    Attributes:
        value: The sum for "mean" and "sum"; the smallest, largest, first or last value; shape `(*lanes, *shape)`.
        count: How many events happened, shape `lanes`.
        steps: The counters of the last event, or of the first for "first".
        reduction: Which one.
        dtype: The dtype of the events.
        certain: Whether at least one event surely happened.
        site: The first log call.
    """

    value: Any
    count: Any
    steps: dict[str, Any]
    reduction: str = dataclasses.field(metadata={"static": True})
    dtype: Any = dataclasses.field(metadata={"static": True})
    certain: bool = dataclasses.field(metadata={"static": True})
    site: Site = dataclasses.field(metadata={"static": True})


def check_reduction(name: Any) -> str:
    """Raises LogValueError when there is no reduction of this name."""
    if name not in REDUCTIONS:
        known = ", ".join(map(repr, REDUCTIONS))
        raise LogValueError(f"There is no reduction {name!r}: reduce= takes one of {known}, or a mapping to them.")
    return name


def lift(reduction: str, value: Any, mask: Any, steps: Mapping[str, Any], site: Site, lanes: int) -> Accumulator:
    """One event as an accumulator; it did not happen where `mask` is False.

    Raises:
        LogValueError: There is no such reduction of values of this dtype.
    """
    if jnp.issubdtype(value.dtype, jax.dtypes.extended) and reduction not in ("first", "last", "count"):
        raise LogValueError(f"reduce={reduction!r} takes numbers, got {value.dtype.name} logged at {site}.")
    count = jnp.ones(value.shape[:lanes], jnp.int32) if mask is None else mask.astype(jnp.int32)
    dtype = value.dtype
    if reduction in ("mean", "sum"):
        value = value.astype(_sum_dtype(reduction, dtype))
        if mask is not None:
            value = where(mask, value, jnp.zeros_like(value))
    elif reduction == "count":
        value = count
    return Accumulator(value, count, dict(steps), reduction, dtype, mask is None, site)


def fold(reduction: str, value: Any, mask: Any, steps: Mapping[str, Any], site: Site, lanes: int) -> Accumulator:
    """Events, stacked along their first axis, as an accumulator."""
    if reduction in ("mean", "sum", "count") and mask is None and value.shape[0]:
        first = lift(reduction, value[0], None, {name: step[-1] for name, step in steps.items()}, site, lanes)
        if reduction == "count":
            total = first.value * value.shape[0]
        else:
            total = jnp.sum(value, axis=0, dtype=first.value.dtype)
        return dataclasses.replace(first, value=total, count=first.count * value.shape[0])

    def of_event(event: Any) -> Accumulator:
        value, mask, steps = event
        return dataclasses.replace(lift(reduction, value, mask, steps, site, lanes), certain=False)

    stacked = (value, mask, dict(steps))
    of_one = jax.tree.map(lambda array: jex.core.mapped_aval(array.shape[0], 0, jax.typeof(array)), stacked)
    zero = jax.tree.map(_compat.zeros_like_aval, _compat.abstract(of_event, of_one))
    total, _ = jax.lax.scan(lambda sofar, event: (merge(sofar, of_event(event)), None), zero, stacked)
    return dataclasses.replace(total, certain=mask is None and value.shape[0] > 0)


def empty(like: Accumulator) -> Accumulator:
    """An accumulator of no events, from the abstract values of one."""
    return dataclasses.replace(jax.tree.map(_compat.zeros_like_aval, like), certain=False)


def merge(first: Accumulator, second: Accumulator) -> Accumulator:
    """The events of `first`, then those of `second`."""
    if first.reduction in ("mean", "sum", "count"):
        value = first.value + second.value
    elif first.reduction == "first":
        value = where(first.count > 0, first.value, second.value)
    elif first.reduction == "last":
        value = where(second.count > 0, second.value, first.value)
    else:
        better = jnp.minimum if first.reduction == "min" else jnp.maximum
        both = where(first.count > 0, better(first.value, second.value), second.value)
        value = where(second.count > 0, both, first.value)
    steps = {}
    for name, step in first.steps.items():
        if first.reduction == "first":
            steps[name] = where(first.count > 0, step, second.steps[name])
        else:
            steps[name] = where(second.count > 0, second.steps[name], step)
    count = first.count + second.count
    return dataclasses.replace(first, value=value, count=count, steps=steps, certain=first.certain or second.certain)


def result(accumulator: Accumulator) -> Any:
    """The reduced value; of no events, 0 for "sum" and "count", else NaN, 0 or False."""
    value, count, reduction = accumulator.value, accumulator.count, accumulator.reduction
    if reduction == "mean":
        some = count if accumulator.certain else jnp.maximum(count, 1)
        each = jax.lax.expand_dims(some, range(count.ndim, value.ndim)).astype(value.dtype)
        value = (value / each).astype(_result_dtype("mean", accumulator.dtype))
        return value if accumulator.certain else where(count > 0, value, fill(jax.typeof(value)))
    if reduction == "sum":
        return value.astype(_result_dtype("sum", accumulator.dtype))
    if reduction == "count" or accumulator.certain:
        return value
    return where(count > 0, value, fill(jax.typeof(value)))


def _result_dtype(reduction: str, dtype: Any) -> Any:
    return _numpy_dtype(reduction, dtype, jax.config.jax_enable_x64)  # type: ignore[attr-defined]


@functools.cache
def _numpy_dtype(reduction: str, dtype: Any, x64: bool) -> Any:
    """The dtype that `jax.numpy` gives a reduction of arrays of this dtype."""
    return jax.eval_shape(getattr(jnp, reduction), jax.ShapeDtypeStruct((1,), dtype)).dtype


def _sum_dtype(reduction: str, dtype: Any) -> Any:
    out = _result_dtype(reduction, dtype)
    return jnp.float32 if out in (jnp.bfloat16, jnp.float16) else out
