"""All pairs of an array's elements, in which each element meets itself."""

from __future__ import annotations

import numpy as np

from lox._audit._checks._numerics._elements import kept
from lox._audit._checks._numerics._masks import laid_out
from lox._audit._origins import Origins
from lox._audit._program import Value, alike
from lox._audit._rules import primitives

Axes = tuple[int, int]

_DEEP = 20
_ZERO_OF_ZERO = primitives("sqrt", "square", "abs", "neg", "convert_element_type", "stop_gradient", "copy")


def paired_without_themselves(condition: Value, truth: bool, origins: Origins) -> Axes | None:
    """The two axes of a condition of constants which never has a truth where the places along both are equal.

    Args:
        condition: The condition, such as that of a jnp.where.
        truth: The truth.
        origins: Of the program.
    """
    long = [axis for axis, size in enumerate(condition.shape) if size > 1]
    if len(long) != 2 or condition.shape[long[0]] != condition.shape[long[1]]:
        return None
    axes, last = (long[0], long[1]), condition.shape[long[0]] - 1
    one, other = np.array([0, last, last // 2, 0, last]), np.array([0, last, last // 2, last, 0])
    has = kept(condition, axes, int(not truth), origins, one, other)
    return axes if has is not None and not has[:3].any() and has[3:].any() else None


def is_zero_in_pairs(value: Value, axes: Axes, origins: Origins, depth: int = _DEEP) -> bool:
    """Say whether a value is made of differences that are zero where the places along two axes are equal."""
    (value, one), (same, other) = (laid_out(value, axis, origins) for axis in axes)
    maker = value.maker
    if maker is None or value is not same or one is None or other is None or not depth:
        return False
    primitive, params = maker.equation.primitive, maker.equation.params
    axes = one, other
    if primitive in primitives("sub"):
        return _is_difference(maker.inputs[0], maker.inputs[1], axes, origins)
    if primitive in primitives("reduce_sum"):
        left = [axis for axis in range(len(maker.inputs[0].shape)) if axis not in params["axes"]]
        return is_zero_in_pairs(maker.inputs[0], (left[one], left[other]), origins, depth - 1)
    if primitive in primitives("add", "max"):
        return all(is_zero_in_pairs(each, axes, origins, depth - 1) for each in maker.inputs)
    if primitive in primitives("mul"):
        numbers = [each for each in maker.inputs if each.number is not None]
        factors = [each for each in maker.inputs if each not in numbers]
        is_power = len(factors) == 1 or alike(*maker.inputs)
        return bool(factors) and is_power and is_zero_in_pairs(factors[0], axes, origins, depth - 1)
    if primitive in _ZERO_OF_ZERO or (primitive in primitives("integer_pow") and params["y"] > 0):
        return is_zero_in_pairs(maker.inputs[0], axes, origins, depth - 1)
    return False


def _is_difference(one: Value, other: Value, axes: Axes, origins: Origins) -> bool:
    """Say whether two values are one array, laid out along one of the axes and along the other."""
    crossed = dict(zip(axes, axes[::-1], strict=True))
    is_along = False
    for axis in range(len(one.shape)):
        before, after = (
            laid_out(each, place, origins) for each, place in ((one, axis), (other, crossed.get(axis, axis)))
        )
        if before != after:
            return False
        is_along |= axis in axes and before[1] is not None
    return is_along
