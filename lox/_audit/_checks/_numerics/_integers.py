"""Integers that do not fit in their type, or that floats cannot tell apart."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from lox._audit._audited import Audited
from lox._audit._facts import Interval, of_dtype
from lox._audit._findings import Finding, Held, Kind
from lox._audit._program import Step, Value
from lox._audit._ranges import exact_range
from lox._audit._rules import primitives
from lox._audit._written import arithmetic, conversion, counting, is_written

WRAPS = Kind(
    "LOX801",
    "warning",
    "Arithmetic of integers that may wrap around",
    "Convert to a wider type before: x.astype(jnp.int32), or to a float.",
    "Integers fit in their type.",
    "Intervals of integers were compared with the range of their dtype.",
)
CAST = Kind(
    "LOX802",
    "warning",
    "A conversion to integers that cannot hold the numbers",
    "Convert to an integer type that holds them, or limit them with jnp.clip before.",
    "Conversions to integers keep the numbers.",
    "Intervals of floats were compared with the range of the integer dtype.",
)
MERGED = Kind(
    "LOX803",
    "warning",
    "Integers become floats that cannot tell them apart",
    "Compute with them as integers or in jnp.float32, and convert to the smaller float what comes of it.",
    "Integers that become floats stay apart.",
    "Intervals of integers were compared with the digits of the float dtype.",
)

_CONVERSION = primitives("convert_element_type")
_LINEAR = primitives("add", "sub")
_POWERS = primitives("square", "integer_pow")
_TOTALS = primitives("cumsum", "reduce_sum")


def wraps(audited: Audited) -> Iterator[Finding | Held]:
    """LOX801: the result of integer arithmetic, of operands whose numbers are known, does not fit."""
    looked = primitives("mul") | _LINEAR | _POWERS | _TOTALS
    wrapped: set[Value] = set()
    compared = {frozenset(step.inputs) for step, _ in audited.of("lt", "le", "gt", "ge")}
    for step, location in audited.steps:
        if step.equation.primitive not in looked or not is_integer(step.outputs[0]):
            continue
        if step.equation.primitive in primitives("sub") and (frozenset(step.inputs) in compared or _is_ordered(step)):
            continue  # It is known which one is larger.
        exact, dtype = exact_range(step), step.outputs[0].aval.dtype
        if step.equation.primitive in _TOTALS and dtype.itemsize > 2:
            continue  # All being as large as they can be is no case to reckon with.
        if not wrapped.isdisjoint(step.inputs):
            wrapped.update(step.outputs)
            continue
        if exact is None or not is_finite(exact) or not _known(step):
            continue
        if _fits(exact, dtype):
            yield WRAPS.fine(location)
        elif step.equation.primitive in _TOTALS or is_written(step.equation, arithmetic):
            wrapped.add(step.outputs[0])
            operands = " and ".join(f"[{each.low:.0f}, {each.high:.0f}]" for each in _ranges(step))
            yield WRAPS.at(
                location,
                f"'{step.equation.primitive.name}' of {dtype} in {operands} is in [{exact.low:.0f}, {exact.high:.0f}], "
                f"and {dtype} ends at {_ends(dtype)}: what is beyond wraps around.",
            )


def _is_ordered(step: Step) -> bool:
    """Whether a step subtracts the lesser of two from the larger."""
    larger, lesser = (value.maker for value in step.inputs)
    if larger is None or lesser is None or {*larger.inputs} != {*lesser.inputs}:
        return False
    return larger.equation.primitive in primitives("max") and lesser.equation.primitive in primitives("min")


def _known(step: Step) -> bool:
    """Whether something tells between which numbers the operands are, or they are surely meant as numbers.

    Of small unsigned integers, such as the pixels of an image, all that the dtype has is to be reckoned with.
    """
    whole = [value for value in step.inputs if value.fact.range == of_dtype(value.aval.dtype)]
    others = [value for value in step.inputs if value not in whole]
    dtype = step.outputs[0].aval.dtype
    unsigned = jnp.issubdtype(dtype, jnp.unsignedinteger)
    if not whole:  # Products of unsigned integers that wrap around make hashes.
        return not unsigned or dtype.itemsize < 4 or step.equation.primitive in _LINEAR
    flags = any(-1 <= each.fact.range.low and each.fact.range.high <= 1 for each in others)
    if not unsigned or flags or step.equation.primitive in _TOTALS:
        return False
    return bool(others) or step.equation.primitive in _LINEAR | _POWERS


def cast(audited: Audited) -> Iterator[Finding | Held]:
    """LOX802: numbers that are known become integers that do not go so far."""
    for step, location in audited.steps:
        if step.equation.primitive not in _CONVERSION or not is_integer(step.outputs[0]):
            continue
        value, dtype = step.inputs[0], step.outputs[0].aval.dtype
        old, exact = value.aval.dtype, exact_range(step)
        if exact is None or not is_finite(exact) or value.fact.range == of_dtype(old):
            continue
        if is_integer(value) and jnp.issubdtype(dtype, jnp.unsignedinteger):
            exact = Interval(max(0, exact.low), max(0, exact.high))  # Of -1, all bits are meant.
        if _fits(exact, dtype):
            yield CAST.fine(location)
        elif is_written(step.equation, conversion):
            yield CAST.at(
                location,
                f"{old} in [{exact.low:.6g}, {exact.high:.6g}] becomes {dtype}, which ends at {_ends(dtype)}.",
            )


def merged(audited: Audited) -> Iterator[Finding | Held]:
    """LOX803: integers that are known to go far become floats of too few digits."""
    for step, location in audited.steps:
        if not step.outputs or not is_float(step.outputs[0]):
            continue
        counts = step.equation.primitive in primitives("iota")
        converts = step.equation.primitive in _CONVERSION and is_integer(step.inputs[0])
        if not counts and not converts:
            continue
        exact, dtype = exact_range(step), step.outputs[0].aval.dtype
        if exact is None or not is_finite(exact):
            continue
        if converts and step.inputs[0].fact.range == of_dtype(step.inputs[0].aval.dtype):
            continue
        digits = 2 ** (jax.dtypes.finfo(dtype).nmant + 1)
        if max(-exact.low, exact.high) <= digits:
            yield MERGED.fine(location)
        elif is_written(step.equation, counting if counts else conversion):
            yield MERGED.at(
                location,
                f"Integers in [{exact.low:.0f}, {exact.high:.0f}] become {dtype}, which has all integers only up to "
                f"{digits}: from there on, different ones become equal.",
            )


def _ranges(step: Step) -> tuple[Interval, ...]:
    return tuple(value.fact.range for value in step.inputs)


def is_finite(interval: Interval) -> bool:
    """Whether both ends of a range are known."""
    return math.isfinite(interval.low) and math.isfinite(interval.high)


def _fits(interval: Interval, dtype: Any) -> bool:
    info = jax.dtypes.iinfo(dtype)
    return int(info.min) <= interval.low and interval.high <= int(info.max)


def _ends(dtype: Any) -> str:
    info = jax.dtypes.iinfo(dtype)
    return f"{info.min} and {info.max}"


def is_integer(value: Value) -> bool:
    """Whether a value is an array of integers."""
    return hasattr(value.aval, "dtype") and jnp.issubdtype(value.aval.dtype, jnp.integer)


def is_float(value: Value) -> bool:
    """Whether a value is an array of floats."""
    return hasattr(value.aval, "dtype") and jnp.issubdtype(value.aval.dtype, jnp.floating)


KINDS = (WRAPS, CAST, MERGED)
CHECKS = (wraps, cast, merged)
