"""Axes that mean one thing where another is meant."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from lox._audit._findings import Finding, Kind
from lox._audit._labels import has_rule, regrouped
from lox._audit._location import Location, call, located
from lox._audit._program import Block, Step, Value
from lox._audit._rules import primitives

MEETING = Kind(
    "LOX101",
    "error",
    "Two axes of different meaning meet",
    "Bring the axes into one order first, with jnp.transpose, jnp.moveaxis or x[:, None]; or mend the labels in axes=.",
)
CONTRACTED = Kind(
    "LOX102",
    "error",
    "A product sums over axes of different meaning",
    "Name the axes with jnp.einsum, and transpose the operand whose axis is another one.",
)
RESHAPED = Kind(
    "LOX103",
    "error",
    "A reshape takes the elements of one axis for those of another",
    "Reshape to the axes in the order in which they are, then transpose: x.reshape(time, batch).swapaxes(0, 1).",
)
CROSSED = Kind(
    "LOX104",
    "error",
    "An axis is crossed with itself",
    "Give both operands the same shape before, such as with x[:, None] or jnp.squeeze; for all pairs, use jnp.outer.",
)

_ALONGSIDE = primitives("concatenate")
"""What has a rule of its own for axes, and yet takes operands side by side."""


def meeting(program: Block) -> Iterator[Finding]:
    """LOX101: in an operation on elements, an axis of one operand meets another axis of the other."""
    for step, location in located(program):
        if step.blocks or (has_rule(step.equation.primitive) and step.equation.primitive not in _ALONGSIDE):
            continue
        for first, second in itertools.combinations([value for value in step.inputs if value.shape], 2):
            if len(first.shape) != len(second.shape):
                continue
            for axis, (one, other) in enumerate(zip(first.fact.labels, second.fact.labels, strict=True)):
                if _differ(one, other) and first.shape[axis] == second.shape[axis]:
                    yield MEETING.at(
                        location,
                        f"Axis {axis} of {_text(first)} is {one}, that of {_text(second)} is {other}, and "
                        f"'{step.equation.primitive.name}' takes them element by element.",
                    )


def contracted(program: Block) -> Iterator[Finding]:
    """LOX102: a product sums over an axis of one operand and another axis of the other."""
    for step, location in _of(program, "dot_general"):
        left, right = step.inputs[:2]
        (over, batch) = step.equation.params["dimension_numbers"]
        for what, axes in (("sums over", over), ("goes along", batch)):
            for a, b in zip(*axes, strict=True):
                one, other = left.fact.labels[a], right.fact.labels[b]
                if _differ(one, other):
                    yield CONTRACTED.at(
                        location,
                        f"A product of {_text(left)} and {_text(right)} {what} {one} of the first, which is axis {a}, "
                        f"and {other} of the second, which is axis {b}.",
                    )


def reshaped(program: Block) -> Iterator[Finding]:
    """LOX103: a reshape exchanges the sizes of axes, and not their elements."""
    for step, location in _of(program, "reshape"):
        for labels, sizes, after in regrouped(step):
            new = [step.outputs[0].shape[axis] for axis in after]
            if len(new) > 1 and all(labels) and new != sizes and sorted(new) == sorted(sizes):
                yield RESHAPED.at(
                    location,
                    f"The axes {', '.join(map(str, labels))} of sizes {sizes} are reshaped to {new}: what was one "
                    f"after the other along {labels[-1]} is now spread over both axes.",
                )


def crossed(program: Block) -> Iterator[Finding]:
    """LOX104: by broadcasting that nobody wrote, an axis of one operand is crossed with the same axis of the other."""
    for step, location in located(program):
        if step.blocks or has_rule(step.equation.primitive):
            continue
        arrays = [value for value in step.inputs if value.shape]
        raised = [value for value in arrays if _is_raised(value, step)]
        others = [value for value in arrays if value not in raised]
        for one, other in itertools.product(raised, others):
            for label in set(one.fact.labels) & set(other.fact.labels) - {None}:
                if one.fact.labels.index(label) != other.fact.labels.index(label):
                    yield CROSSED.at(
                        location,
                        f"{_text(one)} meets {_text(other)}: every {label} of one meets every {label} of the other.",
                    )


def _is_raised(value: Value, step: Step) -> bool:
    """Whether an operand of a step got its first axes in the very call that the step comes from."""
    maker = value.maker
    if maker is None or maker.equation.primitive not in primitives("broadcast_in_dim", "reshape"):
        return False
    return len(maker.inputs[0].shape) < len(value.shape) and call(maker.equation) == call(step.equation)


def _of(program: Block, name: str) -> Iterator[tuple[Step, Location]]:
    return ((step, location) for step, location in located(program) if step.equation.primitive in primitives(name))


def _differ(one: Any, other: Any) -> bool:
    return one is not None and other is not None and one != other


def _text(value: Value) -> str:
    return f"{value.name or 'a value'} of shape ({value.axes})"
