"""Losses that are averaged over shards or batch elements, and gradients that are not: kept, or summed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lox import _compat
from lox._audit._audited import Audited
from lox._audit._findings import Finding, Held, Kind
from lox._audit._gradients import gradients_of, is_backward, scales
from lox._audit._location import transformations
from lox._audit._loops import reached
from lox._audit._program import Block, Step, Value, blocks_in, is_call
from lox._audit._rules import primitives
from lox._audit._varying import SUMS, axes_of, collective_axes, manual_axes

OWN = Kind(
    "LOX306",
    "warning",
    "The loss is averaged over shards, and its gradients are not",
    "Average both: loss, grads = jax.lax.pmean((loss, grads), axis_name). Where each shard has a model of its own, "
    "average the losses outside.",
    "Where losses are averaged over shards, gradients are.",
    "The collectives over each axis were looked up for what they are of.",
)

SUMMED = Kind(
    "LOX307",
    "warning",
    "The loss is averaged over shards, and its gradients are summed",
    "Average both: loss, grads = jax.lax.pmean((loss, grads), axis_name). If the gradient of a sum is meant, sum the "
    "losses as well.",
    "Where losses are averaged over shards, gradients are not summed.",
    "The collectives over each axis were looked up for what they are of, and what their results are divided by.",
)

_COLLECTIVES = SUMS | primitives(
    "pmax", "pmin", "all_gather", "all_gather_invariant", "reduce_scatter", "all_to_all", "ppermute", "pgather"
)
_SCALING = SUMS | primitives("div", "convert_element_type", "squeeze", "reshape")


def own(audited: Audited) -> Iterator[Finding | Held]:
    """LOX306: a loss is summed over an axis, its gradient moves parameters, and nothing else goes over this axis."""
    for block, axis in _scopes(audited):
        blocks = blocks_in(block)
        over = [step for each in blocks for step in each.steps if axis in _axes(step)]
        losses = [step for step in over if _is_of_loss(step)]
        if not losses:
            continue
        location = audited.lines[losses[0]]
        if _is_plain(over) and any(_keeps(each, over, axis) for each in blocks):
            yield OWN.at(
                location,
                f"This loss is averaged over the {_who(axis)}, and its gradient is not: each of them updates "
                "parameters by a gradient of its own, and they drift apart.",
            )
        else:
            yield OWN.fine(location)


def summed(audited: Audited) -> Iterator[Finding | Held]:
    """LOX307: a loss is averaged over an axis, its gradient is summed over it, and divided by no number of shards."""
    for block, axis in _scopes(audited, split=False):
        blocks = blocks_in(block)
        over = [(each, step) for each in blocks for step in each.steps if axis in _axes(step)]
        losses = [(each, step) for each, step in over if _is_of_loss(step) and not _is_differentiated(step)]
        counts = {_count(each, step) for each, step in losses}
        known: dict[Block, list[Value]] = {}
        made = {value for each in blocks for value in gradients_of(each, known)}
        gradients = [step for _, step in over if not made.isdisjoint(step.inputs) and not _is_plain([step])]
        others = [_is_plain([step]) or _count(each, step) for each, step in over if step not in gradients]
        if not any(counts) or not gradients or not all(others):
            continue
        by_jax = is_backward(gradients[0])
        location = audited.lines[losses[0][1] if by_jax else gradients[0]]
        averages = {value for _, step in over if step not in gradients for value in step.outputs}
        steps = (step for each in blocks for step in each.steps if averages.isdisjoint(step.inputs))
        if any(scales(step, counts) for step in steps):
            yield SUMMED.fine(location)
            continue
        if by_jax:
            text = f"This loss is averaged over the {_who(axis)}, and differentiation sums its gradient over them."
        else:
            text = f"This gradient is summed over the {_who(axis)}, and its loss is averaged."
        yield SUMMED.at(location, f"{text} The gradient grows with their number.")


def _who(axis: str | int) -> str:
    """What an axis consists of."""
    return "batch elements of a vmap" if isinstance(axis, int) else f"shards along {axis!r}"


def _count(block: Block, step: Step) -> float | None:
    """The number by which all that reads a sum over shards divides it, as `pmean` does; None where there is none."""
    readers = [each for each in block.steps if not set(step.outputs).isdisjoint(each.inputs)]
    if step.equation.primitive not in SUMS or any(each.equation.primitive not in primitives("div") for each in readers):
        return None
    numbers = {each.inputs[1].fact.range.number for each in readers}
    return numbers.pop() if len(numbers) == 1 else None


def _is_differentiated(step: Step) -> bool:
    return "jvp" in transformations(step.equation)


def _scopes(audited: Audited, split: bool = True) -> Iterator[tuple[Block, str | int]]:
    """The blocks with sums over shards or batch elements, each with the axis: a name, or a number under a vmap.

    Args:
        audited: The program.
        split: Whether only axes of a mesh count along which each shard returns arrays of its own.
    """
    for step, _ in audited.steps:
        if step.equation.primitive is _compat.shard_map_p:
            axes = sorted(manual_axes(step.equation))
            yield from ((step.blocks[0], axis) for axis in axes if not split or _is_split(step, axis))
    for block in blocks_in(audited.program) if audited.has("psum", "psum_invariant") else ():
        for place in {axis for step in block.steps for axis in _axes(step) if isinstance(axis, int)}:
            yield block, place


def _is_split(step: Step, axis: str) -> bool:
    """Whether each shard returns arrays of its own; what is declared the same on all is another matter."""
    results = zip(step.blocks[0].outputs, step.equation.params["out_specs"], strict=True)
    return all(axis in axes_of(spec) for value, spec in results if value.shape)


def _axes(step: Step) -> list[Any]:
    """The axes that a collective goes over; of another step, none."""
    return collective_axes(step.equation) if step.equation.primitive in _COLLECTIVES else []


def _is_plain(over: list[Step]) -> bool:
    """Whether all collectives are sums of single numbers, so that shards have no parts of one model."""
    return all(step.equation.primitive in SUMS and all(map(_is_single, _operands(step))) for step in over)


def _operands(step: Step) -> Iterator[tuple[Value, bool]]:
    by_place = any(isinstance(axis, int) for axis in _axes(step))
    return ((value, by_place) for value in step.inputs)


def _is_single(operand: tuple[Value, bool]) -> bool:
    value, by_place = operand
    return len(value.shape) == by_place


def _is_of_loss(step: Step) -> bool:
    """Whether what is summed was differentiated: the step, or what it takes, comes of a forward pass."""
    passes = [transformations(step.equation)]
    for value in step.inputs:
        maker = value.maker
        while maker is not None and (is_call(maker) or maker.equation.primitive in _SCALING):
            value = maker.blocks[0].outputs[maker.outputs.index(value)] if is_call(maker) else maker.inputs[0]
            maker = value.maker
        if maker is not None:
            passes.append(transformations(maker.equation))
    return step.equation.primitive in SUMS and any("jvp" in names and "transpose" not in names for names in passes)


def _keeps(block: Block, over: list[Step], axis: str | int) -> bool:
    """Whether a block updates an array by gradients that go through no collective, nor a sum outside a vmap."""
    by_place = isinstance(axis, int)
    in_vmap = {step for step in block.steps if "vmap" in transformations(step.equation)}
    is_mapped = any(isinstance(each, int) for step in block.steps for each in _axes(step))
    if not by_place and not is_mapped and any(is_backward(step) for step in in_vmap):  # Several models on each shard.
        return False
    after = reached(block, gradients_of(block, {}))
    readers = {step for step in block.steps if not after.isdisjoint(step.inputs) and not is_backward(step)}
    outside = readers - in_vmap if by_place and in_vmap else set()
    if not readers.isdisjoint(over) or any(map(_reduces, outside)):
        return False
    updated = reached(block, [value for step in readers if _updates(step, after) for value in step.outputs])
    return any(value in updated and not _is_single((value, by_place)) for value in block.outputs)


def _reduces(step: Step) -> bool:
    return bool(step.blocks) or max(len(value.shape) for value in step.outputs) < max(
        len(value.shape) for value in step.inputs
    )


def _updates(step: Step, after: set[Value]) -> bool:
    """Whether a step adds a gradient to something of its shape, or may do so in what it runs."""
    others = [value for value in step.inputs if value not in after and value.fact.range.low != value.fact.range.high]
    return bool(others) and (bool(step.blocks) or step.equation.primitive in primitives("add", "sub"))


KINDS = (OWN, SUMMED)
CHECKS = (own, summed)
