"""What an audit knows of a value: what its axes mean, and between which numbers it lies."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Labels = tuple[Any, ...]
"""The meaning of each axis: a name, or what says so as a text, such as `Merged`; or None where it is unknown."""


@dataclasses.dataclass(frozen=True, slots=True)
class Interval:
    """The numbers from `low` to `high`, both included."""

    low: float = -math.inf
    high: float = math.inf

    @property
    def number(self) -> float | None:
        """The number that is alone in it, or None."""
        return self.low if self.low == self.high else None

    def __contains__(self, number: float) -> bool:
        return self.low <= number <= self.high

    def __str__(self) -> str:
        return "" if self == ANY else f"[{self.low:.4g}, {self.high:.4g}]"


ANY = Interval()


def hull(intervals: Iterable[Interval]) -> Interval:
    """The least interval that has all of these in it."""
    found = list(intervals)
    return Interval(min(each.low for each in found), max(each.high for each in found))


@dataclasses.dataclass(frozen=True, slots=True)
class Fact:
    """What is known of a value.

    Attributes:
        labels: What its axes mean, as many as it has.
        range: Between which numbers all its elements lie; NaN may be among them.
    """

    labels: Labels
    range: Interval = ANY


def unknown(aval: Any) -> Fact:
    """What the type of a value tells of it."""
    return _unknown(getattr(aval, "ndim", 0), getattr(aval, "dtype", None))


@functools.lru_cache(maxsize=1024)
def _unknown(axes: int, dtype: Any) -> Fact:
    return Fact((None,) * axes, ANY if dtype is None else of_dtype(dtype))


@functools.lru_cache(maxsize=1024)
def of_dtype(dtype: Any) -> Interval:
    """The range of a dtype that is small enough to tell something."""
    if jnp.issubdtype(dtype, jnp.bool_):
        return Interval(0, 1)
    if jnp.issubdtype(dtype, jnp.integer) and jax.dtypes.iinfo(dtype).bits <= 16:
        info = jax.dtypes.iinfo(dtype)
        return Interval(float(info.min), float(info.max))
    if jnp.issubdtype(dtype, jnp.unsignedinteger):
        return Interval(0, math.inf)
    return ANY


def of_constant(value: Any) -> Fact:
    """What is known of a constant: its numbers."""
    if isinstance(value, (float, int)):
        return Fact((), ANY if math.isnan(value) else Interval(float(value), float(value)))
    if isinstance(value, (np.ndarray, np.generic)) and not value.shape and value.dtype.kind in "biuf":  # Most literals.
        number = float(value)
        return Fact((), ANY if math.isnan(number) else Interval(number, number))
    aval = jax.typeof(value)
    if not isinstance(aval, jax.core.ShapedArray) or isinstance(value, jax.core.Tracer):
        return unknown(aval)  # Such as a reference.
    if jnp.issubdtype(aval.dtype, jax.dtypes.extended) or not aval.size or not _is_here(value):
        return unknown(aval)
    numbers = np.asarray(value)
    if numbers.dtype.kind in "biu" or jnp.issubdtype(numbers.dtype, jnp.floating):
        low, high = float(numbers.min()), float(numbers.max())
        return Fact((None,) * aval.ndim, ANY if math.isnan(low) else Interval(low, high))
    return unknown(aval)


def _is_here(value: Any) -> bool:
    """Say whether the numbers of a constant can be read by this process."""
    return not isinstance(value, jax.Array) or (value.is_fully_addressable and not value.is_deleted())


def join(facts: Sequence[Fact]) -> Fact:
    """What is known of a value that is one of several. Of an array of one number, axes may mean anything."""
    telling = [fact.labels for fact in facts if fact.range.number is None]
    return Fact(agreeing(telling or [fact.labels for fact in facts]), hull(fact.range for fact in facts))


def agreeing(labels: Sequence[Labels]) -> Labels:
    """The labels that all have."""
    return tuple(axis[0] if all(label == axis[0] for label in axis) else None for axis in zip(*labels, strict=True))
