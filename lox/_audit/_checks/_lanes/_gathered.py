"""Labels that count the rows of one device, where there are classes from all devices."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from lox._audit._audited import Audited
from lox._audit._checks._lanes._vmap import PAIRED
from lox._audit._checks._numerics._masks import laid_out
from lox._audit._findings import Finding
from lox._audit._location import frames, is_internal, is_users, transformations
from lox._audit._origins import Origins
from lox._audit._program import Step, Value
from lox._audit._rules import primitives
from lox._compat import _tracebacks as tracebacks

_GATHERS = primitives("all_gather", "all_gather_invariant")
_ELEMENTWISE = primitives("convert_element_type", "mul", "div", "add", "sub", "neg", "exp", "log")
_MOST = 30


def own_rows(audited: Audited) -> Iterator[Finding]:
    """LOX311: labels are 0, 1, 2, ... on each device, and choose among what an all_gather has put one after another."""
    for step, location in audited.of("gather"):
        if "transpose" in transformations(step.equation) or not is_users(location.of_user.file):
            continue
        numbers, (logits, labels) = step.equation.params["dimension_numbers"], step.inputs[:2]
        axes, rows, places = numbers.start_index_map, numbers.operand_batching_dims, numbers.start_indices_batching_dims
        if len(axes) != 1 or step.equation.params["slice_sizes"][axes[0]] != 1:
            continue
        counted = [row for row, place in zip(rows, places, strict=True) if _counts(labels, place, audited.origins)]
        if len(counted) != 1:
            continue
        count, classes = logits.shape[counted[0]], logits.shape[axes[0]]
        if 1 < count < classes and _is_gathered(logits, int(axes[0]), count, audited.origins):
            yield PAIRED.at(
                location,
                f"The labels count the {count} rows of a device, and choose among {classes} classes, which an "
                "all_gather has put one device after another: only the first device has its own rows there. Add "
                f"{count} * jax.lax.axis_index(...).",
                severity="warning",
            )


def _counts(labels: Value, axis: int | None, origins: Origins) -> bool:
    """Say whether labels are 0, 1, 2, ... along an axis."""
    value, axis = laid_out(labels, axis, origins)
    maker = value.maker
    if maker is not None and maker.equation.primitive in primitives("select_n"):  # Of those that count from the end.
        value, axis = laid_out(maker.inputs[1], axis, origins)
    counter = value.maker
    is_counter = counter is not None and counter.equation.primitive in primitives("iota")
    return is_counter and counter is not None and counter.equation.params["dimension"] == axis


def _is_gathered(logits: Value, axis: int | None, count: int, origins: Origins) -> bool:
    """Say whether an axis of logits is that of what an all_gather made of arrays of this size."""
    value = logits
    for _ in range(_MOST):
        value, axis = laid_out(value, axis, origins)
        maker = value.maker
        if maker is None or axis is None:
            return False
        primitive, params = maker.equation.primitive, maker.equation.params
        if primitive in _GATHERS:
            size = maker.inputs[0].shape[axis] if params["tiled"] and params["all_gather_dimension"] == axis else 0
            return bool(size == count)
        if primitive in primitives("reshape"):
            return _is_collective(maker) and maker.inputs[0].shape[: axis + 2][-1] == count
        if primitive in primitives("dot_general"):
            value, axis = _operand(maker, axis)
            continue
        arrays = [each for each in maker.inputs if each.shape == value.shape]
        if primitive not in _ELEMENTWISE or not arrays:
            return False
        value = arrays[0]
    return False


def _is_collective(step: Step) -> bool:
    """Say whether a step is what vmap makes of a collective."""
    inside = itertools.takewhile(is_internal, (frame.file for frame in frames(step.equation)))
    return tracebacks.is_collective(inside)


def _operand(product: Step, axis: int) -> tuple[Value, int | None]:
    """The operand of a product that an axis of it is of, and the axis there."""
    (left, right), (left_batch, right_batch) = product.equation.params["dimension_numbers"]
    one, other = product.inputs[:2]
    free = [[each for each in range(len(one.shape)) if each not in (*left, *left_batch)]]
    free += [[each for each in range(len(other.shape)) if each not in (*right, *right_batch)]]
    place = axis - len(left_batch)
    if place < 0:
        return one, left_batch[axis]
    return (one, free[0][place]) if place < len(free[0]) else (other, free[1][place - len(free[0])])


KINDS = ()
CHECKS = (own_rows,)
