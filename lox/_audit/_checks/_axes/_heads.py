"""Heads of attention that a reshape mixes with the sequence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lox._audit._audited import Audited
from lox._audit._checks._axes._meaning import RESHAPED
from lox._audit._checks._numerics._attention import Attention, attentions
from lox._audit._findings import Finding
from lox._audit._labels import groups
from lox._audit._location import transformations
from lox._audit._origins import PASSING, Origins
from lox._audit._program import Step, Value
from lox._audit._rules import primitives

_RESHAPE, _TRANSPOSE = primitives("reshape"), primitives("transpose")
_SAME = (PASSING - _RESHAPE) | primitives("convert_element_type", "stop_gradient")
_SCALING = primitives("mul", "div")


def heads(audited: Audited) -> Iterator[Finding]:
    """LOX103: a reshape splits features into heads before the sequence, or merges heads while they come before it."""
    for attention in audited.once(attentions):
        scored = attention.scores.inputs[:2]
        for step in (_split(value, audited.origins) for value in (*scored, attention.values)):
            if step is not None:
                yield RESHAPED.at(audited.lines[step], _text(step, "split the last axis first, then transpose"))
        for step in _merged(attention, audited):
            yield RESHAPED.at(audited.lines[step], _text(step, "bring the heads behind the sequence first"))


def _text(step: Step, cure: str) -> str:
    before, after = step.inputs[0].shape, step.outputs[0].shape
    return (
        f"Attention of several heads is reshaped from {before} to {after}: positions of the sequence and heads are "
        f"mixed; {cure}."
    )


def _split(value: Value, origins: Origins) -> Step | None:
    """The reshape that makes heads of parts of the sequence, if queries, keys or values come out of one."""
    while True:
        value = origins.of(value, _SAME)
        maker = value.maker
        if maker is None:
            return None
        if maker.equation.primitive in _RESHAPE:
            return maker if _mixes(maker.inputs[0].shape, value.shape) else None
        unknown = [each for each in maker.inputs if each.number is None]
        if maker.equation.primitive not in _SCALING or len(unknown) != 1:
            return None
        (value,) = unknown


def _mixes(before: Sequence[int], after: Sequence[int]) -> bool:
    """Say whether a reshape is of (sequence, features) to (heads, sequence, features of one)."""
    for old, new in groups(before, after):
        sizes, others = [before[axis] for axis in old], [after[axis] for axis in new]
        if len(sizes) == 2 and len(others) == 3 and others[1] == sizes[0] != others[0]:
            return old[-1] == len(before) - 1 and new[-1] == len(after) - 1
    return False


def _merged(attention: Attention, audited: Audited) -> Iterator[Step]:
    """The reshapes that merge the features of heads with the sequence between them."""
    product = attention.product
    (over, _), (batch, _) = product.equation.params["dimension_numbers"]
    is_first = product.inputs[1] is attention.values
    kinds = ["positions", "features"] if is_first else ["features", "positions"]
    counts = [len(value.shape) - len(over) - len(batch) for value in product.inputs[:2]]
    axes = ["heads"] * len(batch) + [kind for kind, count in zip(kinds, counts, strict=True) for _ in range(count)]
    left = [(product.outputs[0], axes)]
    while left:
        value, axes = left.pop()
        for step in audited.users.of(value):
            if "transpose" in transformations(step.equation):
                continue
            if step.equation.primitive in _RESHAPE and _mixes(step.outputs[0].shape, value.shape):
                new = groups(step.outputs[0].shape, value.shape)[-1][1]
                if [axes[axis] for axis in new] == ["heads", "positions", "features"]:
                    yield step
            elif step.equation.primitive in _TRANSPOSE:
                left.append((step.outputs[0], [axes[axis] for axis in step.equation.params["permutation"]]))
            elif step.equation.primitive in primitives("convert_element_type"):
                left.append((step.outputs[0], axes))


KINDS = ()
CHECKS = (heads,)
