"""Takes sums apart: the terms of a value, which of them depend on parameters, and how they are scaled."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Set
from typing import Any

from lox._audit._attained import is_constant, plain, resolved
from lox._audit._dependence import Node, Place
from lox._audit._rules import Rules, primitives

_MOST_TERMS, _MOST_OPERATIONS = 64, 500


@dataclasses.dataclass(frozen=True, eq=False)
class Term:
    """A value that is added to others.

    Attributes:
        node: The value.
        sign: 1, or -1 where it is subtracted.
        discounted: Whether it is multiplied by a number a little less than one, by a mask, or by what is called so.
        scaled: Whether it is multiplied or divided by anything else.
    """

    node: Node
    sign: int = 1
    discounted: bool = False
    scaled: bool = False


_parts: Rules[Callable[[Place, Term, Set[Node]], list[Term]]] = Rules()


def terms(node: Node, on: Set[Node], through: Set[Any] = frozenset()) -> list[Term]:
    """The terms of a value that is a sum, each once.

    Args:
        node: The value.
        on: The values that depend on what is differentiated by. The others are not taken apart.
        through: Primitives with one operand that a sum may go through besides.
    """
    found: list[Term] = []
    seen: set[Any] = set()
    left = [Term(node)]
    while left and len(found) < _MOST_TERMS and len(seen) < _MOST_OPERATIONS:
        term = left.pop()
        here = resolved(term.node)
        key = (here, term.sign, term.discounted, term.scaled)
        if key in seen:
            continue
        seen.add(key)
        primitive = here.place.step.equation.primitive if here.place is not None else None
        parts: list[Term] = []
        if here in on and here.place is None:  # What a loop carries, or a branch returns.
            parts = [dataclasses.replace(term, node=source) for source, smooth in here.sources if smooth]
        elif here in on and here.place is not None and primitive in through:
            parts = [dataclasses.replace(term, node=here.place.inputs[0])]
        elif here in on and here.place is not None and (rule := _parts[primitive]) is not None:
            parts = rule(here.place, term, on)
        left += parts
        if not parts:
            found.append(dataclasses.replace(term, node=here))
    return found


@_parts("add", "concatenate", "stack", "pad")
def _together(place: Place, term: Term, on: Set[Node]) -> list[Term]:
    return [dataclasses.replace(term, node=each) for each in place.inputs]


@_parts("sub")
def _difference(place: Place, term: Term, on: Set[Node]) -> list[Term]:
    one, other = place.inputs
    return [dataclasses.replace(term, node=one), dataclasses.replace(term, node=other, sign=-term.sign)]


@_parts("neg")
def _negative(place: Place, term: Term, on: Set[Node]) -> list[Term]:
    return [dataclasses.replace(term, node=place.inputs[0], sign=-term.sign)]


@_parts("broadcast_in_dim", "reshape", "squeeze", "transpose", "convert_element_type", "copy", "expand_dims")
def _same(place: Place, term: Term, on: Set[Node]) -> list[Term]:
    return [dataclasses.replace(term, node=place.inputs[0])]


@_parts("mul")
def _product(place: Place, term: Term, on: Set[Node]) -> list[Term]:
    factors, inside = ([each for each in place.inputs if (each in on) is depends] for depends in (False, True))
    if len(factors) != 1:
        return []
    if is_discount(factors[0]):
        return [dataclasses.replace(term, node=inside[0], discounted=True)]
    sign = -term.sign if factors[0].value.fact.range.high < 0 else term.sign
    return [dataclasses.replace(term, node=inside[0], sign=sign, scaled=True)]


@_parts("div")
def _quotient(place: Place, term: Term, on: Set[Node]) -> list[Term]:
    over, under = place.inputs
    sign = -term.sign if under.value.fact.range.high < 0 else term.sign
    return [dataclasses.replace(term, node=over, sign=sign, scaled=True)] if over in on else []


@_parts("select_n")
def _masked(place: Place, term: Term, on: Set[Node]) -> list[Term]:
    which, *cases = place.inputs
    kept = [each for each in cases if each.value.number != 0]
    return [dataclasses.replace(term, node=each, discounted=term.discounted or len(kept) == 1) for each in kept]


def is_discount(node: Node) -> bool:
    """Whether a factor is a little less than one, a mask of what goes on, or called a discount."""
    node = plain(node)
    if is_constant(node):
        return 0.8 <= node.value.fact.range.low < 1
    if any(name in node.value.called.lower() for name in ("discount", "gamma")):
        return True
    if node.value.aval.dtype == bool:
        return True
    if node.place is None:
        return False
    primitive, inputs = node.place.step.equation.primitive, node.place.inputs
    if primitive in primitives("sub"):
        return inputs[0].value.number == 1
    return primitive in primitives("mul") and any(map(is_discount, inputs))
