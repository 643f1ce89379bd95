"""Dtypes: where precision or range is lost."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from lox import _compat
from lox._audit._audited import Audited
from lox._audit._checks._numerics._integers import is_finite, is_float
from lox._audit._findings import Finding, Held, Kind
from lox._audit._location import NOWHERE, locate, transformations
from lox._audit._ranges import exact_range
from lox._audit._rules import primitives

TRUNCATED = Kind(
    "LOX800",
    "warning",
    "An argument loses numbers because JAX has no 64-bit types here",
    "Subtract an offset or rescale in NumPy before, pass integers that fit in 32 bits, or enable 64-bit types with "
    "jax.config.update('jax_enable_x64', True) or JAX_ENABLE_X64=1.",
    "64-bit arguments mean the same in 32 bits.",
    "The 64-bit arguments were compared with what JAX takes them for.",
)
NARROWED = Kind(
    "LOX806",
    "info",
    "An argument has fewer digits than it was given",
    "Nothing, where 7 digits are enough; else enable 64-bit types with jax.config.update('jax_enable_x64', True).",
)
OVERFLOW = Kind(
    "LOX804",
    "warning",
    "Floats that become infinite",
    "Compute in jnp.float32, or rescale or clip before.",
    "Floats of known range stay finite.",
    "Intervals of floats were compared with the largest number of their dtype.",
)
_MANY = 1_000_000
"""How many numbers of an argument are looked at."""

_CONVERSION = primitives("convert_element_type")
_LINEAR = primitives("add", "sub")
_POWERS = primitives("square", "integer_pow")


def truncated(audited: Audited) -> Iterator[Finding | Held]:
    """LOX800 and LOX806: an argument of 64 bits has numbers that 32 bits do not hold, or digits."""
    leaves = [leaf for leaf in jax.tree.leaves(audited.arguments[0]) if hasattr(leaf, "dtype")]
    avals = _compat.in_avals(audited.captured.jaxpr)
    if len(leaves) != len(avals):
        return
    for name, leaf, aval in zip(audited.captured.arguments, leaves, avals, strict=True):
        if leaf.dtype == aval.dtype or getattr(leaf.dtype, "kind", "") not in "iuf":
            continue
        lost, text = "", f"{name} is {leaf.dtype}, and becomes {aval.dtype}"
        if isinstance(leaf, (np.ndarray, np.generic)):
            given = np.asarray(leaf)
            if given.ndim:
                given = given[: max(1, _MANY * len(given) // max(1, given.size))]
            with np.errstate(all="ignore"):
                lost = _lost(given, given.astype(aval.dtype))
        if lost:
            yield TRUNCATED.at(NOWHERE, f"{text}: {lost}.")
        else:
            yield TRUNCATED.fine(NOWHERE)
            if leaf.dtype.kind == "f":
                yield NARROWED.at(NOWHERE, f"{text}, because 64-bit types are not enabled.")


def _lost(given: np.ndarray[Any, Any], converted: np.ndarray[Any, Any]) -> str:
    """What a conversion to 32 bits loses, beyond the last digits of a float; empty for nothing."""
    if given.dtype.kind in "iu":
        wrapped = given[given != converted]
        return f"{wrapped[0]} wraps around to {converted[given != converted][0]}" if wrapped.size else ""
    infinite = given[np.isfinite(given) & ~np.isfinite(converted)]
    if infinite.size:
        return f"{infinite[0]} becomes infinite"
    merged = (given[1:] != given[:-1]) & (converted[1:] == converted[:-1]) if given.ndim else np.zeros(0, bool)
    if 2 * np.count_nonzero(merged) > merged.size:
        place = tuple(int(axis[0]) for axis in np.nonzero(merged))
        one, other = given[place], given[(place[0] + 1, *place[1:])]
        return f"most neighbours become equal, such as {one.item()!r} and {other.item()!r}"
    whole = np.isfinite(given) & (given == np.round(given)) & (given != converted)
    return f"{given[whole][0]:.17g} becomes {converted[whole][0]:.17g}" if np.count_nonzero(whole) else ""


def overflow(audited: Audited) -> Iterator[Finding | Held]:
    """LOX804: the result of numbers that are known is beyond the largest float."""
    looked = primitives("mul", "exp", "exp2", "expm1") | _LINEAR | _POWERS | _CONVERSION
    for step, location in audited.steps:
        if step.equation.primitive not in looked or not is_float(step.outputs[0]):
            continue
        if not is_float(step.inputs[0]) or step.equation.params.get("y", 1) < 0:
            continue
        if locate(step.equation) == NOWHERE or "transpose" in transformations(step.equation):
            continue  # Nobody wrote it.
        exact, dtype = exact_range(step), step.outputs[0].aval.dtype
        known = [(value.fact.range, value) for value in step.inputs]
        if exact is None or exact.number is not None or not all(is_finite(each) for each, _ in known):
            continue
        largest = float(jax.dtypes.finfo(dtype).max)
        if any(2 * max(-each.low, each.high) > float(jax.dtypes.finfo(value.aval.dtype).max) for each, value in known):
            continue  # What stands for infinity.
        with np.errstate(over="ignore"):
            end = float(np.asarray(exact.high).astype(dtype))
        if math.isfinite(end):
            yield OVERFLOW.fine(location)
        else:
            operands = " and ".join(str(each) for each, _ in known)
            yield OVERFLOW.at(
                location,
                f"'{step.equation.primitive.name}' of numbers in {operands} is in {exact}, "
                f"and the largest {dtype} is {largest:.4g}: what is beyond is infinite.",
            )


KINDS = (TRUNCATED, NARROWED, OVERFLOW)
CHECKS = (truncated, overflow)
