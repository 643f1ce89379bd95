"""Weights of a softmax and what they multiply: late masks, sums that are always one, and sums of segments."""

from __future__ import annotations

import collections
import math
from collections.abc import Iterator

import jax
import jax.numpy as jnp

from lox._audit._audited import Audited
from lox._audit._checks._numerics._attention import AXIS, MASK, floats_of
from lox._audit._checks._numerics._exponentials import made_by
from lox._audit._checks._numerics._integers import is_float
from lox._audit._checks._numerics._masks import Mask, flags_of, laid_out, masks_of
from lox._audit._checks._numerics._squashes import Squash, squashes
from lox._audit._findings import Finding
from lox._audit._location import called, is_users, transformations
from lox._audit._origins import FLOWS, Origins
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


def divided_again(audited: Audited) -> Iterator[Finding]:
    """LOX815: weights are divided by their sum along the axis of the softmax, and then summed along another one."""
    known, origins = audited.once(squashes), audited.origins
    if not any(squash.name == "softmax" for squash in known.values()):
        return
    again: dict[Step, int] = {}
    for step, location in audited.of("div"):
        axis = _sum_of_one(step, known, origins) if is_users(location.of_user.file) else None
        if axis is not None:
            again[step] = axis
    summed = _summed(audited) if again else set()
    for step, _ in audited.of("dot_general") if again else ():
        for place, axes in enumerate(step.equation.params["dimension_numbers"][0]):
            found = [laid_out(step.inputs[place], axis, origins) for axis in axes]
            maker = found[0][0].maker if found else None
            along = again.get(maker) if maker is not None else None
            if maker is None or along is None or "transpose" in transformations(step.equation):
                continue
            others = {axis for _, axis in found if axis is not None}
            if (
                along not in others
                and others
                and summed.isdisjoint((_parts(maker.inputs[0], origins)[-1], found[0][0]))
            ):
                yield AXIS.at(
                    audited.lines[maker],
                    f"Weights are divided by their sum over axis {along}, over which a softmax has normalized them: it "
                    f"is 1. Their product sums over axis {min(others)}, where they do not add up to one.",
                )
                del again[maker]


def _sum_of_one(step: Step, known: dict[Step, Squash], origins: Origins) -> int | None:
    """The axis of a softmax, if a step divides its result by the sum along that."""
    one, total = step.inputs
    weights = _parts(one, origins)
    added = made_by(_parts(total, origins)[-1], primitives("reduce_sum"))
    if added is None or len(added.equation.params["axes"]) != 1:
        return None
    value, axis = laid_out(added.inputs[0], added.equation.params["axes"][0], origins)
    squash = known.get(weights[-1].maker)  # type: ignore[arg-type]
    if squash is None or squash.name != "softmax" or squash.axes != (axis,) or value not in weights:
        return None
    return axis if weights[-1].shape == step.outputs[0].shape else None


def _parts(value: Value, origins: Origins) -> list[Value]:
    """A value, and what it is before numbers were added to it."""
    found = [origins.of(value, FLOWS)]
    while (maker := made_by(found[-1], primitives("add", "max"))) is not None:
        arrays = [each for each in maker.inputs if each.number is None]
        if len(arrays) != 1:
            break
        found.append(origins.of(arrays[0], FLOWS))
    return found


def _summed(audited: Audited) -> set[Value]:
    """The arrays that are summed, without softmaxes that are summed along their own axis."""
    known, found = audited.once(squashes), set()
    for step, _ in audited.of("reduce_sum"):
        value = _parts(step.inputs[0], audited.origins)[-1]
        squash = known.get(value.maker)  # type: ignore[arg-type]
        if squash is None or squash.axes != tuple(step.equation.params["axes"]):
            found.add(value)
    return found


def of_all_segments(audited: Audited) -> Iterator[Finding]:
    """LOX815: weights that add up to one over all elements of an axis are summed by segments of it."""
    known, origins = audited.once(squashes), audited.origins
    if not any(squash.name == "softmax" for squash in known.values()):
        return
    scatters = [each for each in audited.of("scatter_add") if "transpose" not in transformations(each[0].equation)]
    alone = {made for step, _ in scatters if (made := origins.of(step.inputs[2], FLOWS).maker) in known}
    for step, location in scatters:
        array, indices, messages = step.inputs
        numbers = step.equation.params["dimension_numbers"]
        axes = [axis for axis in range(len(messages.shape)) if axis not in numbers.update_window_dims]
        is_vectors = math.prod(messages.shape[axis] for axis in numbers.update_window_dims) > 1
        if len(axes) != 1 or not is_vectors or array.number != 0 or not is_users(location.of_user.file):
            continue
        squash = _softmax_of_factor(messages, axes[0], known, origins)
        if squash is not None and squash.step not in alone and is_of_data(indices, origins, of_arguments=True):
            yield AXIS.at(
                squash.location,
                f"The softmax goes over all {messages.shape[axes[0]]} elements of an axis, and the products with its "
                "weights are summed by segment: the weights of a segment do not add up to one. Divide the exponentials "
                "by the jax.ops.segment_sum of them.",
            )


def _softmax_of_factor(product: Value, axis: int, known: dict[Step, Squash], origins: Origins) -> Squash | None:
    """The softmax along an axis that an array is multiplied by, if its logits are computed from that array."""
    value, place = laid_out(product, axis, origins)
    maker = made_by(value, primitives("mul"))
    for one, other in (maker.inputs, maker.inputs[::-1]) if maker is not None and place is not None else ():
        weights, along = laid_out(one, place, origins)
        squash = known.get(weights.maker)  # type: ignore[arg-type]
        if squash is None or squash.name != "softmax" or squash.axes != (along,) or along is None:
            continue
        before = floats_of(squash.logits, origins)
        if before is not None and not before.isdisjoint(floats_of(other, origins) or ()):
            return squash
    return None


KINDS = ()
CHECKS = (masked_late, summed_alone, divided_again, of_all_segments)
