"""Values that are multiplied and divided by the same number, one of which was to be the old one."""

from __future__ import annotations

from collections.abc import Iterator

import jax.numpy as jnp

from lox._audit._alike import Computations, of_values
from lox._audit._audited import Audited
from lox._audit._checks._autodiff._stopped import SAME
from lox._audit._findings import Finding
from lox._audit._location import is_users, transformations
from lox._audit._loops import origins
from lox._audit._program import Block, Step, Value, blocks_in
from lox._audit._rules import primitives


def ratios(audited: Audited) -> Iterator[Finding]:
    """LOX612: x * s / s, or x / s * s, of an s that is computed from an old value of the same type."""
    if not audited.has("div"):
        return
    computed = of_values()
    for block in blocks_in(audited.program):
        for step, inner in [(each, inner) for each in block.steps for inner in _inner(audited, each)]:
            scale = _common(computed, step, inner)
            if scale is not None and _is_renewed(block, scale):
                yield SAME.at(
                    audited.lines[step],
                    f"This multiplies and divides by the same value, {scale.called}, which changes nothing: one of "
                    "them is to be the value that it was before.",
                )


def _inner(audited: Audited, step: Step) -> Iterator[Step]:
    """The product that a step divides, or the quotient that it multiplies, if nothing else reads it."""
    primitive = step.equation.primitive
    names = {"div": "mul", "mul": "div"}
    wanted = next((other for own, other in names.items() if primitive in primitives(own)), None)
    if wanted is None or not is_users(audited.lines[step].file) or not _is_float(step.outputs[0]):
        return
    for value in step.inputs[:1] if wanted == "mul" else step.inputs:
        made = value.maker
        if made is not None and made.equation.primitive in primitives(wanted) and value.uses == 1:
            if not {"jvp", "transpose"} & {*transformations(step.equation), *transformations(made.equation)}:
                yield made


def _common(computed: Computations[Value], step: Step, inner: Step) -> Value | None:
    """The value that is both multiplied by and divided by."""
    quotient, product = (step, inner) if step.equation.primitive in primitives("div") else (inner, step)
    divisor = quotient.inputs[1]
    factors = [each for each in product.inputs if each is not inner.outputs[0]]
    found = any(computed[each] == computed[divisor] for each in factors)
    return divisor if found and divisor.number is None else None


def _is_renewed(block: Block, value: Value) -> bool:
    """Say whether a value is computed from what comes into a block with the same type, as a new one from the old."""
    return any(each is not value and each in block.inputs and each.aval == value.aval for each in origins([value]))


def _is_float(value: Value) -> bool:
    return jnp.issubdtype(value.aval.dtype, jnp.inexact)


CHECKS = (ratios,)
