"""Results of loops that are the same in each iteration."""

from __future__ import annotations

from collections.abc import Iterator

import jax.numpy as jnp

from lox._audit._audited import Audited
from lox._audit._findings import Finding, Held, Kind
from lox._audit._location import transformations
from lox._audit._loops import Scan, is_called, origins, reached, scans
from lox._audit._origins import PASSING
from lox._audit._program import Block, Step, Value
from lox._audit._rules import primitives

SAME = Kind(
    "LOX215",
    "warning",
    "A loop evaluates what it began with in each iteration",
    "Evaluate what the iteration carries. What is the same in all iterations belongs before the loop.",
    "What loops put out of a value that they carry depends on the iteration.",
    "What scans put out was followed back to the values that they began with.",
)

_DERIVED = {"jvp", "transpose"}
_PRODUCTS = primitives("dot_general", "conv_general_dilated")


def constant(audited: Audited) -> Iterator[Finding | Held]:
    """LOX215: products with the value that a carry began with are put out, and depend on no iteration."""
    for scan, location in scans(audited):
        began = _began(audited, scan)
        if not began or not is_called(scan.step, "scan") or _DERIVED & set(transformations(scan.step.equation)):
            continue
        varying = reached(scan.body, [*(each for _, each, _ in scan.carry), *(each for _, each in scan.xs)])
        for result in scan.ys:
            made = origins([result])
            if result in varying or made.isdisjoint(began) or not _is_evaluated(made):
                continue
            yield SAME.at(
                location,
                f"{_name(audited, scan, made)}, with which a loop begins, is evaluated in each iteration, where the "
                "loop carries new values of it: the result is the same in all of them.",
            )
            break
        else:
            yield SAME.fine(location)


def _began(audited: Audited, scan: Scan) -> set[Value]:
    """What all iterations read of the arrays that a carry that changes began with."""
    first = {
        audited.origins.of(outside)
        for outside, inside, new in scan.carry
        if outside.shape and new is not inside and outside.number is None
        if jnp.issubdtype(outside.aval.dtype, jnp.inexact)
    }
    return {inside for outside, inside in scan.consts if audited.origins.of(outside) in first}


def _is_evaluated(values: set[Value]) -> bool:
    """Say whether one of some values is a product of matrices or a convolution, or calls one."""
    return any(_has_product(each.maker) for each in values if each.maker is not None)


def _has_product(step: Step) -> bool:
    return step.equation.primitive in _PRODUCTS or any(map(_products_in, step.blocks))


def _products_in(block: Block) -> bool:
    return any(map(_has_product, block.steps))


def _name(audited: Audited, scan: Scan, made: set[Value]) -> str:
    outside = next(outside for outside, inside in scan.consts if inside in made & _began(audited, scan))
    return audited.origins.of(outside, PASSING).called


KINDS = (SAME,)
CHECKS = (constant,)
