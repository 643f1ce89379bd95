"""Derivatives of what is computed from missing data, where jnp.where leaves out the result and not the data."""

from __future__ import annotations

import math
from collections.abc import Iterator

from lox._audit._attained import is_constant
from lox._audit._audited import Audited
from lox._audit._checks._autodiff._singular import GUARDED, conditions_of, is_of_library
from lox._audit._checks._autodiff._taken import Asked, Taken
from lox._audit._checks._autodiff._way import is_asked
from lox._audit._dependence import Node, Place
from lox._audit._findings import Finding
from lox._audit._location import is_users
from lox._audit._rules import primitives

_CURVED = primitives("integer_pow", "square", "exp", "exp2", "tanh", "logistic", "erf", "sin", "cos")
"""What is NaN of NaN alone, and has a derivative that is NaN there."""
_PRODUCTS = primitives("mul", "dot_general")
_STRICT = (
    _CURVED
    | _PRODUCTS
    | primitives("add", "sub", "div", "neg", "abs", "broadcast_in_dim", "reshape", "squeeze", "transpose", "copy")
    | primitives("convert_element_type", "reduce_sum", "slice", "concatenate", "log", "sqrt", "rsqrt", "log1p")
)
"""What is NaN wherever an operand is."""
_MOST = 64


def missing(audited: Audited) -> Iterator[Finding]:
    """LOX607: a jnp.where by isnan leaves out what is computed from NaN, of which the derivative is taken."""
    ways: list[Asked | Taken] = [Asked(audited)] if is_asked(audited) else []
    if audited.differentiates:
        ways.append(Taken(audited))
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
            for place in _before(case, after):
                if _has_derivative_of_nan(place, after, way):
                    yield place, data
                    return


def _made_of(data: Node) -> set[Node]:
    """What is NaN where data is: what is computed from it, and what it is the square or another such function of."""
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


def _before(node: Node, among: set[Node]) -> Iterator[Place]:
    """The operations that a value comes out of, the last ones first, as far as their results are among these."""
    seen, left = {node}, [node]
    while left and len(seen) < _MOST:
        node = left.pop(0)
        if node not in among:
            continue
        if node.place is not None:
            yield node.place
        for source, smooth in node.sources:
            if smooth and source not in seen:
                seen.add(source)
                left.append(source)


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
