"""Results of loops that are the same in each iteration."""

from __future__ import annotations

from collections.abc import Iterator

import jax.numpy as jnp

from lox._audit._audited import Audited
from lox._audit._findings import Finding, Held, Kind
from lox._audit._location import transformations
from lox._audit._loops import Scan, is_called, origins, reached, scans
from lox._audit._program import Value, steps_in
from lox._audit._rules import primitives

SAME = Kind(
    "LOX215",
    "warning",
    "A loop evaluates what it began with in each iteration",
    "Evaluate what the iteration carries. What is the same in all iterations belongs before the loop.",
    "What loops put out of a value that they carry depends on the iteration.",
    "What scans put out was followed back to the values that they began with.",
)

_PRODUCTS = primitives("dot_general", "conv_general_dilated")


def constant(audited: Audited) -> Iterator[Finding | Held]:
    """LOX215: products with the value that a carry began with are put out, and depend on no iteration."""
    for scan, location in scans(audited):
        began = _began(audited, scan)
        is_derived = {"jvp", "transpose"} & set(transformations(scan.step.equation))
        if not began or is_derived or not is_called(scan.step, "scan"):
            continue
        evaluated = next(_evaluated(scan, began), None)
        if evaluated is None:
            yield SAME.fine(location)
        else:
            yield SAME.at(
                location,
                f"{evaluated.called}, with which a loop begins, is evaluated in each iteration, where the loop carries "
                "new values of it: the result is the same in all of them.",
            )


def _began(audited: Audited, scan: Scan) -> dict[Value, Value]:
    """The arrays that a loop both begins its carry with and reads from outside in its body: inside, and outside."""
    first = {
        audited.origins.of(outside)
        for outside, inside, new in scan.carry
        if outside.shape and new is not inside and outside.number is None
        if jnp.issubdtype(outside.aval.dtype, jnp.inexact)
    }
    read = {inside: audited.origins.of(outside) for outside, inside in scan.consts}
    return {inside: origin for inside, origin in read.items() if origin in first}


def _evaluated(scan: Scan, began: dict[Value, Value]) -> Iterator[Value]:
    """The values that a loop began with of which it puts out products that are the same in each iteration."""
    varying = reached(scan.body, [*(each for _, each, _ in scan.carry), *(each for _, each in scan.xs)])
    for result in scan.ys:
        made = origins([result])
        steps = [step for each in made if each.maker is not None for step in steps_in(each.maker)]
        if result not in varying and any(step.equation.primitive in _PRODUCTS for step in steps):
            yield from (origin for inside, origin in began.items() if inside in made)


KINDS = (SAME,)
CHECKS = (constant,)
