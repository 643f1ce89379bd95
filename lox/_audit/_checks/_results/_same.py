"""Operations whose two sides are the same computation, where two different ones are meant."""

from __future__ import annotations

import re
from collections.abc import Iterator

from lox._audit._alike import Computations, of_values
from lox._audit._audited import Audited
from lox._audit._checks._autodiff._stopped import SAME
from lox._audit._findings import Finding
from lox._audit._location import frames, is_users, transformations
from lox._audit._origins import FLOWS
from lox._audit._program import Step, Value, blocks_in
from lox._audit._rules import primitives

_COMBINING = primitives("add", "min", "max")
_COMPUTING = primitives(
    "dot_general", "conv_general_dilated", "reduce_sum", "reduce_max", "log", "exp", "gather", "tanh"
)
_DISCOUNT = re.compile(r"gamma|discount", re.IGNORECASE)
_LEAST, _MOST = 3, 60
"""The fewest operations of a computation, and the most that are looked through."""


def same(audited: Audited) -> Iterator[Finding]:
    """LOX612: a sum, or the least or largest of two, has the same computation on both sides; an error, one value."""
    computed = of_values()
    for block in blocks_in(audited.program):
        for step in (step for step in block.steps if _may_be(audited, step)):
            location = audited.lines[step]
            if step.equation.primitive in primitives("sub"):
                if (value := _twice(computed, step)) is not None:
                    yield SAME.at(
                        location,
                        f"This error has {value.called} on both sides, discounted and as it is: one of them is to be "
                        "that of the next step.",
                    )
            elif _is_same(computed, step):
                yield SAME.at(
                    location,
                    f"Both sides of this '{step.equation.primitive.name}' are the same computation from the same "
                    f"values, {step.inputs[0].called}, written twice.",
                )


def _may_be(audited: Audited, step: Step) -> bool:
    if step.equation.primitive not in _COMBINING | primitives("sub") or len(step.inputs) != 2:
        return False
    one, other = step.inputs
    if one.maker is None or other.maker is None or one is other or one.shape != other.shape:
        return False
    by = one.maker.equation.primitive
    is_error = step.equation.primitive in primitives("sub")
    if by not in primitives("add", "sub") if is_error else by is not other.maker.equation.primitive:
        return False
    return "transpose" not in transformations(step.equation) and is_users(audited.lines[step].file)


def _is_same(computed: Computations[Value], step: Step) -> bool:
    one, other = step.inputs
    if computed[one] != computed[other] or one.maker is None or other.maker is None:
        return False
    if frames(one.maker.equation) == frames(other.maker.equation):  # A loop of Python.
        return False
    return _computes(one)


def _computes(value: Value) -> bool:
    """Say whether a value is more than a few operations on elements."""
    left, seen, computes = [value], set[Value](), False
    while left and len(seen) < _MOST:
        each = left.pop()
        if each in seen or each.maker is None:
            continue
        seen.add(each)
        computes |= bool(each.maker.blocks) or each.maker.equation.primitive in _COMPUTING
        left += each.maker.inputs
    return computes and len(seen) >= _LEAST


def _twice(computed: Computations[Value], step: Step) -> Value | None:
    """The value that is subtracted from a sum of data and the same value, discounted."""
    total, value = step.inputs
    if not value.shape:
        return None
    own, terms = computed[_plain(value)], list(terms_of(total))
    scaled = [term for term in terms if (factors := list(factors_of(term))) and _is_discounted(computed, factors, own)]
    data = [term for term in terms if term not in scaled and term.number is None]
    is_average = any(each.number is not None for term in data for each in factors_of(term))
    return value if len(scaled) == 1 and data and not is_average else None


def _is_discounted(computed: Computations[Value], factors: list[Value], own: int) -> bool:
    is_discount = [
        0.8 <= each.number < 1 if each.number is not None else _DISCOUNT.search(each.called) is not None
        for each in factors
    ]
    return any(is_discount) and any(computed[each] == own for each in factors)


def _plain(value: Value) -> Value:
    while value.maker is not None and value.maker.equation.primitive in FLOWS:
        value = value.maker.inputs[0]
    return value


def terms_of(value: Value) -> Iterator[Value]:
    """The terms of a sum."""
    left = [value]
    for _ in range(_MOST):
        if not left:
            return
        each = _plain(left.pop())
        if each.maker is not None and each.maker.equation.primitive in primitives("add"):
            left += each.maker.inputs
        else:
            yield each


def factors_of(value: Value) -> Iterator[Value]:
    """The factors of a product."""
    left = [value]
    for _ in range(_MOST):
        if not left:
            return
        each = _plain(left.pop())
        if each.maker is not None and each.maker.equation.primitive in primitives("mul"):
            left += each.maker.inputs
        else:
            yield each


CHECKS = (same,)
