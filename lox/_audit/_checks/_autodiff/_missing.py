"""Derivatives of what is computed from missing data, where jnp.where leaves out the result and not the data."""

from __future__ import annotations

import math
from collections.abc import Iterator

from lox._audit._attained import is_constant
from lox._audit._audited import Audited
from lox._audit._checks._autodiff._singular import GUARDED, conditions_of, is_of_library, nearby
from lox._audit._checks._autodiff._taken import Asked, Taken, ways_of
from lox._audit._dependence import Node, Place
from lox._audit._findings import Finding
from lox._audit._location import is_users
from lox._audit._rules import primitives

_CURVED = primitives("integer_pow", "square", "exp", "exp2", "tanh", "logistic", "erf", "sin", "cos")
"""Functions of one operand whose result and derivative are NaN where the operand is."""
_PRODUCTS = primitives("mul", "dot_general")
_STRICT = (
    _CURVED
    | _PRODUCTS
    | primitives("add", "sub", "div", "neg", "abs", "broadcast_in_dim", "reshape", "squeeze", "transpose", "copy")
    | primitives("convert_element_type", "reduce_sum", "slice", "concatenate", "log", "sqrt", "rsqrt", "log1p")
)
"""Operations whose result is NaN wherever an operand is."""


def missing(audited: Audited) -> Iterator[Finding]:
    """LOX607: jnp.where with isnan leaves out a result that is NaN, but its derivative is taken all the same."""
    ways = audited.once(ways_of)
    places = audited.dependence.places if ways else []
    selects = [each for each in places if each.step.equation.primitive in primitives("select_n")]
    for way in ways:
        for select in selects:
            if len(select.inputs) != 3 or is_of_library(select) or not way.chooses(select):
                continue
            for place, data in _of_missing(select, way):
                if is_users(place.location.of_user.file):
                    name = place.step.equation.primitive.name
                    yield GUARDED.at(
                        place.location,
                        f"jnp.where leaves out '{name}' where {data.value.called} is NaN, "
                        "but its derivative is taken everywhere, and is NaN there: zero times NaN is NaN.",
                    )


def _of_missing(select: Place, way: Asked | Taken) -> Iterator[tuple[Place, Node]]:
    """The last operation whose derivative is NaN where a choice leaves out what is computed from NaN, and the data."""
    which, *cases = select.inputs
    for truth, (case, other) in ((False, cases), (True, cases[::-1])):
        tested = [node for node, excludes in conditions_of(which, truth) if excludes(math.nan, True)]
        for data in tested if is_constant(other) else ():
            after = _made_of(data)
            for place in nearby(case, after):
                if _has_derivative_of_nan(place, after, way):
                    yield place, data
                    return


def _made_of(data: Node) -> set[Node]:
    """The values that are NaN where the data is: those computed from it, and the one that it is the square of."""
    seen = {data}
    if data.place is not None and data.place.step.equation.primitive in _CURVED:
        seen.add(data.place.inputs[0])
    left = list(seen)
    while left:
        for node, smooth in left.pop().feeds:
            passes = node.place is None or node.place.step.equation.primitive in _STRICT
            if smooth and passes and node not in seen:
                seen.add(node)
                left.append(node)
    return seen


def _has_derivative_of_nan(place: Place, among: set[Node], way: Asked | Taken) -> bool:
    """Say whether an operation multiplies a derivative by what is NaN."""
    primitive = place.step.equation.primitive
    if primitive in _CURVED:
        return place.inputs[0] in among and way.passes(place, place.inputs[0])
    if primitive not in _PRODUCTS:
        return False
    return any(node in among and way.multiplies(place, node) for node in place.inputs)


KINDS = ()
CHECKS = (missing,)
