"""Divisions by an array of constants that has a zero in it."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from lox._audit._audited import Audited
from lox._audit._checks._numerics._elements import elements
from lox._audit._checks._numerics._exponentials import chosen_from
from lox._audit._checks._numerics._infinities import UNDEFINED
from lox._audit._checks._numerics._integers import is_float
from lox._audit._findings import Finding
from lox._audit._labels import has_rule
from lox._audit._location import is_users, transformations
from lox._audit._program import Step, Value
from lox._audit._rules import primitives

_LARGEST = 4096
"""Of larger arrays, elements are not looked at."""
_REPLACING = primitives("scatter", "dynamic_update_slice", "select_n", "gather", "dynamic_slice", "is_finite", "ne")
"""What may leave out or replace what is infinite or NaN."""
_BOUNDED = primitives(
    "exp", "tanh", "logistic", "erf", "atan2", "min", "max", "clamp", "lt", "le", "gt", "ge", "argmin"
)
"""What makes a number of what is infinite, or compares it."""
_MOST = 50


def poles(audited: Audited) -> Iterator[Finding]:
    """LOX808: an array of constants is divided by that is zero at a place, and nothing replaces the result there."""
    left_out = None
    for step, location in audited.of("div"):
        (_, under), (result,) = step.inputs, step.outputs
        if under.number is not None or not _is_small(under) or not is_float(result):
            continue
        if "transpose" in transformations(step.equation) or not is_users(location.of_user.file):
            continue
        places = tuple(map(np.ravel, np.indices(under.shape)))
        numbers = elements(under, places, audited.origins)
        zeros = np.flatnonzero(np.asarray(numbers) == 0 if numbers is not None else [])
        left_out = audited.once(chosen_from) if left_out is None else left_out
        if not len(zeros) or result in left_out or result not in audited.live or _is_replaced(audited, result):
            continue
        at = ", ".join(str(axis[zeros[0]]) for axis in places)
        yield UNDEFINED.at(
            location,
            f"What is divided by is made of constants, and is zero at [{at}]: the quotient is infinite or NaN there.",
        )


def _is_small(value: Value) -> bool:
    is_known = all(isinstance(size, int) for size in value.shape)
    return bool(value.shape) and is_known and math.prod(value.shape) <= _LARGEST


def _is_replaced(audited: Audited, value: Value) -> bool:
    """Say whether what is made of a value, element by element, goes into what may replace or leave out elements."""
    seen, left = {value}, [value]
    while left and len(seen) < _MOST:
        for step in audited.users.of(left.pop()):
            if step.equation.primitive in _REPLACING | _BOUNDED or _leaves_out(step):
                return True
            if step.equation.primitive in primitives("div") and step.inputs[1] in seen:
                return True
            if not step.blocks and (not has_rule(step.equation.primitive) or len(step.outputs[0].shape)):
                left += [each for each in step.outputs if each not in seen]
                seen.update(step.outputs)
    return False


def _leaves_out(step: Step) -> bool:
    is_slice = step.equation.primitive in primitives("slice")
    return is_slice and any(start > 0 for start in step.equation.params["start_indices"])


CHECKS = (poles,)
