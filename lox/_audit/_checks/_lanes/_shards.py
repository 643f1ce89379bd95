"""What runs on shards: shard_map and pmap, and their collectives."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence, Set
from typing import Any

from lox import _compat
from lox._audit._audited import Audited
from lox._audit._findings import Finding, Held, Kind
from lox._audit._location import Location, transformations
from lox._audit._program import Step, Value, blocks_in
from lox._audit._rules import primitives
from lox._audit._varying import SUMS, Around, Seen, Shards, State, axes_of, manual_axes, named_axes

REPLICATED = Kind(
    "LOX300",
    "error",
    "A result that is declared the same on all shards differs between them",
    "Reduce it before it is returned, such as grads = jax.lax.pmean(grads, 'data') before an update; or name the axis "
    "in its out_specs=.",
    "Results that are declared the same on all shards are so.",
    "Which values differ between shards was followed from in_specs through the collectives to out_specs.",
)
MULTIPLIED = Kind(
    "LOX301",
    "warning",
    "A sum over shards or batch elements of a value that all of them share",
    "Leave the psum out, or use jax.lax.pmean; sum what is the same once, after the psum of what differs.",
    "Sums over shards are of what differs between them.",
    "Whether each summed value differs between shards or batch elements was followed from its inputs.",
)
AVERAGED = Kind(
    "LOX302",
    "warning",
    "A mean over shards of a gradient that is summed over them already",
    "Take the gradient of the mean loss: loss = jax.lax.pmean(loss, axis) in the function that is differentiated, and "
    "no pmean of the gradient.",
)
DOUBLED = Kind(
    "LOX303",
    "error",
    "A sum over shards of a gradient that counts all shards already",
    "Use jax.lax.pmean for the gradient in the place of psum, or differentiate the loss of the shard alone.",
)
DROPPED = Kind(
    "LOX304",
    "warning",
    "The result of a collective is used nowhere, and the computation goes on with what went in",
    "Collectives change nothing in place: use what they return, as in grads = jax.lax.pmean(grads, 'data').",
)
QUOTIENTS = Kind(
    "LOX305",
    "warning",
    "A mean over shards of quotients with denominators of their own",
    "Sum both over the shards, then divide: jax.lax.psum(total, axis) / jax.lax.psum(count, axis).",
    "What is averaged over shards has the same weight on each.",
    "The denominators of averaged values were followed to whether they differ between shards.",
)
_COLLECTIVES = {
    **dict.fromkeys(SUMS, "psum or pmean"),
    **dict.fromkeys(primitives("pmax"), "pmax"),
    **dict.fromkeys(primitives("pmin"), "pmin"),
    **dict.fromkeys(primitives("all_gather", "all_gather_invariant"), "all_gather"),
    **dict.fromkeys(primitives("reduce_scatter"), "psum_scatter"),
}
"""What people call collectives."""
_CASTS = primitives("pvary", "convert_element_type")
_PARTS = _CASTS | primitives("max", "add", "add_any", "clamp", "squeeze", "reshape", "neg")
"""What may be between a sum and a quotient of it."""


def shards(audited: Audited) -> Iterator[Finding | Held]:
    """LOX300 to LOX303 and LOX305: what differs between shards and should not, or the other way round."""
    if not any(step.equation.primitive is _compat.shard_map_p for step, _ in audited.steps):
        return
    locations = audited.lines
    seen: list[Seen] = []
    block = audited.program
    Shards(seen.append).run(block, [State(given=True)] * len(block.inputs), Around())
    wrong: dict[tuple[Kind, Location, str, int], list[str]] = {}
    for each in seen:
        location = locations[each.step]
        if each.step.equation.primitive is _compat.shard_map_p:
            text = _replicated(each)
            yield REPLICATED.at(location, text) if text else REPLICATED.fine(location)
        elif not each.around.backward:
            found = list(_summed(each))
            for kind, axis, value in found:
                wrong.setdefault((kind, location, axis, each.around.sizes[axis]), []).append(_text(value))
            if not found:
                yield MULTIPLIED.fine(location)
                if _is_mean(each):
                    yield QUOTIENTS.fine(location)
    for (kind, location, axis, size), values in wrong.items():
        yield kind.at(location, _MESSAGES[kind].format(values=_some(values), axis=axis, size=size))


def _replicated(seen: Seen) -> str:
    """What is wrong with the results of a `shard_map`."""
    equation, block = seen.step.equation, seen.step.blocks[0]
    axes = manual_axes(equation)
    wrong: list[int] = []
    over: set[str] = set()
    for place, (state, spec) in enumerate(zip(seen.outputs, equation.params["out_specs"], strict=True)):
        differs = {axis for axis in axes - axes_of(spec) if state.differs(axis)}
        if differs and not equation.params.get("check_vma"):
            wrong.append(place)
            over |= differs
    if not wrong:
        return ""
    split = [
        value.name if value.name and "flat_args" not in value.name else f"argument {place}"
        for place, (value, spec) in enumerate(zip(block.inputs, equation.params["in_specs"], strict=True))
        if axes_of(spec) & over
    ]
    results = _some([f"result {place} of shape {block.outputs[place].shape}" for place in wrong])
    how = ", by way of gradients" if any(seen.outputs[place].gradient for place in wrong) else ""
    said = _some([repr(axis) for axis in sorted(over)])
    return (
        f"By its out_specs, what shard_map returns is the same along {said}, and is not: {results}. It depends on "
        f"{_some(split) or 'the index of the shard'}{how}, and is not reduced over {said}. JAX takes what one shard "
        "has, and checks nothing under check_vma=False."
    )


def _summed(seen: Seen) -> Iterator[tuple[Kind, str, Value]]:
    """What is wrong with a sum over shards: kinds, axes and values."""
    mean, scaled = _is_mean(seen), _is_scaled(seen)
    for value, state in zip(seen.step.inputs, seen.inputs, strict=True):
        for axis in sorted(named_axes(seen.step.equation, seen.around)):
            if state.same(axis) and axis in state.summed and mean:
                yield AVERAGED, axis, value
            elif state.same(axis) and state.given and not scaled:
                yield MULTIPLIED, axis, value
            elif state.differs(axis) and axis in state.crossed and not scaled:
                yield DOUBLED, axis, value
            elif state.differs(axis) and mean and _is_quotient(value, axis, seen):
                yield QUOTIENTS, axis, value


_MESSAGES = {
    AVERAGED: "What is averaged over the {size} shards along '{axis}' is a gradient of the loss of a shard, and "
    "differentiation has summed it over the shards already: {values}. The result is this sum, {size} times the mean.",
    MULTIPLIED: "What is summed over the {size} shards along '{axis}' is the same on all of them: {values}. "
    "The result is {size} times that.",
    DOUBLED: "What is summed over the {size} shards along '{axis}' is a gradient through a collective over them: "
    "{values}. In pmap, and under check_vma=False, it is {size} times the part of the shard, and so the result is "
    "{size} times the gradient.",
    QUOTIENTS: "What is averaged over the {size} shards along '{axis}' is a sum divided by a sum that differs between "
    "shards: {values}. The mean of the quotients is not the quotient of the sums.",
}


def dropped(audited: Audited) -> Iterator[Finding | Held]:
    """LOX304: what a collective returns is dropped."""
    locations = audited.lines
    found: dict[tuple[Location, str], list[str]] = {}
    for block in blocks_in(audited.program):
        live: set[Value] = set(block.outputs)
        for step in reversed(block.steps):
            collective = _COLLECTIVES.get(step.equation.primitive)
            if any(value in live for value in step.outputs) or (step.equation.effects and not collective):
                live.update(step.inputs)
            elif collective and not {"jvp", "transpose"} & set(transformations(step.equation)):
                values = [_before(value, _CASTS) for value in step.inputs]
                texts = [_text(value) for value in values if value in live]
                found.setdefault((locations[step], collective), []).extend(texts)
    for (location, collective), texts in found.items():
        if texts:
            yield DROPPED.at(
                location,
                f"What {collective} returns is used nowhere, and what goes into it is used below: {_some(texts)}.",
            )


def _is_mean(seen: Seen) -> bool:
    """Whether a sum over shards is divided by how many there are."""
    size = math.prod(seen.around.sizes[axis] for axis in named_axes(seen.step.equation, seen.around))
    return any(step.inputs[1].number == size for step in _divisions(seen))


def _is_scaled(seen: Seen) -> bool:
    """Whether a sum over shards is divided, or may be where it cannot be seen."""
    return seen.leaves or bool(_divisions(seen))


def _divisions(seen: Seen) -> list[Step]:
    """The steps that divide a sum over shards, by whatever."""
    return [
        step
        for value in seen.step.outputs
        for step in seen.users.get(value, ())
        if step.equation.primitive in primitives("div") and step.inputs[0] is value
    ]


def _is_quotient(value: Value, axis: str, seen: Seen) -> bool:
    """Whether a value is one sum by another one that differs between shards."""
    value = _before(value, _CASTS)
    if value.maker is None or value.maker.equation.primitive not in primitives("div"):
        return False
    total, count = value.maker.inputs
    return seen.of.get(count, State()).differs(axis) and _is_sum(total) and _is_sum(count)


def _is_sum(value: Value) -> bool:
    value = _before(value, _PARTS)
    return value.maker is not None and value.maker.equation.primitive in primitives("reduce_sum", "dot_general")


def _before(value: Value, through: Set[Any]) -> Value:
    """What a value was before some operations, along their first operand that is no constant."""
    while value.maker is not None and value.maker.equation.primitive in through:
        value = next((each for each in value.maker.inputs if each.number is None), value.maker.inputs[0])
    return value


def _text(value: Value) -> str:
    return f"{value.called} of shape {value.shape}"


def _some(texts: Sequence[str]) -> str:
    """The first three of some texts."""
    return ", ".join([*texts[:3], *[f"{len(texts) - 3} more"] * (len(texts) > 3)])


KINDS = (REPLICATED, MULTIPLIED, AVERAGED, DOUBLED, DROPPED, QUOTIENTS)
CHECKS = (shards, dropped)
