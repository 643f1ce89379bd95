"""Meanings of axes that nobody writes: that of keys that were split, and that of the iterations of a scan."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

from lox import _compat
from lox._audit._audited import Audited
from lox._audit._facts import Fact, Labels, unknown
from lox._audit._label import label_p
from lox._audit._labels import Merged, groups
from lox._audit._naming import name_values
from lox._audit._origins import PASSING
from lox._audit._program import Block, Step, Value, is_call
from lox._audit._regions import Role
from lox._audit._rules import primitives
from lox._audit._walk import Walk
from lox._logs_in import jaxprs_in

Made = Literal["keys", "iterations"]
"""What the elements of an axis belong to: keys that were split, or the iterations of a scan."""


_INDEXING = PASSING | primitives("convert_element_type", "select_n")


@dataclasses.dataclass(frozen=True)
class Unwritten:
    """What an axis is by the operation that made it.

    Attributes:
        kind: What its elements belong to.
        size: How many there are. Axes of one kind and size are taken for one.
    """

    kind: Made
    size: int

    def __str__(self) -> str:
        return "split keys" if self.kind == "keys" else "iterations"


@dataclasses.dataclass(frozen=True)
class Indexed:
    """The meaning of an axis whose elements are those of another one at some indices.

    Attributes:
        of: The axis, which was made of several.
        at: The indices, or None of those that are given to a function.
    """

    of: Merged
    at: Value | None

    def __str__(self) -> str:
        return str(self.of)


class _Walk(Walk):
    """Follows meanings alone. What neither has nor makes any is taken as it was found before."""

    def __init__(self, audited: Audited) -> None:
        super().__init__(ranges=False, code=audited.captured.code)
        pairs = [pair for step, _ in audited.steps for pair in zip(step.ports, step.blocks, strict=True)]
        self._found = {
            _compat.open_jaxpr(ports.jaxpr): block for ports, block in pairs if not _makes_meanings(ports.jaxpr)
        }

    def block(self, kind: str, jaxpr: Any, facts: Sequence[Fact], names: Sequence[str] = ()) -> Block:
        found = self._found.get(_compat.open_jaxpr(jaxpr))
        if found is not None and not any(any(fact.labels) for fact in facts):
            return found
        return super().block(kind, jaxpr, facts, names)

    def leave(self, step: Step, fact: Fact, role: Role) -> Fact:
        if role != "stacked" or not step.ports[0].carried:  # Without a carry it maps a function.
            return super().leave(step, fact, role)
        return Fact((Unwritten("iterations", step.equation.params["length"]), *fact.labels), fact.range)

    def transfer(self, step: Step, facts: Sequence[Fact]) -> list[Fact]:
        found = super().transfer(step, facts)
        if step.equation.primitive in primitives("sort"):
            return [Fact(_unsorted(fact.labels, step.equation.params["dimension"]), fact.range) for fact in found]
        if step.equation.primitive in primitives("reshape"):
            found = [dataclasses.replace(found[0], labels=_merged(step, found[0].labels))]
        place, taken = _taken(step, facts[0].labels) if facts else (0, None)
        if taken is not None and found[0].labels[place] is None:
            labels = (*found[0].labels[:place], taken, *found[0].labels[place + 1 :])
            return [dataclasses.replace(found[0], labels=labels)]
        if step.equation.primitive not in primitives("random_split"):
            return found
        ((fact, shape),) = zip(found, (var.aval.shape for var in step.equation.outvars), strict=True)
        old = len(facts[0].labels)
        return [Fact((*facts[0].labels, *(Unwritten("keys", size) for size in shape[old:])), fact.range)]


def _unsorted(labels: Labels, axis: int) -> Labels:
    """The meanings of axes after sorting along one: of one that was made of several, none is left."""
    return tuple(
        None if at == axis and isinstance(label, (Merged, Indexed)) else label for at, label in enumerate(labels)
    )


def _merged(step: Step, found: Labels) -> Labels:
    """The meanings of axes after a reshape, also of those that are made of axes of which some have none."""
    own, result = step.inputs[0].fact.labels, list(found)
    for before, after in groups(step.inputs[0].shape, step.equation.outvars[0].aval.shape):
        parts = tuple(own[axis] for axis in before)
        if len(before) > len(after) == 1 and sum(isinstance(part, Unwritten) for part in parts) == 1:
            if found[after[0]] is None and parts.count(None) == len(parts) - 1:
                result[after[0]] = Merged(parts, tuple(step.inputs[0].shape[axis] for axis in before))
    return tuple(result)


def _taken(step: Step, labels: Labels) -> tuple[int, Indexed | None]:
    """The axis of a result that has elements of a merged axis, at indices or in groups."""
    first = labels[0] if labels else None
    if any(isinstance(label, (Merged, Indexed)) for label in labels[1:]):
        return 0, None
    if step.equation.primitive in primitives("gather") and isinstance(first, Merged):
        numbers = step.equation.params["dimension_numbers"]
        result = range(len(step.equation.outvars[0].aval.shape))
        indexed = [axis for axis in result if axis not in numbers.offset_dims]
        if numbers.start_index_map == numbers.collapsed_slice_dims == (0,) and indexed:
            return indexed[-1], Indexed(first, _index(step.inputs[1]))
    if step.equation.primitive in primitives("reshape") and isinstance(first, Indexed):
        before, after = next(iter(groups(step.inputs[0].shape, step.equation.outvars[0].aval.shape)), ([], []))
        if before == [0]:
            return after[-1], first
    return 0, None


def _index(value: Value) -> Value | None:
    """The indices that some are made of, which may be negative, in the function that takes elements at them."""
    calls: list[Step] = []
    outside = value
    while True:
        maker, outside = value.maker, outside if calls else value
        if maker is None and calls:
            inputs = calls[-1].blocks[0].inputs
            if value not in inputs:
                return outside
            value = calls.pop().inputs[inputs.index(value)]
        elif maker is None:
            return None
        elif is_call(maker):
            calls.append(maker)
            value = maker.blocks[0].outputs[maker.outputs.index(value)]
        elif maker.equation.primitive in _INDEXING:
            value = maker.inputs[maker.equation.primitive in primitives("select_n")]
        else:
            return outside


@_compat.weakref_lru_cache
def _makes_meanings(jaxpr: Any) -> bool:
    """Say whether an operation in a jaxpr may give an axis a meaning."""
    return any(
        equation.primitive in primitives("random_split")
        or equation.primitive is label_p
        or (equation.primitive in primitives("scan") and _compat.scan_counts(equation.params)[1])
        or any(map(_makes_meanings, jaxprs_in(equation.params)))
        for equation in _compat.open_jaxpr(jaxpr).eqns
    )


def with_origins(audited: Audited) -> Audited | None:
    """A function with the meanings of axes that nobody wrote; None of one that has not both kinds, or has labels."""
    if not (audited.has("random_split") and audited.has("scan")):
        return None
    if any(any(value.fact.labels) for value in audited.program.inputs):
        return None
    facts = [unknown(value.aval) for value in audited.program.inputs]
    captured = audited.captured
    program = _Walk(audited).block(captured.name, captured.jaxpr, facts, captured.arguments)
    name_values(program)
    return dataclasses.replace(audited, program=program)
