"""Follows an axis of a value back to the arrays that it comes from."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import jax.numpy as jnp

from lox._audit._checks._numerics._exponentials import made_by
from lox._audit._checks._numerics._masks import laid_out, laid_out_in
from lox._audit._loops import loop_of
from lox._audit._origins import Origins
from lox._audit._program import Step, Value
from lox._audit._rules import primitives

_MOST = 2000
_STEPS = -1
"""Stands for the axis of the iterations, in the body of a scan."""
_BLOCKING = primitives(
    *("rev", "sort", "pad", "scatter", "scatter_add", "dynamic_slice", "dynamic_update_slice", "roll"),
    *("cumsum", "cumprod", "cummax", "cumlogsumexp", "conv_general_dilated"),
)
_SUMS = primitives("reduce_sum", "reduce_max", "reduce_min", "argmax", "argmin", "reduce_and", "reduce_or")


@dataclasses.dataclass(frozen=True)
class Along:
    """A value, and the axis of it that is followed.

    Attributes:
        value: The value.
        axis: The axis.
        offset: At which element of it the first element is that was asked for.
        is_index: Whether it is an index, and not what is made of what was looked up.
        calls: The calls that the value is met in.
        is_carried: Whether the axis is that of the iterations of a scan that carries something.
    """

    value: Value
    axis: int
    offset: int = 0
    is_index: bool = False
    calls: tuple[Step, ...] = ()
    is_carried: bool = False


def sources(start: Along, origins: Origins) -> Iterator[Along]:
    """Follow an axis of a value back to where its places begin.

    Yields:
        The arrays from outside, or out of a reshape or a concatenation, whose elements are at the places along it, each
        with its axis there.
    """
    left, seen = [start], set[Along]()
    while left and len(seen) < _MOST:
        here = left.pop()
        known = None if here.axis == _STEPS else here.axis
        value, axis, calls = laid_out_in(here.value, known, here.calls, origins)
        if axis is None and here.axis != _STEPS:
            continue
        here = dataclasses.replace(here, value=value, axis=_STEPS if axis is None else axis, calls=calls)
        if here in seen:
            continue
        seen.add(here)
        if value.maker is not None:
            if value.maker.equation.primitive in primitives("reshape", "concatenate"):
                yield here
            left += _before(here, value.maker, origins)
            continue
        if (same := origins.shared(value)) is not None and here.axis != _STEPS:
            left.append(dataclasses.replace(here, value=same))
        elif (outside := origins.scanned(value)) is not None:
            left.append(dataclasses.replace(here, value=outside, axis=here.axis + 1))
        elif here.axis != _STEPS and value.constant is None:
            yield here


def _before(here: Along, maker: Step, origins: Origins) -> Iterator[Along]:
    """The operands of a step that have elements at the same places along an axis."""
    primitive, params, axis = maker.equation.primitive, maker.equation.params, here.axis
    if primitive in primitives("scan"):
        yield from _of_scan(here, maker)
    elif maker.blocks or primitive in _BLOCKING:
        return
    elif primitive in primitives("slice"):
        start = params["start_indices"][axis] if axis != _STEPS else 0
        if axis == _STEPS or params["strides"] is None or params["strides"][axis] == 1:
            yield dataclasses.replace(here, value=maker.inputs[0], offset=here.offset + start)
    elif here.is_index:
        at = 1 if primitive in primitives("select_n", "clamp") else 0
        if primitive in primitives("select_n", "clamp", "convert_element_type"):
            yield dataclasses.replace(here, value=maker.inputs[at])
    elif primitive in primitives("gather"):
        yield from _of_lookup(here, maker)
    elif primitive in primitives("dot_general"):
        yield from _of_product(here, maker)
    elif primitive in _SUMS:
        kept = [each for each in range(len(maker.inputs[0].shape)) if each not in params["axes"]]
        yield dataclasses.replace(here, value=maker.inputs[0], axis=axis if axis == _STEPS else kept[axis])
    elif primitive in primitives("eq"):
        for one, other in (maker.inputs, maker.inputs[::-1]):
            if made_by(laid_out(other, None, origins)[0], primitives("iota")) is not None:
                yield dataclasses.replace(here, value=one, is_index=True)
    elif primitive not in primitives("concatenate") or params["dimension"] != axis:
        rank = len(here.value.shape)
        for each in maker.inputs:
            if len(each.shape) == rank and (axis == _STEPS or each.shape[axis] == here.value.shape[axis]):
                if jnp.issubdtype(each.aval.dtype, jnp.floating) or primitive in primitives("convert_element_type"):
                    yield dataclasses.replace(here, value=each)


def _of_scan(here: Along, maker: Step) -> Iterator[Along]:
    """A result of a scan is followed into the body, and what the scan carries to its initial value."""
    scan, place = loop_of(maker), maker.outputs.index(here.value)
    if place < len(scan.carry):
        yield dataclasses.replace(here, value=scan.carry[place][0])
    elif here.axis > 0:
        yield dataclasses.replace(here, value=scan.ys[place - len(scan.carry)], axis=here.axis - 1)
    elif here.axis == 0:
        is_forward = not maker.equation.params["reverse"]
        is_carried = any(jnp.issubdtype(inside.aval.dtype, jnp.floating) for _, inside, _ in scan.carry)
        inside = scan.ys[place - len(scan.carry)]
        yield dataclasses.replace(here, value=inside, axis=_STEPS, is_carried=is_forward and is_carried)


def _of_lookup(here: Along, maker: Step) -> Iterator[Along]:
    """The index of the rows of a table."""
    numbers, indices = maker.equation.params["dimension_numbers"], maker.inputs[1]
    looked_up = [axis for axis in range(len(here.value.shape)) if axis not in numbers.offset_dims]
    if len(numbers.start_index_map) != 1 or numbers.operand_batching_dims:
        return
    if here.axis == _STEPS:
        yield dataclasses.replace(here, value=indices, is_index=True)
    elif here.axis in looked_up:
        yield dataclasses.replace(here, value=indices, axis=looked_up.index(here.axis), is_index=True)


def _of_product(here: Along, maker: Step) -> Iterator[Along]:
    """The operands that an axis of a product is of."""
    ((over, others), (batch, other_batch)), (one, other) = maker.equation.params["dimension_numbers"], maker.inputs
    if here.axis == _STEPS:
        yield from (dataclasses.replace(here, value=each) for each in (one, other))
        return
    left = [axis for axis in range(len(one.shape)) if axis not in (*over, *batch)]
    right = [axis for axis in range(len(other.shape)) if axis not in (*others, *other_batch)]
    sides = [(one, [*batch, *left]), (other, [*other_batch, *[-1] * len(left), *right])]
    for value, axes in sides:
        if here.axis < len(axes) and axes[here.axis] >= 0:
            yield dataclasses.replace(here, value=value, axis=axes[here.axis])
