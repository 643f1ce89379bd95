"""Attention weights between the softmax and the values: masks that come too late, and sums that are always one."""

from __future__ import annotations

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
from lox._audit._program import Step, Value
from lox._audit._rules import primitives

_SAME = primitives("convert_element_type")
_MOST = 200
"""From how many values a mask is computed before nothing is said about it."""


def masked_late(audited: Audited) -> Iterator[Finding]:
    """LOX816: weights are set to zero after the softmax that made them add up to one."""
    known, origins = audited.once(squashes), audited.origins
    if not any(squash.name == "softmax" for squash in known.values()):
        return
    summed = {origins.of(step.inputs[0], _SAME) for step, _ in audited.of("reduce_sum")}
    for step, location in audited.of("dot_general"):
        if "transpose" in transformations(step.equation) or not is_users(location.of_user.file):
            continue
        contracted, batched = step.equation.params["dimension_numbers"]
        for place, value in enumerate(step.inputs[:2]):
            axes, other = contracted[place], step.inputs[1 - place]
            is_sum_of_vectors = len(axes) == 1 and len(other.shape) > 1 + len(batched[place])
            found = _late(value, axes[0], known, origins) if is_sum_of_vectors else None
            if found is not None and origins.of(found[0], _SAME) not in summed:
                yield MASK.at(
                    found[1].location,
                    "Weights are masked after the softmax: those that are left do not add up to one, and depend on the "
                    "logits that are masked.",
                )


def _late(value: Value, axis: int, known: dict[Step, Squash], origins: Origins) -> tuple[Value, Squash] | None:
    """Weights that are masked, and the softmax that they come out of, of which no logits are masked."""
    masked: Value | None = None
    place: int | None = axis
    while True:
        value, place = laid_out(value, place, origins)
        maker = value.maker
        if maker is None or place is None:
            return None
        squash = known.get(maker)
        if squash is not None:
            is_softmax = squash.name == "softmax" and squash.axes == (place,) and masked is not None
            early = masks_of(squash.logits, place, origins) if is_softmax else ()
            return None if masked is None or not is_softmax or any(m.number < -1e3 for m in early) else (masked, squash)
        if maker.equation.primitive in _SAME:
            (value,) = maker.inputs
            continue
        mask, before = _mask(maker, place, origins)
        if mask is None or mask.axis is None or mask.condition.shape[mask.axis] == 1:
            return None
        if _is_one_hot(mask.condition, origins) or not is_of_data(mask.condition, origins):
            return None
        masked, value = masked or value, before


def _mask(maker: Step, axis: int, origins: Origins) -> tuple[Mask | None, Value]:
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


def _is_one_hot(condition: Value, origins: Origins) -> bool:
    """Whether a condition compares numbers with those of a range, as what chooses one element does."""
    maker = condition.maker
    if maker is None or maker.equation.primitive not in primitives("eq"):
        return False
    made = (laid_out(origins.of(each, _SAME), None, origins)[0].maker for each in maker.inputs)
    return any(each is not None and each.equation.primitive in primitives("iota") for each in made)


def is_of_data(condition: Value, origins: Origins) -> bool:
    """Whether a condition is computed from constants, integers and flags alone, and nothing is drawn."""
    waiting, seen = [condition], set[Value]()
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
        if value.maker is not None and value.maker.equation.primitive in primitives("random_bits", "threefry2x32"):
            return False
        waiting += value.maker.inputs if value.maker is not None else ()
    return True


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
                f"An einsum sums the weights of shape {weights.shape} over axis {place} by themselves, along which they "
                "are normalized: each sum is 1. Give that axis the same letter in both operands.",
            )


KINDS = ()
CHECKS = (masked_late, summed_alone)
