"""Attention weights between the softmax and the values: masks that come too late, and sums that are always one."""

from __future__ import annotations

import collections
from collections.abc import Iterator

import jax
import jax.numpy as jnp

from lox._audit._audited import Audited
from lox._audit._checks._numerics._attention import AXIS, MASK
from lox._audit._checks._numerics._integers import is_float
from lox._audit._checks._numerics._masks import Mask, flags_of, laid_out, masks_of
from lox._audit._checks._numerics._squashes import Squash, squashes
from lox._audit._findings import Finding
from lox._audit._location import called, is_users, transformations
from lox._audit._origins import Origins
from lox._audit._program import Step, Value, is_call
from lox._audit._rules import primitives

_SAME = primitives("convert_element_type")
_MOST = 200
"""From how many values a mask is computed before nothing is said about it."""


def masked_late(audited: Audited) -> Iterator[Finding]:
    """LOX816: weights are set to zero after the softmax that made them add up to one."""
    known, origins = audited.once(squashes), audited.origins
    if not any(squash.name == "softmax" for squash in known.values()):
        return
    early = audited.once(_masked_early)
    summed = {origins.of(step.inputs[0], _SAME) for step, _ in audited.of("reduce_sum")}
    for step, location in audited.of("dot_general"):
        if "transpose" in transformations(step.equation) or not is_users(location.of_user.file):
            continue
        contracted, batched = step.equation.params["dimension_numbers"]
        for place, value in enumerate(step.inputs[:2]):
            axes, other = contracted[place], step.inputs[1 - place]
            is_sum_of_vectors = len(axes) == 1 and len(other.shape) > 1 + len(batched[place])
            found = _late(value, axes[0], known, origins) if is_sum_of_vectors else None
            if found is not None and found[1] not in early and origins.of(found[0], _SAME) not in summed:
                yield MASK.at(
                    found[1].location,
                    "Weights are masked after the softmax: those that are left do not add up to one, and depend on the "
                    "logits that are masked.",
                )


def _late(value: Value, axis: int, known: dict[Step, Squash], origins: Origins) -> tuple[Value, Squash] | None:
    """Weights that are masked, and the softmax that they come out of."""
    masked: Value | None = None
    place: int | None = axis
    while True:
        value, place = laid_out(value, place, origins)
        maker = value.maker
        if maker is None or place is None:
            return None
        squash = known.get(maker)
        if squash is not None:
            is_softmax = squash.name == "softmax" and squash.axes == (place,)
            return (masked, squash) if masked is not None and is_softmax else None
        if maker.equation.primitive in _SAME:
            (value,) = maker.inputs
            continue
        if (scaled := _scaled(maker)) is not None:
            value = scaled
            continue
        mask, before = _mask_of_factor(maker, place, origins) or mask_of(maker, place, origins)
        if mask is None or mask.axis is None or mask.condition.shape[mask.axis] == 1:
            return None
        if is_one_hot(mask.condition, origins) or not is_of_data(mask.condition, origins):
            return None
        masked, value = masked or value, before


def _scaled(maker: Step) -> Value | None:
    """The operand of a step that multiplies or divides it by a known number; None for another step."""
    if maker.equation.primitive not in primitives("mul", "div"):
        return None
    one, other = maker.inputs
    if other.number is None and maker.equation.primitive in primitives("mul"):
        one, other = other, one
    return one if one.number is None and other.number else None


def _mask_of_factor(maker: Step, axis: int, origins: Origins) -> tuple[Mask, Value] | None:
    """For `weights * (mask * other)`: the mask, and the weights."""
    for one, other in (maker.inputs, maker.inputs[::-1]) if maker.equation.primitive in primitives("mul") else ():
        factor, place = laid_out(other, axis, origins)
        made = factor.maker
        if made is not None and place is not None and made.equation.primitive in primitives("mul"):
            flags = next((each for value in made.inputs if (each := flags_of(value, place, origins))), None)
            if flags is not None:
                return flags, one
    return None


