"""Broadcasting that nobody wrote, and that pairs all elements of an axis with all of the same one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from lox._audit._audited import Audited
from lox._audit._checks._axes._meaning import is_made_for, symmetric
from lox._audit._findings import Finding, Held, Kind
from lox._audit._labels import has_rule
from lox._audit._location import Location, call, frames, locate, transformations
from lox._audit._origins import LAID_OUT
from lox._audit._program import Step, Value
from lox._audit._rules import primitives
from lox._compat import _tracebacks as tracebacks

CROSSED = Kind(
    "LOX104",
    "error",
    "An axis is crossed with itself",
    "Give both operands the same shape before, such as with x[:, None] or jnp.squeeze; for all pairs, use jnp.outer. "
    "For one element of each row, take x[jnp.arange(n), i] and not x[:, i].",
)

_REDUCTIONS = primitives("reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "argmax", "argmin")
_WHOLE = primitives("reduce_sum", "reduce_max", "reduce_min")
_CONVERTED = primitives("convert_element_type", "stop_gradient", "copy")
_LAID_OUT = LAID_OUT | primitives("convert_element_type")
_MOST = 200
"""How many operations on what is crossed are looked at."""


def crossed(audited: Audited) -> Iterator[Finding | Held]:
    """LOX104: by broadcasting that nobody wrote, an axis of one operand is crossed with the same axis of the other."""
    paired: list[tuple[Location, Value, Value, Value]] = []
    for step, location in audited.steps:
        if step.blocks or has_rule(step.equation.primitive) or len(step.outputs) != 1:
            continue
        arrays = [value for value in step.inputs if value.shape]
        made = [value for value in arrays if _is_made_for(value, step) and not _keeps_axes(value)]
        others = [value for value in arrays if value not in made and not _is_expanded(value)]
        pairs = [*itertools.product(made, others)]
        if all(audited.origins.of(one, _LAID_OUT) is not audited.origins.of(other, _LAID_OUT) for one, other in pairs):
            yield from _labelled(audited, made, others, location)  # Else all pairs of one array are meant.
            paired += [(location, one, other, step.outputs[0]) for one, other in pairs if _are_crossed(one, other)]
    yield from _unlabelled(paired, audited)
    yield from _chosen(audited)


def _is_made_for(value: Value, step: Step) -> bool:
    """Say whether an operand got axes in the call that a step comes from, or in that of a density of `jax.scipy`."""
    if is_made_for(value, step):
        return True
    maker = value.maker
    if maker is None or maker.equation.primitive not in LAID_OUT or len(maker.inputs[0].shape) >= len(value.shape):
        return False
    of_density = [tracebacks.is_of_scipy(each.file for each in frames(at.equation)) for at in (step, maker)]
    return all(of_density) and locate(step.equation) == locate(maker.equation)


def _labelled(audited: Audited, made: list[Value], others: list[Value], location: Location) -> Iterator[Finding]:
    raised = made if all(map(_is_raised, made)) else []  # The axes of vmap are also between others.
    for one, other in itertools.product(raised, others):
        for label in set(one.fact.labels) & set(other.fact.labels) - {None}:
            axis = one.fact.labels.index(label)
            is_one_set = frozenset((label, other.fact.labels[axis])) in audited.once(symmetric)
            if axis != other.fact.labels.index(label) and not is_one_set:
                yield CROSSED.at(
                    location,
                    f"{one.text_as_written} meets {other.text_as_written}: every {label} of one meets every "
                    f"{label} of the other.",
                )


def _unlabelled(paired: list[tuple[Location, Value, Value, Value]], audited: Audited) -> Iterator[Finding]:
    """What of shape (n,) meets what of shape (n, 1), where the (n, n) pairs go into one sum or mean."""
    for location, one, other, result in paired:
        if _is_reduced(result, [each for *_, each in paired if each.shape == result.shape], audited):
            size = one.shape[-1]
            yield CROSSED.at(
                location,
                f"{one.text_as_written} meets {other.text_as_written}: of {size} elements each, every one meets "
                f"every other one, and all {size * size} pairs are reduced to one number.",
            )


def _chosen(audited: Audited) -> Iterator[Finding]:
    """What `x[:, i]` takes of each row of an array of shape (n, k) at all n indices, where all go into one number."""
    for step, location in audited.of("gather"):
        array, indices, (result,) = step.inputs[0], step.inputs[1], step.outputs
        numbers, sizes = step.equation.params["dimension_numbers"], step.equation.params["slice_sizes"]
        if len(array.shape) != 2 or tuple(numbers.start_index_map) != (1,) or tuple(sizes) != (array.shape[0], 1):
            continue
        rows, columns = array.shape
        if result.shape != (rows, rows) or rows == columns or rows < 2 or "transpose" in transformations(step.equation):
            continue
        index = _index(audited, indices)
        if index.shape == (rows,) and index.maker is None and index.constant is None:
            if not any(array.fact.labels) and _is_reduced(result, [], audited):
                yield CROSSED.at(
                    location,
                    f"{array.text} is taken at {index.text} in each of its rows: every one of {rows} rows meets every "
                    "one of as many indices, and all of it is reduced to one number.",
                )


def _index(audited: Audited, value: Value) -> Value:
    """An index before what is below zero is counted from the end."""
    value = audited.origins.of(value, _LAID_OUT)
    if value.maker is not None and value.maker.equation.primitive in primitives("select_n"):
        return audited.origins.of(value.maker.inputs[1], _LAID_OUT)
    return value


def _are_crossed(one: Value, other: Value) -> bool:
    """Whether a row of shape (..., n) meets a column of shape (..., n, 1), and not both have a label there."""
    if not _is_column(other) or one.shape[-1] != other.shape[-2] or (one.fact.labels[-1] and other.fact.labels[-2]):
        return False
    before = one.maker.inputs[0].shape if one.maker is not None else ()
    return _is_row(one) or (len(before) > 1 and before == other.shape[:-1] and one.shape[-1] > 1)


def _is_row(value: Value) -> bool:
    """Whether a value of shape (..., 1, n), or (n, n), was broadcast from a row of shape (..., n)."""
    if value.maker is not None and value.maker.inputs and _is_spread(value) and len(value.shape) == 2:
        kept = value.maker.equation.params["broadcast_dimensions"]
        if [*kept] == [1] and value.maker.inputs[0].shape == value.shape[1:] and value.shape[1] > 1:
            return True
    if len(value.shape) < 2 or value.shape[-2] != 1 or value.shape[-1] == 1 or value.maker is None:
        return False
    before = value.maker.inputs[0].shape
    return len(before) == len(value.shape) - 1 and before[-1] == value.shape[-1]


def _is_column(value: Value) -> bool:
    """Whether a value is a column of shape (..., n, 1), or one that was broadcast to (n, n)."""
    is_spread = len(value.shape) == 2 and value.maker is not None and _is_spread(value)
    before = value.maker.inputs[0].shape if value.maker is not None and is_spread and value.maker.inputs else ()
    return len(value.shape) > 1 and (value.shape[-1] == 1 or (before[1:] == (1,) and before[0] == value.shape[0]))


def _is_reduced(value: Value, alike: list[Value], audited: Audited) -> bool:
    """Whether the last two axes of an array are reduced at once, and it meets no other array that has both of them.

    Others that were made `alike` are no such arrays, as the terms of a cross entropy are not.
    """
    made = {name for each in (value, *alike) for name in audited.users.names(each)}
    steps = list[Step]()
    left = [value, *alike]
    is_whole = False
    while left and len(made) < _MOST:
        each = left.pop()
        for step in audited.users.of(each):
            if "transpose" in transformations(step.equation):
                continue
            if step.equation.primitive in _WHOLE:
                is_whole |= {len(each.shape) - 2, len(each.shape) - 1} <= set(step.equation.params["axes"])
            elif step.equation.primitive in primitives("reshape") and len(each.shape) == 2:
                is_whole |= _is_summed_flat(step.outputs[0], audited)
            elif not step.blocks and (step.equation.primitive in _CONVERTED or not has_rule(step.equation.primitive)):
                steps.append(step)
                left += [result for result in step.outputs if result not in made]
                made.update(name for result in step.outputs for name in audited.users.names(result))
    others = (other for step in steps for other in step.inputs if other not in made)
    return is_whole and not any(other.shape[-2:] == value.shape[-2:] and not _is_spread(other) for other in others)


def _is_summed_flat(value: Value, audited: Audited) -> bool:
    """Whether all elements of an array that was flattened go into one number."""
    users = list(audited.users.of(value)) if len(value.shape) == 1 else []
    return any(
        step.equation.primitive in _WHOLE
        or (step.equation.primitive in primitives("dot_general") and not step.outputs[0].shape)
        for step in users
    )


def _is_spread(value: Value) -> bool:
    """Whether an array has the same elements again along an axis."""
    return value.maker is not None and value.maker.equation.primitive in primitives("broadcast_in_dim")


def _is_expanded(value: Value) -> bool:
    """Whether somebody gave an operand a new axis, as in `x[:, None]`: it is to meet all of another one."""
    maker = value.maker
    if maker is None or maker.equation.primitive not in LAID_OUT or len(maker.inputs[0].shape) >= len(value.shape):
        return False
    return not _keeps_axes(value) and math.prod(maker.inputs[0].shape) == math.prod(value.shape)


def _keeps_axes(value: Value) -> bool:
    """Whether an operand was reduced along axes that it keeps, with one element."""
    maker = value.maker
    before = maker.inputs[0].maker if maker is not None and maker.inputs else None
    if maker is None or before is None or before.equation.primitive not in _REDUCTIONS:
        return False
    return call(before.equation) == call(maker.equation)


def _is_raised(value: Value) -> bool:
    """Whether the axes that an operand got are its first ones."""
    if value.maker is None:
        return False
    shape, before = value.shape, value.maker.inputs[0].shape
    new = len(shape) - len(before)
    kept = value.maker.equation.params.get(
        "broadcast_dimensions", range(new, len(shape)) if shape[new:] == before else ()
    )
    return [*kept] == [*range(new, len(shape))]


KINDS = (CROSSED,)
CHECKS = (crossed,)
