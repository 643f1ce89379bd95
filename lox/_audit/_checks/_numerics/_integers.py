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
from lox._audit._location import call, is_users
from lox._audit._loops import scans
from lox._audit._origins import PASSING, Origins
from lox._audit._program import Step, Value, alike
from lox._audit._ranges import exact_range
from lox._audit._rules import primitives
from lox._audit._written import arithmetic, conversion, counting, is_squaring, is_written
from lox._compat import _tracebacks as tracebacks

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
FRACTIONS = Kind(
    "LOX822",
    "warning",
    "Floats that are written to an array of integers, which lose their fractions",
    "Make the array one of floats, as with jnp.zeros(n, jnp.float32); or round what is written, and convert it with "
    ".astype.",
    "What is written to integers has no fractions.",
    "The dtypes of what x.at[...] writes were compared with those of its arrays.",
)

COMPLEMENT = Kind(
    "LOX823",
    "warning",
    "The complement of an integer where the negation of a flag is meant",
    "Negate a boolean: ~(done > 0), or done == 0; or subtract: 1 - done.",
    "What ~ is applied to are booleans, or integers whose bits are meant.",
    "What is made of the complements of integers was looked at.",
)

_CONVERSION = primitives("convert_element_type")
_ORDERED = primitives("sort", "slice", "gather", "cummax")
_WRITES = ("scatter", "scatter_add", "scatter_max", "scatter_min", "scatter_mul", "dynamic_update_slice")
_ROUNDED = primitives("round", "floor", "ceil", "sign")
_KEEPS_WHOLE = _CONVERSION | primitives(
    *("add", "sub", "mul", "neg", "abs", "max", "min", "select_n", "reduce_sum", "concatenate", "clamp")
)
_LINEAR = primitives("add", "sub")
_POWERS = primitives("square", "integer_pow")
_FLOWS = PASSING | _CONVERSION
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
        if step.equation.primitive in primitives("mul") and is_squaring(step.equation):
            continue
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


def totals(audited: Audited) -> Iterator[Finding | Held]:
    """LOX801: so many small integers are added up that their number alone does not fit, were each of them one."""
    for step, location in audited.of("cumsum", "reduce_sum", "dot_general"):
        value, dtype = step.inputs[0], step.outputs[0].aval.dtype
        if not is_integer(step.outputs[0]) or dtype.itemsize > 2 or not is_users(location.of_user.file):
            continue
        is_product = step.equation.primitive in primitives("dot_general")
        if value.fact.range != of_dtype(value.aval.dtype) and not is_product:
            continue
        count, largest = _terms(step), _largest(step) if is_product else 1.0
        what = "products" if is_product else "numbers"
        if count > jax.dtypes.iinfo(dtype).max:
            yield WRAPS.at(location, f"{count} {what} are added up in {dtype}, which ends at {_ends(dtype)}.")
        elif largest > jax.dtypes.iinfo(dtype).max:
            yield WRAPS.at(
                location,
                f"Products of up to {largest:.0f} are added up in {dtype}, which ends at {_ends(dtype)}: give the "
                "product preferred_element_type=jnp.int32.",
            )
        else:
            yield WRAPS.fine(location)


def _largest(step: Step) -> float:
    """The largest product of two elements, as far as the dtypes tell; 1 if one is a flag or a sign."""
    sizes = [max(abs(each.low), abs(each.high)) for each in _ranges(step)]
    return math.prod(sizes) if min(sizes) > 1 else 1.0


