"""The numbers that are at some places in an array which a program makes of constants."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from lox._audit._origins import LAID_OUT, Origins, axes_before
from lox._audit._program import Step, Value
from lox._audit._rules import primitives

Index = tuple[Any, ...]
"""The places along each axis, as arrays of one shape."""

_BY_NAME: dict[str, Callable[..., Any]] = {
    **{name: getattr(operator, name) for name in ("add", "sub", "mul", "neg", "lt", "le", "gt", "ge", "eq", "ne")},
    **{"abs": np.abs, "max": np.maximum, "min": np.minimum},
    **{"div": np.divide, "sqrt": np.sqrt, "square": np.square, "sin": np.sin, "cos": np.cos, "exp": np.exp},
    **{"and": np.logical_and, "or": np.logical_or, "not": np.logical_not},
}
_FUNCTIONS = {primitive: function for name, function in _BY_NAME.items() for primitive in primitives(name)}
_SAME = primitives("stop_gradient", "copy", "sharding_constraint", "reshard", "name")
_DEEP = 30


def elements(value: Value, index: Index, origins: Origins, depth: int = _DEEP) -> Any:
    """The elements of an array at places, or None where they are not known."""
    value = origins.of(value, _SAME)
    while (outside := origins.shared(value)) is not None:
        value = origins.of(outside, _SAME)
    maker = value.maker
    if value.number is not None:
        return np.full(np.shape(index[0]) if index else (), value.number)
    if maker is None:
        return None if value.constant is None else np.asarray(value.constant)[index]
    if not depth:
        return None
    primitive, params = maker.equation.primitive, maker.equation.params
    if primitive in primitives("iota"):
        return index[params["dimension"]]
    if primitive in primitives("convert_element_type"):
        found = elements(maker.inputs[0], index, origins, depth - 1)
        return None if found is None else found.astype(params["new_dtype"])
    if primitive in primitives("transpose"):
        order = params["permutation"]
        return elements(
            maker.inputs[0], tuple(index[order.index(axis)] for axis in range(len(order))), origins, depth - 1
        )
    if primitive in LAID_OUT:
        return _laid_out(maker, index, origins, depth)
    if primitive in primitives("select_n") and len(maker.inputs) == 3:
        which, one, other = (_operand(each, index, origins, depth) for each in maker.inputs)
        return None if which is None or one is None or other is None else np.where(which, other, one)
    if primitive in _FUNCTIONS:
        found = [_operand(each, index, origins, depth) for each in maker.inputs]
        with np.errstate(all="ignore"):
            return None if any(each is None for each in found) else _FUNCTIONS[primitive](*found)
    if primitive in primitives("slice"):
        starts, strides = params["start_indices"], params["strides"] or (1,) * len(index)
        own = tuple(start + at * stride for start, at, stride in zip(starts, index, strides, strict=True))
        return elements(maker.inputs[0], own, origins, depth - 1)
    if primitive in primitives("concatenate"):
        return _joined(maker, index, origins, depth)
    return None


def _joined(maker: Step, index: Index, origins: Origins, depth: int) -> Any:
    """The elements of arrays one after another."""
    axis, start, found = maker.equation.params["dimension"], 0, None
    for each in maker.inputs:
        inside = (index[axis] >= start) & (index[axis] < start + each.shape[axis])
        moved = [np.where(inside, at - start * (place == axis), 0) for place, at in enumerate(index)]
        own = elements(each, tuple(moved), origins, depth - 1)
        if own is None:
            return None
        found = own if found is None else np.where(inside, own, found)
        start += each.shape[axis]
    return found


def _operand(value: Value, index: Index, origins: Origins, depth: int) -> Any:
    """The elements of an operand, which may have one element along an axis, or no axes."""
    if not value.shape:
        found = elements(value, (), origins, depth - 1)
        return None if found is None else np.broadcast_to(found, np.shape(index[0]) if index else ())
    own = tuple(np.zeros_like(at) if size == 1 else at for at, size in zip(index, value.shape, strict=True))
    return elements(value, own, origins, depth - 1)


def _laid_out(maker: Step, index: Index, origins: Origins, depth: int) -> Any:
    before, (operand, *_) = axes_before(maker), maker.inputs
    if before is None:
        return None
    if not operand.shape:
        return _operand(operand, index, origins, depth)
    zeros = np.zeros_like(index[0]) if index else np.zeros((), int)
    places = {axis: at for axis, at in zip(before, index, strict=True) if axis is not None}
    own = tuple(zeros if size == 1 else places.get(axis, zeros) for axis, size in enumerate(operand.shape))
    return elements(operand, own, origins, depth - 1)


def other_axis(condition: Value, axis: int) -> int | None:
    """The only other axis of a condition that has more than one element."""
    long = [place for place, size in enumerate(condition.shape) if size > 1 and place != axis]
    return long[0] if len(long) == 1 else None


def kept(condition: Value, axes: tuple[int, int], truth: int, origins: Origins, *places: Any) -> Any:
    """Whether a mask keeps elements, by their places along two axes; None where that is not known."""
    index = [np.zeros_like(places[0]) for _ in condition.shape]
    for axis, at in zip(axes, places, strict=True):
        index[axis] = at
    found = elements(condition, tuple(index), origins)
    return None if found is None else found.astype(bool) != bool(truth)
