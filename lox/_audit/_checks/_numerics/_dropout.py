"""Dropout: the factor that makes up for what random flags leave out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from lox._audit._audited import Audited
from lox._audit._checks._numerics._integers import is_float
from lox._audit._findings import Finding, Held, Kind
from lox._audit._location import is_users, transformations
from lox._audit._origins import FLOWS
from lox._audit._program import Step, Value
from lox._audit._rules import primitives

SCALED = Kind(
    "LOX824",
    "warning",
    "What random flags keep is scaled by the wrong number",
    "Divide by the chance to be kept: jnp.where(keep, x / (1 - rate), 0) with keep = jax.random.bernoulli(key, 1 - "
    "rate, x.shape), which leaves the mean as it is.",
    "What random flags keep is divided by their chance, or is not scaled.",
    "The chances of random flags were compared with the constants that what they keep is multiplied by.",
)

_UNIFORM = primitives("max", "add", "sub", "mul", "bitcast_convert_type", "or", "shift_right_logical")
"""The steps from random bits to the numbers of `jax.random.uniform`."""
_BITS = primitives("random_bits")
_LOWER = primitives("lt", "le")
_SCALES = primitives("mul", "div")
_LIKELY = 0.5
"""Flags with a lower chance choose what to change, as a mutation does, and any number may scale the change."""
_MOST = 30


class _Flags(NamedTuple):
    """Random flags, or floats made of them.

    Attributes:
        value: The flags.
        chance: The chance that one is true.
        factor: What the floats are multiplied by.
    """

    value: Value
    chance: float
    factor: float = 1.0


def scaled(audited: Audited) -> Iterator[Finding | Held]:
    """LOX824: what flags with a chance p keep is multiplied by p, or divided by 1 - p."""
    if not audited.has("random_bits"):
        return
    for flags in _drawn(audited):
        for step, factor in _kept(audited, flags):
            location = audited.lines[step]
            if "transpose" in transformations(step.equation) or not is_users(location.of_user.file):
                continue
            rate = 1 - flags.chance
            if _is_about(factor, flags.chance) and flags.chance >= _LIKELY:
                wrong = "is multiplied by it"
            elif _is_about(factor, 1 / rate) and not _is_about(rate, flags.chance):
                wrong = f"is divided by {rate:.3g}, the chance to be left out"
            else:
                yield SCALED.fine(location)
                continue
            yield SCALED.at(
                location,
                f"What is kept with a chance of {flags.chance:.3g} {wrong}: its mean becomes "
                f"{factor * flags.chance:.3g} times what it was.",
            )


def _is_about(one: float, other: float) -> bool:
    return abs(one - other) < 1e-4 * other


def _drawn(audited: Audited) -> Iterator[_Flags]:
    """Comparisons of uniform numbers with a constant."""
    for step, _ in audited.of("lt", "le", "gt", "ge"):
        for place, (one, other) in enumerate((step.inputs, step.inputs[::-1])):
            number = audited.origins.of(other).number
            if number is not None and 0 < number < 1 and audited.origins.leads_to(one, _BITS, _UNIFORM, FLOWS):
                is_below = (step.equation.primitive in _LOWER) is (place == 0)
                yield _Flags(step.outputs[0], number if is_below else 1 - number)


def _kept(audited: Audited, drawn: _Flags) -> Iterator[tuple[Step, float]]:
    """The steps that set what flags do not keep to zero, or scale it then, with the factor of what is kept."""
    left = [drawn]
    for _ in range(_MOST):
        if not left:
            return
        flags = left.pop()
        names = audited.users.names(flags.value)
        for step in audited.users.of(flags.value):
            primitive = step.equation.primitive
            if primitive in FLOWS and step.outputs:
                left.append(flags._replace(value=step.outputs[0]))
            elif primitive in primitives("select_n") and step.inputs[0] in names and len(step.inputs) == 3:
                if audited.origins.of(step.inputs[1], FLOWS).number == 0 and is_float(step.outputs[0]):
                    yield from _finished(audited, step, _factor_before(audited, step.inputs[2]))
            elif primitive in _SCALES and is_float(step.outputs[0]):
                by = _constant(step, names)
                if by is not None:
                    left.append(flags._replace(value=step.outputs[0], factor=flags.factor * by))
                elif primitive in primitives("mul"):
                    yield from _finished(audited, step, flags.factor)


def _finished(audited: Audited, step: Step, factor: float) -> Iterator[tuple[Step, float]]:
    """The factor of what is kept, with the constant that it is multiplied by next."""
    left, users = step.outputs[0], list(audited.users.of(step.outputs[0]))
    while len(users) == 1 and users[0].equation.primitive in FLOWS:
        left, users = users[0].outputs[0], list(audited.users.of(users[0].outputs[0]))
    is_scaled = len(users) == 1 and users[0].equation.primitive in _SCALES
    by = _constant(users[0], audited.users.names(left)) if is_scaled else None
    yield (step, factor) if by is None else (users[0], factor * by)


def _factor_before(audited: Audited, value: Value) -> float:
    maker = audited.origins.of(value, FLOWS).maker
    if maker is None or maker.equation.primitive not in _SCALES:
        return 1.0
    known = [by for each in maker.inputs if (by := _constant(maker, {each})) is not None]
    return known[0] if known else 1.0


def _constant(step: Step, names: set[Value]) -> float | None:
    """The constant by which a step multiplies a value that has these names; None if it is none."""
    one, other = step.inputs
    if one in names and other.number:
        return 1 / other.number if step.equation.primitive in primitives("div") else other.number
    if other in names and one.number and step.equation.primitive in primitives("mul"):
        return one.number
    return None


KINDS = (SCALED,)
CHECKS = (scaled,)