def packed(audited: Audited) -> Iterator[Finding | Held]:
    """LOX801: two indices are put into one integer by a factor whose square does not fit, and taken apart by it."""
    taken: dict[float, list[Value]] = {}
    for step, _ in audited.of("rem", "div"):
        if is_integer(step.outputs[0]) and step.inputs[1].number is not None:
            taken.setdefault(step.inputs[1].number, []).append(audited.origins.of(step.inputs[0], _FLOWS | _ORDERED))
    for step, location in audited.of("add") if taken else ():
        factor = next((by for value in step.inputs if (by := _factor(audited, value))), None)
        dtype = step.outputs[0].aval.dtype
        if factor is None or not is_integer(step.outputs[0]) or step.outputs[0] not in taken.get(factor, ()):
            continue
        if factor**2 > jax.dtypes.iinfo(dtype).max:
            yield WRAPS.at(
                location,
                f"Two indices below {factor:.0f} are put into one {dtype}, which ends at {_ends(dtype)}: from "
                f"{jax.dtypes.iinfo(dtype).max // factor:.0f} on, the first one is too large.",
            )


def _factor(audited: Audited, value: Value) -> float | None:
    """The constant that an unknown value is multiplied by; None if it is none."""
    maker = audited.origins.of(value, _FLOWS).maker
    if maker is None or maker.equation.primitive not in primitives("mul"):
        return None
    numbers = [each.number for each in maker.inputs]
    known = [number for number in numbers if number is not None]
    others = [each for each in maker.inputs if each.number is None]
    return known[0] if len(known) == 1 and not is_finite(others[0].fact.range) else None


def complements(audited: Audited) -> Iterator[Finding | Held]:
    """LOX823: the complement of an integer becomes a float, or a condition: of 1 it is -2."""
    for step, location in audited.of("not"):
        if not is_integer(step.outputs[0]) or not is_users(location.of_user.file):
            continue
        becomes = next((each for each in _conversions(audited, step.outputs[0]) if not is_integer(each)), None)
        if becomes is not None:
            yield COMPLEMENT.at(
                location,
                f"~x of {step.inputs[0].text_as_written}, which is of {step.inputs[0].aval.dtype}, is -x - 1, and "
                f"becomes {becomes.aval.dtype}: of 1 it is -2, and of 0 it is -1.",
            )
        else:
            yield COMPLEMENT.fine(location)


def _conversions(audited: Audited, value: Value) -> Iterator[Value]:
    """The conversions of a value to other dtypes."""
    left = [value]
    while left:
        for step in audited.users.of(left.pop()):
            is_zero = any(each.number == 0 for each in step.inputs)
            if step.equation.primitive in primitives("ne") and is_zero:
                yield step.outputs[0]
            elif step.equation.primitive in _CONVERSION:
                yield step.outputs[0]
            elif step.equation.primitive in PASSING:
                left.append(step.outputs[0])


def _terms(step: Step) -> int:
    """How many numbers each result of a step is the sum of."""
    params, shape = step.equation.params, step.inputs[0].shape
    if "dimension_numbers" in params:
        axes = params["dimension_numbers"][0][0]
    else:
        axes = params["axes"] if "axes" in params else (params["axis"],)
    return math.prod(shape[axis] for axis in axes)


def counters(audited: Audited) -> Iterator[Finding | Held]:
    """LOX801: what each iteration of a scan adds to a small integer does not fit at the end."""
    for scan, around in scans(audited):
        length = scan.step.equation.params["length"]
        for outside, inside, after in scan.carry:
            if not is_integer(inside) or inside.aval.dtype.itemsize > 2 or not isinstance(length, int):
                continue
            added, start, dtype = _added(inside, after, audited.origins), outside.fact.range, inside.aval.dtype
            if added is None or not is_finite(start):
                continue
            by = added[1]
            last = start.high + length * by.low if by.low < 0 else start.low + length * by.high
            location = audited.lines.get(added[0], around)
            if _fits(Interval(last, last), dtype):
                yield WRAPS.fine(location)
            else:
                yield WRAPS.at(
                    location,
                    f"A carry of {dtype} gets to {last:.0f} in {length} iterations, and {dtype} ends at "
                    f"{_ends(dtype)}: what is beyond wraps around.",
                )


