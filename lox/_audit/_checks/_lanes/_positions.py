"""Axes that a function knows by their number, which is another one under vmap."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lox._audit._audited import Audited
from lox._audit._checks._axes._meaning import gone_over
from lox._audit._expect import OPERATIONS
from lox._audit._findings import Finding, Held, Kind
from lox._audit._location import call, called, transformations
from lox._audit._program import Step

MOVED = Kind(
    "LOX312",
    "info",
    "A line goes over one axis, and under vmap over another",
    "Nothing, if it is meant for whatever axis comes first; else say by lox.audit.expect(mean='batch') which one is, "
    "and reduce over batch elements outside of vmap, or with axis_name= and jax.lax.pmean.",
    "Lines go over the same axis with vmap and without.",
    "The labels that each line goes over were compared with and without vmap.",
)

_OPERATIONS = sorted({name for operation in OPERATIONS.values() for name in operation.primitives})


def moved(audited: Audited) -> Iterator[Finding | Held]:
    """LOX312: a number of an axis means the batch in a direct call, and what is after it where vmap took the batch."""
    direct: dict[Any, list[str]] = {}
    mapped: list[tuple[Any, Step]] = []
    for step, _ in audited.of(*_OPERATIONS):
        place = (step.equation.primitive, call(step.equation))
        if "vmap" in transformations(step.equation):
            mapped.append((place, step))
        else:
            direct.setdefault(place, []).extend(gone_over(step))
    for place, step in mapped:
        for label in gone_over(step):
            kept = {str(each) for each in step.inputs[0].fact.labels} - {label}
            before = [each for each in direct.get(place, ()) if each in kept]
            if before:
                yield MOVED.at(
                    audited.lines[step],
                    f"'{called(step.equation)}' goes over {before[0]} in a direct call, and over {label} in a "
                    f"call under vmap, which maps over {before[0]}.",
                )
            elif place in direct:
                yield MOVED.fine(audited.lines[step])


KINDS = (MOVED,)
CHECKS = (moved,)
