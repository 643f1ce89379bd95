"""Vectors that meet a multiple of the identity where a matrix is meant, as that of a kernel between all pairs."""

from __future__ import annotations

from collections.abc import Iterator

from lox._audit._audited import Audited
from lox._audit._checks._axes._crossed import CROSSED
from lox._audit._checks._axes._meaning import is_made_for
from lox._audit._findings import Finding
from lox._audit._location import transformations
from lox._audit._origins import FLOWS, Origins
from lox._audit._program import Step, Value
from lox._audit._rules import primitives
from lox._audit._worklist import Worklist

_ALGEBRA_NAMES = ("cholesky", "lu", "eigh", "qr", "svd", "triangular_solve", "custom_linear_solve")
_ALGEBRA = primitives(*_ALGEBRA_NAMES)
_ELEMENTWISE = FLOWS | primitives("add", "sub", "mul", "div", "neg", "transpose")
_MOST = 40


def rows_of_identity(audited: Audited) -> Iterator[Finding]:
    """LOX104: a vector is added to each row of a multiple of the identity, and the sum is taken for a symmetric matrix.

    The corners of a simplex, or points a little apart, are made in the same way; no linear system is solved with them.
    """
    if not audited.has(*_ALGEBRA_NAMES):
        return
    for step, location in audited.of("add", "sub"):
        if {"jvp", "transpose"} & set(transformations(step.equation)):
            continue
        for one, other in (step.inputs, step.inputs[::-1]):
            rows = one.maker.inputs[0] if one.maker is not None and is_made_for(one, step) else None
            *_, height, width = (0, 0, *step.outputs[0].shape)
            is_vector = rows is not None and len(rows.shape) == 1 and rows.number is None
            if not is_vector or height != width or width < 2 or one.shape[-1:] != (width,):
                continue
            if _is_identity(other, audited.origins) and _is_solved(audited, step):
                yield CROSSED.at(
                    location,
                    f"{one.text_as_written} is added to each row of a multiple of the identity, and a linear system is "
                    "solved with the sum. A matrix of all pairs takes two calls of jax.vmap, one inside the other.",
                )


def _is_identity(value: Value, origins: Origins) -> bool:
    """Say whether a value is a diagonal of ones, perhaps multiplied by numbers."""
    for _ in range(_MOST):
        maker = origins.of(value, FLOWS).maker
        if maker is None:
            return False
        if maker.equation.primitive in primitives("mul", "div"):
            arrays = [each for each in maker.inputs if len(origins.of(each).shape) >= 2]
            if len(arrays) != 1:
                return False
            (value,) = arrays
            continue
        made = [origins.of(each, FLOWS | primitives("add")).maker for each in maker.inputs]
        is_counted = all(each is not None and each.equation.primitive in primitives("iota") for each in made)
        return maker.equation.primitive in primitives("eq") and is_counted
    return False


def _is_solved(audited: Audited, step: Step) -> bool:
    """Say whether a matrix goes into an operation of linear algebra."""
    made = Worklist(step.outputs, _MOST)
    for value in made:
        for user in audited.users.of(value):
            if user.equation.primitive in _ALGEBRA:
                return True
            if user.equation.primitive in _ELEMENTWISE and user.outputs[0].shape[-2:] in (value.shape[-2:], ()):
                made.add(user.outputs)
    return False


KINDS = ()
CHECKS = (rows_of_identity,)
