"""The masks with which some of the logits of a softmax become a number."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence, Set
from typing import Any, NamedTuple

import jax.numpy as jnp

from lox._audit._ends import last_name
from lox._audit._origins import LAID_OUT, Origins, axes_before
from lox._audit._program import Step, Value
from lox._audit._rules import primitives

_SAME = primitives("stop_gradient", "copy", "sharding_constraint", "reshard", "name")
CONVERTED = _SAME | primitives("convert_element_type")
"""What leaves the elements of an array where they are, and their numbers as they are but for rounding."""
_MASK = re.compile(r"(\w+_)?mask", re.IGNORECASE)
"""Names of arrays of floats that are zero or one."""
_MOST = 40
"""At how many operations of logits is looked."""


class Mask(NamedTuple):
    """A choice of logits.

    Attributes:
        condition: By what is chosen.
        axis: Its axis that is that of the softmax; None where it is the same along that.
        truth: Which truth of the condition masks.
        number: What logits become, or what is added to them, where they are masked.
        is_added: Whether the number is added.
    """

    condition: Value
    axis: int | None
    truth: int
    number: float = 0.0
    is_added: bool = False


class _Part(NamedTuple):
    """A value that logits are made of: `scale * value + shift`, perhaps with more added."""

    value: Value
    axis: int | None
    scale: float = 1.0
    shift: float = 0.0
    is_added: bool = False


def masks_of(logits: Value, axis: int | None, origins: Origins) -> Iterator[Mask]:
    """The choices between logits and a number, and the numbers that are added by a choice."""
    waiting = [_Part(logits, axis)]
    for _ in range(_MOST):
        if not waiting:
            return
        part = waiting.pop()
        value, place = laid_out(part.value, part.axis, origins)
        part = part._replace(value=value, axis=place)
        chosen = _choice(value, origins)
        if chosen is not None:
            yield from _chosen(part, *chosen)
        maker = value.maker
        if maker is None or maker.blocks or value.aval.dtype == jnp.bool_:
            continue
        if maker.equation.primitive in primitives("select_n"):
            waiting += [part._replace(value=case) for case in maker.inputs[1:] if case.number is None]
        elif maker.equation.primitive in primitives("convert_element_type"):
            waiting.append(part._replace(value=maker.inputs[0]))
        elif maker.equation.primitive in primitives("mul", "div", "add", "sub"):
            yield from _multiplied(part, maker, origins)
            waiting += _operands(part, maker)


def _choice(value: Value, origins: Origins) -> tuple[Value, float | None, float | None] | None:
    """By what the elements of a value are chosen, and the numbers that they are where that is false, and true."""
    maker = value.maker
    if maker is None:
        is_float = jnp.issubdtype(getattr(value.aval, "dtype", jnp.bool_), jnp.floating)
        return (value, 0.0, 1.0) if is_float and value.shape and _MASK.fullmatch(last_name(value.name)) else None
    if maker.equation.primitive in primitives("convert_element_type") and maker.inputs[0].aval.dtype == jnp.bool_:
        return maker.inputs[0], 0.0, 1.0
    if maker.equation.primitive in primitives("select_n") and len(maker.inputs) == 3:
        condition, *cases = maker.inputs
        numbers = [origins.of(case).number for case in cases]
        return (condition, numbers[0], numbers[1]) if numbers != [None, None] else None
    return None


def _chosen(part: _Part, condition: Value, *numbers: float | None) -> Iterator[Mask]:
    axis = part.axis if condition.shape else None
    made = [None if each is None else part.scale * each + part.shift for each in numbers]
    for truth, number in enumerate(made):
        other = made[1 - truth]
        masks = other == 0 if part.is_added else other is None
        if number is not None and not math.isnan(number) and (masks or (math.isinf(number) and other is None)):
            yield Mask(condition, axis, truth, number, part.is_added and other is not None)


def _multiplied(part: _Part, maker: Step, origins: Origins) -> Iterator[Mask]:
    """A choice of zero or one that logits are multiplied by."""
    if maker.equation.primitive not in primitives("mul") or part.is_added:
        return
    for one, other in (maker.inputs, maker.inputs[::-1]):
        flags = flags_of(one, part.axis, origins)
        if flags is not None and other.number is None and flags_of(other, part.axis, origins) is None:
            yield flags


def flags_of(value: Value, axis: int | None, origins: Origins) -> Mask | None:
    """The choice that makes a value zero or one, by where it makes it zero; of a product of these, the product."""
    value, axis = laid_out(value, axis, origins)
    if value.maker is not None and value.maker.equation.primitive in primitives("sub"):
        one, other = value.maker.inputs
        flags = flags_of(other, axis, origins) if one.number == 1 else None
        return None if flags is None else flags._replace(truth=1 - flags.truth)
    if value.maker is not None and value.maker.equation.primitive in primitives("mul"):
        factors = [flags_of(each, axis, origins) for each in value.maker.inputs]
        return None if None in factors else Mask(value, axis, 0)
    found = _choice(value, origins)
    if found is None or {*found[1:]} != {0.0, 1.0}:
        return None
    condition = found[0]
    return Mask(condition, axis if condition.shape else None, int(found[2] == 0))


def _operands(part: _Part, maker: Step) -> Iterator[_Part]:
    """The operands of arithmetic as parts of what it is a part of."""
    one, other = maker.inputs
    left, right = one.number, other.number
    adds, divides = (maker.equation.primitive in primitives(name) for name in ("add", "div"))
    if maker.equation.primitive in primitives("mul", "div"):
        by = right if divides or left is None else left
        if by is not None and by != 0 and not (divides and right is None):
            value = one if right is not None else other
            yield part._replace(value=value, scale=part.scale / by if divides else part.scale * by)
        return
    sign = 1.0 if adds else -1.0
    if right is not None:
        yield part._replace(value=one, shift=part.shift + sign * part.scale * right)
    elif left is not None:
        yield part._replace(value=other, scale=sign * part.scale, shift=part.shift + part.scale * left)
    else:
        yield part._replace(value=one, is_added=True)
        yield part._replace(value=other, scale=sign * part.scale, shift=0.0, is_added=True)


def parts_of(mask: Mask, origins: Origins) -> Iterator[tuple[Value, int | None, int]]:
    """The parts of a mask each of which masks by itself: its condition, its axis, and the truth that masks."""
    waiting = [mask[:3]]
    while waiting:
        condition, axis, truth = waiting.pop()
        condition, axis = laid_out(condition, axis, origins)
        maker = condition.maker
        if maker is not None and maker.equation.primitive in primitives("not"):
            waiting.append((maker.inputs[0], axis, 1 - truth))
        elif maker is not None and maker.equation.primitive in primitives("or" if truth else "and"):
            waiting += [(part, axis, truth) for part in maker.inputs]
        elif maker is not None and maker.equation.primitive in primitives("mul") and not truth:
            factors = [flags for part in maker.inputs if (flags := flags_of(part, axis, origins)) is not None]
            waiting += [each[:3] for each in factors]
        else:
            yield condition, axis, truth


def laid_out(value: Value, axis: int | None, origins: Origins, through: Set[Any] = _SAME) -> tuple[Value, int | None]:
    """A value before it was laid out, and its axis there that is one of it; None where it is the same along that.

    Args:
        value: The value.
        axis: The axis.
        origins: The origins of values.
        through: Further operations that it may have gone through.
    """
    return laid_out_in(value, axis, (), origins, through)[:2]


def laid_out_in(
    value: Value, axis: int | None, calls: Sequence[Step], origins: Origins, through: Set[Any] = _SAME
) -> tuple[Value, int | None, tuple[Step, ...]]:
    """The same for a value that is met in calls, and the calls that the value before is met in."""
    axis = axis if value.shape else None
    while True:
        value, calls = origins.met(value, through, calls)
        maker = value.maker
        if maker is None or maker.equation.primitive not in LAID_OUT | primitives("transpose"):
            return value, axis, calls
        if maker.equation.primitive in primitives("transpose"):
            axis = None if axis is None else maker.equation.params["permutation"][axis]
        elif axis is not None:
            before = axes_before(maker)
            if before is None:
                return value, axis, calls
            axis = before[axis]
        value = maker.inputs[0]
