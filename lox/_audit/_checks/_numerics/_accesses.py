"""Where operations read or write an array by indices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from lox._audit._checks._numerics._exponentials import made_by
from lox._audit._origins import Origins
from lox._audit._program import Step, Value
from lox._audit._rules import primitives

READS = ("gather", "dynamic_slice")
WRITES = ("scatter", "scatter_add", "scatter_mul", "scatter_min", "scatter_max", "dynamic_update_slice")
_CONVERSIONS = primitives("convert_element_type")


class Access(NamedTuple):
    """Where a step reads or writes: the index along an axis, and how many elements."""

    axis: int
    at: Value
    size: int


def accesses(step: Step, origins: Origins) -> Iterator[Access]:
    """Where a step reads or writes."""
    params, shape = step.equation.params, step.inputs[0].shape
    if step.equation.primitive in primitives("dynamic_slice", "dynamic_update_slice"):
        is_read = step.equation.primitive in primitives("dynamic_slice")
        sizes = params["slice_sizes"] if is_read else step.inputs[1].shape
        yield from map(Access, range(len(shape)), step.inputs[1 if is_read else 2 :], sizes)
        return
    numbers = params["dimension_numbers"]
    is_read = step.equation.primitive in primitives("gather")
    axes = numbers.start_index_map if is_read else numbers.scatter_dims_to_operand_dims
    indices = origins.of(step.inputs[1], _CONVERSIONS)
    maker = made_by(indices, primitives("concatenate"))
    parts = maker.inputs if maker is not None else (indices,)
    if len(parts) == len(axes) and all(part.shape[-1:] == (1,) for part in parts):
        yield from (
            Access(axis, part, params["slice_sizes"][axis] if is_read else _written(step, axis))
            for axis, part in zip(axes, parts, strict=True)
        )


def _written(step: Step, axis: int) -> int:
    """How many elements along an axis a scatter writes for each index."""
    numbers = step.equation.params["dimension_numbers"]
    apart = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    if axis in apart:
        return 1
    windows = [each for each in range(len(step.inputs[0].shape)) if each not in apart]
    return int(step.inputs[2].shape[numbers.update_window_dims[windows.index(axis)]])
