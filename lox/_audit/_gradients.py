"""Gradients in a program, and the steps that may average them."""

from __future__ import annotations

from collections.abc import Set

from lox._audit._location import transformations
from lox._audit._loops import reached
from lox._audit._program import Block, Step, Value, is_call
from lox._audit._rules import primitives


def is_backward(step: Step) -> bool:
    """Whether JAX made a step by transposition, for a backward pass."""
    return "transpose" in transformations(step.equation)


def gradients_of(block: Block, known: dict[Block, list[Value]]) -> list[Value]:
    """The results of all backward steps of a block, and the results of its calls that depend on backward steps.

    Args:
        block: The block.
        known: Those of blocks that were looked at before, which gets those of this one.
    """
    if block not in known:
        found = known[block] = []
        for step in block.steps:
            if is_backward(step):
                found += step.outputs
            elif is_call(step) and (made := gradients_of(step.blocks[0], known)):
                pairs = zip(step.outputs, step.blocks[0].outputs, strict=True)
                after = reached(step.blocks[0], made)
                found += [value for value, own in pairs if own in after]
    return known[block]


def scales(step: Step, counts: Set[float | None]) -> bool:
    """Whether a step divides an array by one of these numbers, or by a scalar whose value the audit does not know."""
    if step.equation.primitive not in primitives("div", "mul") or not step.outputs[0].shape:
        return False
    numbers = [value.fact.range.number for value in step.inputs if not value.shape]
    if step.equation.primitive in primitives("div"):
        return any(number is None or number in counts for number in numbers)
    return any(number and 1 / number in counts for number in numbers)