def _masked_early(audited: Audited) -> set[Squash]:
    """The softmaxes of which logits are masked before, in one of the calls that they are in."""
    outside = collections.defaultdict[Value, list[Value]](list)
    for step, _ in audited.steps:
        for region in step.regions if is_call(step) else ():
            for outer, inner, _ in region.inputs:
                outside[inner].append(outer)
    found = set()
    for squash in audited.once(squashes).values():
        left = [squash.logits] if squash.name == "softmax" and len(squash.axes) == 1 else []
        for value in left:
            if value.maker is None and value in outside:
                left += outside[value]
            elif any(mask.number < -1e3 for mask in masks_of(value, squash.axes[0], audited.origins)):
                found.add(squash)
    return found


def mask_of(maker: Step, axis: int, origins: Origins) -> tuple[Mask | None, Value]:
    """The mask by which a step sets some elements to zero, and what the elements were before."""
    if maker.equation.primitive in primitives("select_n") and len(maker.inputs) == 3:
        which, *cases = maker.inputs
        zeros = [truth for truth, case in enumerate(cases) if origins.of(case).number == 0]
        if len(zeros) == 1 and which.shape:
            condition, place = laid_out(which, axis, origins)
            return Mask(condition, place, zeros[0]), cases[1 - zeros[0]]
    if maker.equation.primitive in primitives("mul"):
        for one, other in (maker.inputs, maker.inputs[::-1]):
            flags = flags_of(other, axis, origins)
            if flags is not None:
                return flags, one
    return None, maker.outputs[0]


def is_one_hot(condition: Value, origins: Origins) -> bool:
    """Say whether a condition compares numbers with those of a range, as what chooses one element does."""
    maker = condition.maker
    if maker is None or maker.equation.primitive not in primitives("eq"):
        return False
    made = (laid_out(origins.of(each, _SAME), None, origins)[0].maker for each in maker.inputs)
    return any(each is not None and each.equation.primitive in primitives("iota") for each in made)


def is_of_data(condition: Value, origins: Origins, *, of_arguments: bool = False) -> bool:
    """Say whether a condition is computed from constants, integers and flags alone, and nothing is drawn.

    Args:
        condition: The condition, or an index.
        origins: Where values come from.
        of_arguments: Whether constants alone do not count.
    """
    waiting, seen, is_given = [condition], set[Value](), False
    while waiting:
        value = origins.of(waiting.pop())
        if value in seen or value.number is not None:
            continue
        seen.add(value)
        dtype = getattr(value.aval, "dtype", None)
        if len(seen) > _MOST or dtype is None or jnp.issubdtype(dtype, jax.dtypes.prng_key):
            return False
        if value.maker is None and value.constant is None and is_float(value):
            return False
        is_given |= value.maker is None and value.constant is None
        waiting += value.maker.inputs if value.maker is not None else ()
    return is_given or not of_arguments


def summed_alone(audited: Audited) -> Iterator[Finding]:
    """LOX815: an einsum sums weights over the axis along which they add up to one, without the values."""
    known, origins = audited.once(squashes), audited.origins
    for step, location in audited.of("reduce_sum") if known else ():
        axes = step.equation.params["axes"]
        if len(axes) != 1 or called(step.equation) != "einsum" or "transpose" in transformations(step.equation):
            continue
        weights, place = laid_out(step.inputs[0], axes[0], origins)
        squash = known.get(weights.maker) if weights.maker is not None else None
        if squash is not None and squash.name == "softmax" and squash.axes == (place,):
            yield AXIS.at(
                location,
                f"An einsum sums the weights of shape {weights.shape} over axis {place} by themselves, along which "
                "they are normalized: each sum is 1. Give that axis the same letter in both operands.",
            )


KINDS = ()
CHECKS = (masked_late, summed_alone)
