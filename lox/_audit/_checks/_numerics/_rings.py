"""Rings: what is written at a place that begins anew at the end of the array."""

from __future__ import annotations

from collections.abc import Iterator

from lox._audit._audited import Audited
from lox._audit._checks._numerics._accesses import WRITES, accesses
from lox._audit._checks._numerics._exponentials import made_by
from lox._audit._checks._numerics._indices import BEYOND_END, Known
from lox._audit._findings import Finding
from lox._audit._location import is_users
from lox._audit._origins import FLOWS
from lox._audit._program import Step, Value
from lox._audit._ranges import modulus
from lox._audit._rules import primitives


def overlapping(audited: Audited) -> Iterator[Finding]:
    """LOX820: the parts that are written one after another into a ring do not divide it: JAX moves the last one."""
    steps = [pair for pair in audited.of(*WRITES) if is_users(pair[1].file)]
    if not steps:
        return
    following = {(begin, by): size for begin, by, size in _wrapped(audited)}
    known = Known(audited)
    for step, location in steps:
        for access in accesses(step, audited.origins):
            size, index = step.inputs[0].shape[access.axis], audited.origins.index(access.at)
            if access.size == 1 or size % access.size == 0 or known.is_compared(index):
                continue
            if following.get((index, access.size)) == size or _divisor(index) == size:
                yield BEYOND_END.at(
                    location,
                    f"{access.size} elements are written into a ring of {size} along axis {access.axis} of "
                    f"{step.inputs[0].text}, which they do not divide: those that reach beyond the end are moved "
                    "before it, and not to the beginning.",
                )
                break


def _wrapped(audited: Audited) -> Iterator[tuple[Value, float, float]]:
    """The places that are moved by a number and begin anew at another one, with both numbers."""
    for step, _ in audited.of("rem", "select_n"):
        size = _divisor(step.outputs[0])
        moved = made_by(audited.origins.of(_whole(step), FLOWS), primitives("add")) if size is not None else None
        if moved is None or size is None:
            continue
        for one, other in (moved.inputs, moved.inputs[::-1]):
            if other.number is not None:
                yield audited.origins.index(one), other.number, size


def _whole(step: Step) -> Value:
    """The dividend of a remainder."""
    rest = step if step.equation.primitive in primitives("rem") else step.inputs[1].maker
    return step.inputs[0] if rest is None else rest.inputs[0]


def _divisor(value: Value) -> float | None:
    """The number that a value is the remainder of a division by."""
    maker = value.maker
    if maker is None or maker.equation.primitive not in primitives("rem", "select_n"):
        return None
    return maker.inputs[1].number if maker.equation.primitive in primitives("rem") else _number(maker)


def _number(step: Step) -> float | None:
    by = modulus(step)
    return None if by is None else by.number


KINDS = ()
CHECKS = (overlapping,)
