"""The statistics that are logged of a point where the user names none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from lox._watch._points import Point


def statistics(point: Point, values: Sequence[Any]) -> dict[str, Any] | None:
    """Return a scalar as it is, and of an array the mean, std, min, max and number of elements that are not finite.

    Where there are several values, each has its number before its names. Random keys are left out, as are empty arrays.
    """
    del point
    found = {str(number): _of(value) for number, value in enumerate(values)}
    found = {number: each for number, each in found.items() if each is not None}
    if len(values) > 1:
        return found or None
    (only,) = found.values() or (None,)
    return only if isinstance(only, dict) or only is None else {"value": only}


def _of(value: Any) -> Any:
    if not jnp.issubdtype(value.dtype, jnp.number) and value.dtype != bool:
        return None
    if value.ndim == 0:
        return value
    if value.size == 0:
        return None
    if jnp.issubdtype(value.dtype, jnp.complexfloating):
        value = jnp.abs(value)
    precise = value if value.dtype == jnp.float64 else value.astype(jnp.float32)
    found = {"mean": precise.mean(), "std": precise.std(), "min": value.min(), "max": value.max()}
    if jnp.issubdtype(value.dtype, jnp.inexact):
        found["nonfinite"] = (~jnp.isfinite(value)).sum(dtype=jnp.int32)
    return found