def _added(before: Value, after: Value, origins: Origins) -> tuple[Step, Interval] | None:
    """The step that adds to a carry, and what; None if that is unknown or anything else happens to the carry."""
    maker = origins.of(after, _FLOWS).maker
    if maker is None or maker.equation.primitive not in _LINEAR:
        return None
    is_sum = maker.equation.primitive in primitives("add")
    for one, other in (maker.inputs, maker.inputs[::-1]) if is_sum else (maker.inputs,):
        by = other.fact.range
        known = is_finite(by) and (by != of_dtype(other.aval.dtype)) and (by.low >= 0 or by.high <= 0)
        if known and origins.of(one, _FLOWS) is before:
            return maker, by if is_sum else Interval(-by.high, -by.low)
    return None


def _is_ordered(step: Step) -> bool:
    """Say whether a step subtracts the lesser of two from the larger."""
    larger, lesser = (value.maker for value in step.inputs)
    if larger is None or lesser is None:
        return False
    if larger.equation.primitive not in primitives("max") or lesser.equation.primitive not in primitives("min"):
        return False
    return any(all(map(alike, larger.inputs, pair)) for pair in (lesser.inputs, lesser.inputs[::-1]))


def _known(step: Step) -> bool:
    """Say whether something tells between which numbers the operands are, or they are surely meant as numbers.

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


def written(audited: Audited) -> Iterator[Finding | Held]:
    """LOX822: JAX computes x.at[i].set(value) of integers and a float with floats, and converts the result."""
    for step, location in audited.of(*_WRITES):
        array = audited.origins.of(step.inputs[0], PASSING).maker
        if array is None or array.equation.primitive not in _CONVERSION or not is_integer(array.inputs[0]):
            continue
        if not any(map(tracebacks.writes_at, call(array.equation)[1:])) or not is_users(location.of_user.file):
            continue
        place = 1 if step.equation.primitive in primitives("dynamic_update_slice") else 2
        value = step.inputs[place]
        if _is_whole(value, audited.origins):
            yield FRACTIONS.fine(location)
        else:
            yield FRACTIONS.at(
                location,
                f"{value.text_as_written} is of {value.aval.dtype}, and is written to an array of "
                f"{array.inputs[0].aval.dtype}.",
            )


def _is_whole(value: Value, origins: Origins, depth: int = 20) -> bool:
    """Say whether floats are made of integers, or are rounded."""
    value = origins.of(value, PASSING)
    if value.number is not None:
        return value.number == round(value.number) if math.isfinite(value.number) else False
    maker = value.maker
    if is_integer(value) or value.aval.dtype == jnp.bool_:
        return True
    if maker is None or not depth:
        return False
    if maker.equation.primitive in _ROUNDED:
        return True
    operands = maker.inputs[1:] if maker.equation.primitive in primitives("select_n") else maker.inputs
    return maker.equation.primitive in _KEEPS_WHOLE and all(_is_whole(each, origins, depth - 1) for each in operands)


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
    """Say whether both ends of a range are known."""
    return math.isfinite(interval.low) and math.isfinite(interval.high)


def _fits(interval: Interval, dtype: Any) -> bool:
    info = jax.dtypes.iinfo(dtype)
    return int(info.min) <= interval.low and interval.high <= int(info.max)


def _ends(dtype: Any) -> str:
    info = jax.dtypes.iinfo(dtype)
    return f"{info.min} and {info.max}"


def is_integer(value: Value) -> bool:
    """Say whether a value is an array of integers."""
    return hasattr(value.aval, "dtype") and jnp.issubdtype(value.aval.dtype, jnp.integer)


def is_float(value: Value) -> bool:
    """Say whether a value is an array of floats."""
    return hasattr(value.aval, "dtype") and jnp.issubdtype(value.aval.dtype, jnp.floating)


KINDS = (WRAPS, CAST, MERGED, FRACTIONS, COMPLEMENT)
CHECKS = (wraps, totals, packed, counters, cast, merged, written, complements)
