"""Which elements of arrays a loop reads or writes at its counter."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp

from lox._audit._audited import Audited
from lox._audit._location import Location, call
from lox._audit._loops import Scan, is_called, scans
from lox._audit._program import Block, Step, Value, is_call
from lox._audit._rules import primitives
from lox._compat import _tracebacks as tracebacks

_COMPARISONS = primitives("lt", "le", "gt", "ge", "eq", "ne")
_MOST = 20_000
"""At how many operations of a loop is looked: what calls itself twice is called very often."""
_WRITES = primitives("scatter", "scatter_add", "scatter_mul", "scatter_min", "scatter_max", "dynamic_update_slice")
_LAYOUT = primitives("broadcast_in_dim", "reshape", "squeeze", "convert_element_type", "copy")


class Position(NamedTuple):
    """A value in the body that is a counter times a number, plus another one."""

    counter: Value
    offset: int
    scale: int = 1


Positions = tuple[Position | None, ...]
"""Of a scalar the position that it is, of the indices of a gather each; None of what is no position."""


class Counter(NamedTuple):
    """What a counter is in the first iteration, and by how much it grows."""

    start: int
    stride: int


@dataclasses.dataclass(frozen=True)
class Read:
    """A part of an array that each iteration reads, at its counter.

    Attributes:
        step: The step of the body that reads it, or calls what does.
        array: The array, in the body.
        axis: The axis that the counter goes along.
        size: How many elements are read along the axis.
        positions: Where each iteration reads, or where the first of the elements is.
        others: Whether all is read along the other axes.
        clamps: Whether what is beyond the end is read at the end or not written, which nobody asked for by a `mode=`.
        is_batched: Whether the array has the axes of a `vmap` too, perhaps before that of the counter.
        is_scanned: Whether the counter is scanned, and not carried.
        is_written: Whether it is written, and not read.
        is_moved: Whether what would be written beyond the end is written before it instead.
    """

    step: Step
    array: Value
    axis: int
    size: int
    positions: range
    others: bool
    clamps: bool
    is_batched: bool
    is_scanned: bool
    is_written: bool = False
    is_moved: bool = False


@dataclasses.dataclass(frozen=True)
class Reads:
    """What a loop reads at its counters.

    Attributes:
        reads: The reads.
        is_guarded: Whether the loop compares its counter with something, and may know where the array ends.
        is_asked: Whether it compares its counter with anything, zero too, and may know where the array begins.
    """

    reads: tuple[Read, ...]
    is_guarded: bool
    is_asked: bool = False


@dataclasses.dataclass
class _Found:
    raw: list[tuple[Step, Value, Step, int, Position]] = dataclasses.field(default_factory=list)
    compared: set[Value] = dataclasses.field(default_factory=set)
    asked: set[Value] = dataclasses.field(default_factory=set)
    left: int = _MOST


def all_reads(audited: Audited) -> list[tuple[Scan, Location, Reads]]:
    """The loops with a known number of iterations that people wrote, and what they read at their counters."""
    each = (pair for pair in scans(audited) if is_called(pair[0].step, "scan", "fori_loop"))
    return [(scan, location, _reads(scan)) for scan, location in each]


def _reads(scan: Scan) -> Reads:
    """What a scan reads at its counters."""
    known: dict[Value, Positions] = {
        inside: (Position(inside, 0),) for inside in scan.body.inputs if _is_integer(inside)
    }
    found = _Found()
    _visit(scan.body, known, {}, None, found)
    counters = dict(_counters(scan, known))
    times = scan.step.equation.params["length"]
    scanned = {inside for _, inside in scan.xs}
    each = []
    for top, array, step, axis, position in found.raw:
        counter = counters.get(position.counter)
        if counter is None or not times:
            continue
        first, stride = counter.start * position.scale + position.offset, counter.stride * position.scale
        positions = range(first, first + stride * times, stride)
        shape, sizes = array.shape, _sizes(step)
        each.append(
            Read(
                step=top,
                array=array,
                axis=axis,
                size=sizes[axis],
                positions=positions,
                others=all(sizes[other] == size for other, size in enumerate(shape) if other != axis),
                clamps=_clamps(step),
                is_batched=step.equation.primitive in primitives("gather"),
                is_scanned=position.counter in scanned,
                is_written=step.equation.primitive in _WRITES,
                is_moved=step.equation.primitive in primitives("dynamic_update_slice"),
            )
        )
    is_guarded = not found.compared.isdisjoint(counters) or any(_is_boolean(inside) for _, inside in scan.xs)
    return Reads(tuple(each), is_guarded, is_guarded or not found.asked.isdisjoint(counters))


def _counters(scan: Scan, known: dict[Value, Positions]) -> Iterator[tuple[Value, Counter]]:
    for outside, inside, new in scan.carry:
        after, start = known.get(new), _number(outside)
        if start is None or not after or after[0] is None or after[0].counter is not inside:
            continue
        if after[0].offset and after[0].scale == 1:
            yield inside, Counter(start, after[0].offset)
    for outside, inside in scan.xs:
        counter = _arange(outside)
        if counter is not None:
            yield inside, counter


def _arange(value: Value) -> Counter | None:
    """The first number and the step of an array that `jnp.arange` makes."""
    maker = value.maker
    if maker is None or len(value.shape) != 1:
        return None
    if maker.equation.primitive in primitives("iota"):
        return Counter(0, 1)
    if maker.equation.primitive in primitives("convert_element_type", "copy"):
        return _arange(maker.inputs[0]) if _is_integer(maker.inputs[0], axes=1) else None
    if maker.equation.primitive in primitives("rev"):
        counter, size = _arange(maker.inputs[0]), value.shape[0]
        return None if counter is None else Counter(counter.start + (size - 1) * counter.stride, -counter.stride)
    if maker.equation.primitive in primitives("add"):
        for one, other in (maker.inputs, maker.inputs[::-1]):
            number, counter = _number(one), _arange(other)
            if number is not None and counter is not None:
                return counter._replace(start=counter.start + number)
    return None


def _visit(
    block: Block,
    known: dict[Value, Positions],
    arrays: dict[Value, Value],
    top: Step | None,
    found: _Found,
) -> None:
    """Adds to what is known of the values of a block, and to what is found, which is by the step of the body, `top`."""
    for step in block.steps:
        if found.left <= 0 or known.keys().isdisjoint(step.inputs):
            continue
        found.left -= 1
        if is_call(step):
            (inner,) = step.blocks
            pairs = list(zip(inner.inputs, step.inputs, strict=True))
            own = {inside: known[outside] for inside, outside in pairs if outside in known}
            _visit(inner, own, {inside: arrays.get(outside, outside) for inside, outside in pairs}, top or step, found)
            results = zip(inner.outputs, step.outputs, strict=True)
            known.update({outside: own[inside] for inside, outside in results if inside in own})
            continue
        positions = _positions(step, known)
        if positions is not None:
            known[step.outputs[0]] = positions
        if step.equation.primitive in _COMPARISONS:
            compared = [position for value in step.inputs for position in known.get(value, ())]
            counters = {position.counter for position in compared if position}
            if _number(step.inputs[1]) != 0:
                found.compared |= counters
            elif step.equation.primitive not in primitives("lt"):  # As JAX asks of each index.
                found.asked |= counters
        for axis, position in _read(step, known):
            array = step.inputs[0]
            found.raw.append((top or step, arrays.get(array, array), step, axis, position))


def _positions(step: Step, known: dict[Value, Positions]) -> Positions | None:
    """What a step makes of positions, if it makes positions."""
    primitive, inputs = step.equation.primitive, step.inputs
    if primitive in primitives("concatenate"):
        if not any(value in known for value in inputs):
            return None
        parts = [known.get(value, (None,) * math.prod(value.shape)) for value in inputs]
        return tuple(position for part in parts for position in part)
    if primitive in _LAYOUT and inputs[0] in known:
        out = step.outputs[0]
        same = math.prod(out.shape) == len(known[inputs[0]]) and jnp.issubdtype(out.aval.dtype, jnp.integer)
        return known[inputs[0]] if same else None
    if primitive in primitives("add", "sub"):
        return _moved(step, known)
    if primitive in primitives("mul"):
        return _scaled(step, known)
    if primitive in primitives("select_n") and len(inputs) == 3:  # An index below zero is counted from the end.
        asked = inputs[0].maker
        if asked is None or asked.equation.primitive not in primitives("lt") or _number(asked.inputs[1]) != 0:
            return None
        case = known.get(inputs[1])
        return case if case is not None and known.get(asked.inputs[0]) == case else None
    return None


def _moved(step: Step, known: dict[Value, Positions]) -> Positions | None:
    sign = 1 if step.equation.primitive in primitives("add") else -1
    orders = (step.inputs, step.inputs[::-1]) if sign == 1 else (step.inputs,)
    for one, other in orders:
        number = _number(other)
        position = known.get(one, (None,))[0]
        if position is not None and number is not None:
            return (position._replace(offset=position.offset + sign * number),)
    number, position = _number(step.inputs[0]), known.get(step.inputs[1], (None,))[0]
    if sign == -1 and number is not None and position is not None:
        return (Position(position.counter, number - position.offset, -position.scale),)
    return None


def _scaled(step: Step, known: dict[Value, Positions]) -> Positions | None:
    for one, other in (step.inputs, step.inputs[::-1]):
        number, position = _number(other), known.get(one, (None,))[0]
        if position is not None and number:
            return (Position(position.counter, position.offset * number, position.scale * number),)
    return None


def _read(step: Step, known: dict[Value, Positions]) -> Iterator[tuple[int, Position]]:
    """The axes along which a step reads at a position, and the position."""
    if step.equation.primitive in primitives("dynamic_slice"):
        at = [(axis, known.get(value, (None,))[0]) for axis, value in enumerate(step.inputs[1:])]
    elif step.equation.primitive in primitives("gather"):
        numbers = step.equation.params["dimension_numbers"]
        starts, axes = known.get(step.inputs[1], ()), numbers.start_index_map
        one_by_one = len(starts) == len(axes) and not numbers.operand_batching_dims
        at = list(zip(map(int, axes), starts, strict=True)) if one_by_one else []
    elif step.equation.primitive in primitives("dynamic_update_slice"):
        at = [(axis, known.get(value, (None,))[0]) for axis, value in enumerate(step.inputs[2:])]
    elif step.equation.primitive in _WRITES:
        numbers = step.equation.params["dimension_numbers"]
        starts, axes = known.get(step.inputs[1], ()), numbers.scatter_dims_to_operand_dims
        one_by_one = len(starts) == len(axes) and not numbers.operand_batching_dims
        at = list(zip(map(int, axes), starts, strict=True)) if one_by_one else []
    else:
        return
    for axis, position in at:
        if position is not None:
            yield axis, position


def _sizes(step: Step) -> tuple[int, ...]:
    """How many elements along each axis a step reads or writes at each index."""
    if "slice_sizes" in step.equation.params:
        return tuple(step.equation.params["slice_sizes"])
    if step.equation.primitive in primitives("dynamic_update_slice"):
        return step.inputs[1].shape
    numbers, shape = step.equation.params["dimension_numbers"], step.inputs[0].shape
    windows = iter(step.inputs[2].shape[axis] for axis in numbers.update_window_dims)
    return tuple(1 if axis in numbers.inserted_window_dims else next(windows) for axis in range(len(shape)))


def _clamps(step: Step) -> bool:
    if step.equation.primitive in _WRITES:
        mode = step.equation.params.get("mode")
        is_dropped = mode in (None, jax.lax.GatherScatterMode.FILL_OR_DROP)
        return is_dropped and any(map(tracebacks.writes_at, call(step.equation)[1:]))
    mode = step.equation.params.get("mode", jax.lax.GatherScatterMode.CLIP)
    return mode == jax.lax.GatherScatterMode.CLIP and not tracebacks.CLAMPING.isdisjoint(call(step.equation)[1:])


def _number(value: Value) -> int | None:
    """The number that an integer is known to be."""
    if value.shape or not _is_integer(value) or value.number is None or math.isinf(value.number):
        return None
    return int(value.number)


def _is_integer(value: Value, axes: int = 0) -> bool:
    dtype = getattr(value.aval, "dtype", None)
    return len(value.shape) == axes and dtype is not None and jnp.issubdtype(dtype, jnp.integer)


def _is_boolean(value: Value) -> bool:
    return getattr(value.aval, "dtype", None) == jnp.bool_
