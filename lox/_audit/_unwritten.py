"""Meanings of axes that nobody writes: that of keys that were split, and that of the iterations of a scan."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

from lox import _compat
from lox._audit._audited import Audited
from lox._audit._facts import Fact, unknown
from lox._audit._label import label_p
from lox._audit._naming import name_values
from lox._audit._program import Block, Step
from lox._audit._regions import Role
from lox._audit._rules import primitives
from lox._audit._walk import Walk
from lox._logs_in import jaxprs_in

Made = Literal["keys", "iterations"]
"""What the elements of an axis belong to: keys that were split, or the iterations of a scan."""


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


class _Walk(Walk):
    """Follows meanings alone. What neither has nor makes any is taken as it was found before."""

    def __init__(self, audited: Audited) -> None:
        super().__init__(ranges=False)
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
        if step.equation.primitive not in primitives("random_split"):
            return found
        ((fact, shape),) = zip(found, (var.aval.shape for var in step.equation.outvars), strict=True)
        old = len(facts[0].labels)
        return [Fact((*facts[0].labels, *(Unwritten("keys", size) for size in shape[old:])), fact.range)]


@_compat.weakref_lru_cache
def _makes_meanings(jaxpr: Any) -> bool:
    """Whether an operation in a jaxpr may give an axis a meaning."""
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
