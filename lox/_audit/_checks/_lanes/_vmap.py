"""What runs for many batch elements at once: vmap."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp

from lox._audit._audited import Audited
from lox._audit._checks._lanes._shards import MULTIPLIED
from lox._audit._findings import Finding, Held, Kind
from lox._audit._location import is_internal, transformations
from lox._audit._origins import LAID_OUT, axes_before
from lox._audit._program import Block, Step, Value, blocks_in
from lox._audit._rules import primitives
from lox._audit._sources import names_in_calls
from lox._compat import _tracebacks as tracebacks

ALIKE = Kind(
    "LOX310",
    "warning",
    "All batch elements of a vmap give the same",
    "Use the argument of the function that vmap maps, and not one from outside of it; for a result that all "
    "batch elements share, call the function once without vmap, or give it out_axes=None.",
)
PAIRED = Kind(
    "LOX311",
    "error",
    "A lookup takes the batch elements of one axis for those of another",
    "Map both over the axis that means the same: give each argument its own entry in in_axes=.",
    "Lookups pair batch elements that mean the same.",
    "The labels of array and index were compared at each lookup.",
)

_LOOKUPS = primitives("gather", "scatter", "scatter_add", "scatter_mul", "scatter_min", "scatter_max")


def multiplied(audited: Audited) -> Iterator[Finding | Held]:
    """LOX301: a psum in a vmap with an axis name of what is the same for all batch elements."""
    divided = {
        step.inputs[0]
        for step, _ in audited.steps
        if step.equation.primitive in primitives("div") and _is_in_vmap(step)
    }
    for step, location in audited.steps:
        if step.equation.primitive not in primitives("mul") or step.outputs[0] in divided:
            continue
        lanes, value = _sum_of_alike(step)
        if value is not None and is_of_arguments(value, audited):
            yield MULTIPLIED.at(
                location,
                f"The sum over the {lanes} batch elements of vmap adds the same value for each: {value.text}. The "
                f"result is {lanes} times that value.",
            )


def alike(audited: Audited) -> Iterator[Finding | Held]:
    """LOX310: a vmapped function gives the same for all batch elements, and what it is mapped over is used nowhere.

    What it is mapped over leaves no trace if it is not used: it is an argument that is named where the function is
    called, or the only array with as many elements along an axis.
    """
    arguments = zip(audited.program.inputs, _used(audited.program, {}), strict=True)
    unused = [value for value, used in arguments if not used and value.shape and not _is_key(value)]
    if not unused:
        return
    for step, location in audited.steps:
        lanes = repeats(step)
        if not lanes:
            continue
        mapped = [value for value in unused if lanes in value.shape]
        names = names_in_calls(location) if mapped else set()
        if named := [value for value in mapped if not names.isdisjoint(value.name.split("/"))]:
            mapped = named
        elif _has_others(lanes, mapped, step, audited):
            continue
        if mapped and is_of_arguments(step.inputs[0], audited):
            yield ALIKE.at(
                location,
                f"A result of shape {step.inputs[0].shape} is the same for all {lanes} batch elements of vmap, and "
                f"{mapped[0].text} is used nowhere.",
            )


def paired(audited: Audited) -> Iterator[Finding | Held]:
    """LOX311: a lookup or an update at indices pairs an axis of the array with another axis of the indices."""
    for step, location in audited.steps:
        if step.equation.primitive not in _LOOKUPS:
            continue
        array, indices = step.inputs[:2]
        for axis, place in _pairs(step):
            one, other = array.fact.labels[axis], indices.fact.labels[place]
            if one is None or other is None:
                continue
            if one == other:
                yield PAIRED.fine(location)
            else:
                yield PAIRED.at(
                    location,
                    f"Axis {axis} of {array.text} is {one}, and the indices that are taken for it go along {other}: "
                    f"each {other} gets the elements of the {one} of the same number.",
                )


def _has_others(lanes: int, mapped: Sequence[Value], repeated: Step, audited: Audited) -> bool:
    """Whether a function may have been mapped over something else than these arguments, by the sizes of axes."""
    before = itertools.takewhile(lambda step: step is not repeated, (step for step, _ in audited.steps))
    made = (value for step in before if not _is_in_vmap(step) for value in step.outputs)
    return any(lanes in value.shape and value not in mapped for value in (*audited.program.inputs, *made))


def _pairs(step: Step) -> Iterator[tuple[int, int]]:
    """The axes of an array and of its indices of which a lookup or an update takes the elements one by one.

    They are batched by vmap, or one of the indices counts: `x[jnp.arange(n), i]`.
    """
    numbers, (array, indices) = step.equation.params["dimension_numbers"], step.inputs[:2]
    if isinstance(numbers, jax.lax.GatherDimensionNumbers):
        batched, indexed = numbers.start_indices_batching_dims, numbers.start_index_map
    else:
        batched, indexed = numbers.scatter_indices_batching_dims, numbers.scatter_dims_to_operand_dims
    yield from zip(numbers.operand_batching_dims, batched, strict=True)
    if indices.maker is not None and indices.maker.equation.primitive in primitives("concatenate"):
        columns = indices.maker.inputs
        for axis, column in zip(indexed, columns, strict=True) if len(indexed) == len(columns) else ():
            place = _counted(column)
            if place is not None and column.shape[place] == array.shape[axis]:
                yield axis, place


def _counted(value: Value) -> int | None:
    """The axis along which a value counts from 0, such as `jnp.arange(n)[:, None]`."""
    axes: list[int | None] = list(range(len(value.shape)))
    while value.maker is not None:
        maker = value.maker
        if maker.equation.primitive in primitives("iota"):
            counted = maker.equation.params["dimension"]
            return axes.index(counted) if counted in axes else None
        if maker.equation.primitive in LAID_OUT:
            before = axes_before(maker)
            if before is None:
                return None
            axes = [None if axis is None else before[axis] for axis in axes]
            value = maker.inputs[0]
        elif maker.equation.primitive in primitives("convert_element_type"):
            value = maker.inputs[0]
        elif maker.equation.primitive in primitives("select_n") and _is_from_the_end(maker):
            value = maker.inputs[1]
        else:
            return None
    return None


def _is_from_the_end(step: Step) -> bool:
    """Whether a step does no more than to count negative indices from the end."""
    _, index, *others = step.inputs
    made = others[0].maker if len(others) == 1 else None
    return made is not None and made.equation.primitive in primitives("add") and index in made.inputs


def _sum_of_alike(step: Step) -> tuple[int, Value | None]:
    """Return how often a psum adds a value that is the same for all batch elements, and the value; else None.

    Such a psum is a product with the number of batch elements.
    """
    lanes, value = step.inputs
    size, through = lanes.fact.range.low, transformations(step.equation)
    if lanes.shape or size != lanes.fact.range.high or "vmap" not in through or "transpose" in through:
        return 0, None
    if not tracebacks.is_collective(file for file, _ in _inside(step)):
        return 0, None
    return int(size), value


def repeats(step: Step) -> int:
    """How many batch elements get a result of vmap that is the same for all; of another step, 0."""
    if step.equation.primitive not in primitives("broadcast_in_dim") or not _is_in_vmap(step):
        return 0
    maker = step.inputs[0].maker
    if maker is None or not _is_in_vmap(maker) or not tracebacks.copies_result(name for _, name in _inside(step)):
        return 0
    kept = step.equation.params["broadcast_dimensions"]
    added = [size for axis, size in enumerate(step.outputs[0].shape) if axis not in kept]
    return added[0] if len(added) == 1 else 0


def _is_in_vmap(step: Step) -> bool:
    return "vmap" in transformations(step.equation)


def _inside(step: Step) -> list[tuple[str, str]]:
    """The files and functions of JAX that a step comes from, below the user's line."""
    traceback = step.equation.source_info.traceback
    frames = traceback.frames if traceback is not None else ()
    inner = itertools.takewhile(lambda frame: is_internal(frame.file_name), frames)
    return [(frame.file_name, frame.function_name) for frame in inner]


def _used(block: Block, known: dict[Block, list[bool]]) -> list[bool]:
    """Which inputs of a block go into an operation or a result."""
    if block not in known:
        found = set(block.outputs)
        for step in block.steps:
            inside = step.blocks[0] if len(step.blocks) == 1 else None
            if inside is not None and len(inside.inputs) == len(step.inputs):
                found.update(itertools.compress(step.inputs, _used(inside, known)))
            else:
                found.update(step.inputs)
        known[block] = [value in found for value in block.inputs]
    return known[block]


def is_of_arguments(value: Value, audited: Audited) -> bool:
    """Whether a value is computed from an input of a block, and not from constants alone."""
    given = {each for block in blocks_in(audited.program) for each in block.inputs}
    seen, left = set(), [value]
    while left:
        each = left.pop()
        if each in given:
            return True
        if each not in seen and each.maker is not None:
            seen.add(each)
            left += each.maker.inputs
    return False


def _is_key(value: Value) -> bool:
    dtype = value.aval.dtype
    return bool(jnp.issubdtype(dtype, jax.dtypes.extended) or (dtype == jnp.uint32 and value.shape[-1] == 2))


KINDS = (ALIKE, PAIRED)
CHECKS = (multiplied, alike, paired)
