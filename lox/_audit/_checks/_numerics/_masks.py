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
from lox._audit._ranges import COMPARISONS
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
        is_guarded: Whether something else than -inf may be chosen afterwards, where logits are masked.
        calls: The calls that the condition is met in.
    """

    condition: Value
    axis: int | None
    truth: int
    number: float = 0.0
    is_added: bool = False
    is_guarded: bool = False
    calls: tuple[Step, ...] = ()


class _Part(NamedTuple):
    """A value that logits are made of: `scale * value + shift`, perhaps with more added."""

    value: Value
    axis: int | None
    scale: float = 1.0
    shift: float = 0.0
    is_added: bool = False
    is_guarded: bool = False
    calls: tuple[Step, ...] = ()


def masks_of(logits: Value, axis: int | None, origins: Origins) -> Iterator[Mask]:
    """The choices between logits and a number, and the numbers that are added by a choice."""
    waiting = [_Part(logits, axis)]
    for _ in range(_MOST):
        if not waiting:
            return
        part = waiting.pop()
        value, place, calls = laid_out_in(part.value, part.axis, part.calls, origins)
        part = part._replace(value=value, axis=place, calls=calls)
        chosen = _choice(value, calls, origins)
        if chosen is not None:
            yield from _chosen(part, *chosen)
        maker = value.maker
        if maker is None or maker.blocks or value.aval.dtype == jnp.bool_:
            continue
        if maker.equation.primitive in primitives("select_n"):
            waiting += _cases(part, maker, origins)
        elif maker.equation.primitive in primitives("convert_element_type"):
            waiting.append(part._replace(value=maker.inputs[0]))
        elif maker.equation.primitive in primitives("mul", "div", "add", "sub"):
            yield from _multiplied(part, maker, origins)
            waiting += _operands(part, maker)


def _cases(part: _Part, maker: Step, origins: Origins) -> Iterator[_Part]:
    """The arrays that one is chosen from, as parts of what it is a part of."""
    numbers = [_number(case, part.calls, origins) for case in maker.inputs[1:]]
    keeps_infinite = all(number is None or part.scale * number + part.shift == -math.inf for number in numbers)
    is_guarded = part.is_guarded or not keeps_infinite or numbers.count(None) > 1
    for case in maker.inputs[1:]:
        if case.number is None:
            yield part._replace(value=case, is_guarded=is_guarded)


def _number(value: Value, calls: Sequence[Step], origins: Origins) -> float | None:
    return origins.met(value, entered=calls)[0].number


def _choice(value: Value, calls: Sequence[Step], origins: Origins) -> tuple[Value, float | None, float | None] | None:
    """By what the elements of a value are chosen, and the numbers that they are where that is false, and true."""
    maker = value.maker
    if maker is None:
        is_float = jnp.issubdtype(getattr(value.aval, "dtype", jnp.bool_), jnp.floating)
        return (value, 0.0, 1.0) if is_float and value.shape and _MASK.fullmatch(last_name(value.name)) else None
    if maker.equation.primitive in primitives("convert_element_type") and maker.inputs[0].aval.dtype == jnp.bool_:
        return maker.inputs[0], 0.0, 1.0
    if maker.equation.primitive in primitives("select_n") and len(maker.inputs) == 3:
        condition, *cases = maker.inputs
        numbers = [_number(case, calls, origins) for case in cases]
        return (condition, numbers[0], numbers[1]) if numbers != [None, None] else None
    return None


def _chosen(part: _Part, condition: Value, *numbers: float | None) -> Iterator[Mask]:
    axis = part.axis if condition.shape else None
    made = [None if each is None else part.scale * each + part.shift for each in numbers]
    for truth, number in enumerate(made):
        other = made[1 - truth]
        masks = other == 0 if part.is_added else other is None
        if number is not None and not math.isnan(number) and (masks or (math.isinf(number) and other is None)):
            is_added = part.is_added and other is not None
            yield Mask(condition, axis, truth, number, is_added, part.is_guarded, part.calls)


def _multiplied(part: _Part, maker: Step, origins: Origins) -> Iterator[Mask]:
    """A choice of zero or one that logits are multiplied by."""
    if maker.equation.primitive not in primitives("mul") or part.is_added:
        return
    for one, other in (maker.inputs, maker.inputs[::-1]):
        flags = flags_of(one, part.axis, origins, part.calls)
        if flags is not None and other.number is None and flags_of(other, part.axis, origins, part.calls) is None:
            yield flags


def flags_of(value: Value, axis: int | None, origins: Origins, calls: Sequence[Step] = ()) -> Mask | None:
    """The choice that makes a value zero or one, by where it makes it zero; of a product of these, the product."""
    value, axis, calls = laid_out_in(value, axis, calls, origins)
    if value.maker is not None and value.maker.equation.primitive in primitives("sub"):
        one, other = value.maker.inputs
        flags = flags_of(other, axis, origins, calls) if one.number == 1 else None
        return None if flags is None else flags._replace(truth=1 - flags.truth)
    if value.maker is not None and value.maker.equation.primitive in primitives("mul"):
        factors = [flags_of(each, axis, origins, calls) for each in value.maker.inputs]
        return None if None in factors else Mask(value, axis, 0, calls=calls)
    if (outer := _factors_of_outer_product(value, axis)) is not None:
        factors = [flags_of(*each, origins, calls) for each in outer]
        return None if None in factors else Mask(value, axis, 0, calls=calls)
    found = _choice(value, calls, origins)
    if found is None or {*found[1:]} != {0.0, 1.0}:
        return None
    condition = found[0]
    return Mask(condition, axis if condition.shape else None, int(found[2] == 0), calls=calls)


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
    waiting = [mask]
    while waiting:
        part = waiting.pop()
        condition, axis, calls = laid_out_in(part.condition, part.axis, part.calls, origins)
        part, maker = Mask(condition, axis, part.truth, calls=calls), condition.maker
        outer = None if part.truth else _factors_of_outer_product(condition, axis)
        if maker is not None and maker.equation.primitive in primitives("not"):
            waiting.append(part._replace(condition=maker.inputs[0], truth=1 - part.truth))
        elif maker is not None and maker.equation.primitive in primitives("or" if part.truth else "and"):
            waiting += [part._replace(condition=each) for each in maker.inputs]
        elif maker is not None and maker.equation.primitive in primitives("mul") and not part.truth:
            factors = [flags_of(each, axis, origins, calls) for each in maker.inputs]
            waiting += [flags for flags in factors if flags is not None]
        elif outer is not None:
            waiting += [flags for each in outer if (flags := flags_of(*each, origins, calls)) is not None]
        elif (compared := _flags_compared(part, origins)) is not None:
            waiting.append(compared)
        else:
            yield condition, axis, part.truth


def _factors_of_outer_product(value: Value, axis: int | None) -> list[tuple[Value, int | None]] | None:
    """The operands of a product that sums nothing, each with its axis that is one of the result."""
    maker = value.maker
    if maker is None or maker.equation.primitive not in primitives("dot_general"):
        return None
    summed, batches = maker.equation.params["dimension_numbers"]
    if summed[0]:
        return None
    places: list[dict[int, int]] = [{}, {}]
    place = len(batches[0])
    for side, (operand, batch) in enumerate(zip(maker.inputs[:2], batches, strict=True)):
        places[side].update(enumerate(batch))
        free = [each for each in range(len(operand.shape)) if each not in batch]
        places[side].update(enumerate(free, place))
        place += len(free)
    return [
        (operand, None if axis is None else own.get(axis))
        for operand, own in zip(maker.inputs[:2], places, strict=True)
    ]


def _flags_compared(part: Mask, origins: Origins) -> Mask | None:
    """The flags in a comparison with a number, as in `mask > 0`, and their truth where it has this one."""
    maker = part.condition.maker
    compare = COMPARISONS.get(maker.equation.primitive) if maker is not None else None
    if maker is None or compare is None:
        return None
    one, other = (_number(each, part.calls, origins) for each in maker.inputs)
    if (one is None) == (other is None):
        return None
    flags = flags_of(maker.inputs[0 if one is None else 1], part.axis, origins, part.calls)
    of_zero, of_one = (compare(number if one is None else one, other if one is None else number) for number in (0, 1))
    if flags is None or of_zero == of_one:
        return None
    return flags._replace(truth=flags.truth if of_zero == part.truth else 1 - flags.truth)


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
