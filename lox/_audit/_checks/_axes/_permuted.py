"""Reshapes to the sizes of the axes in another order, as a transpose would give them."""

from __future__ import annotations

import math
from collections.abc import Iterator

import jax
import jax.numpy as jnp

from lox._audit._audited import Audited
from lox._audit._checks._axes._meaning import ADDING, RESHAPED
from lox._audit._findings import Finding
from lox._audit._labels import groups
from lox._audit._location import is_users, transformations
from lox._audit._naming import place_of, source_text
from lox._audit._origins import LAID_OUT
from lox._audit._program import Step, Value
from lox._audit._rules import primitives

_DRAWN = primitives("random_bits", "random_gamma")
_MOST = 30
_MADE = ADDING | primitives("iota", "reshape", "stack", "gather", "dynamic_slice")
"""Operations that make arrays which are meant to be regrouped."""


def permuted(audited: Audited) -> Iterator[Finding]:
    """LOX103, where no axis has a label: a reshape exchanges the sizes of axes, and their elements stay in order."""
    for step, location in audited.of("reshape"):
        (value, *_), (result,) = step.inputs, step.outputs
        if not is_users(location.file) or "transpose" in transformations(step.equation) or not _is_exchanged(step):
            continue
        if any(value.fact.labels) or not jnp.issubdtype(value.aval.dtype, jnp.number) or _is_regrouped(audited, value):
            continue
        place = place_of(step.equation)
        text = "" if place is None else source_text(*place)
        if result in audited.live and text and "-1" not in text:
            yield RESHAPED.at(
                location,
                f"An array of shape {value.shape} is reshaped to {result.shape}, which are the same sizes in another "
                "order: a reshape keeps the order of the elements, so that no axis is what it was.",
                severity="warning",
            )


def _is_exchanged(step: Step) -> bool:
    """Say whether a reshape is to the sizes of the same axes in another order."""
    before, after = step.inputs[0].shape, step.outputs[0].shape
    if not all(isinstance(size, int) for size in (*before, *after)) or math.prod(before) == 0:
        return False
    for old, new in groups(before, after):
        sizes, others = [before[axis] for axis in old], [after[axis] for axis in new]
        if sizes != others and sorted(sizes) == sorted(others):
            return True
    return False


def _is_regrouped(audited: Audited, value: Value) -> bool:
    """Say whether the order of the elements does not matter, as that of random numbers, or was chosen."""
    source = audited.origins.of(value, LAID_OUT - primitives("reshape"))
    if source.maker is None:
        return jnp.issubdtype(source.aval.dtype, jax.dtypes.prng_key)
    if source.maker.equation.primitive in _MADE:
        return True
    seen, left = set[Value](), [source]
    while left and len(seen) < _MOST:
        each = audited.origins.of(left.pop())
        if each.maker is None or each in seen:
            continue
        seen.add(each)
        if each.maker.equation.primitive in _DRAWN:
            return True
        left += [other for other in each.maker.inputs if other.shape == each.shape]
    return False


CHECKS = (permuted,)
