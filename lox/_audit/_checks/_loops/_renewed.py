"""Carries that a loop leaves as they were, though its body computes anew what they began as."""

from __future__ import annotations

from collections.abc import Iterator

from lox._audit._attained import plain, resolved
from lox._audit._audited import Audited
from lox._audit._bodies import Body, Carried, bodies
from lox._audit._checks._loops._carried import SAME
from lox._audit._dependence import Node, Place
from lox._audit._findings import Finding
from lox._audit._rules import primitives
from lox._audit._terms import text_of

_LEAST = 2
"""How many operations make a value, at least: values of fewer are alike by chance."""

_MOST = 300
"""How many pairs of values are compared, at most."""
_COMPARES = primitives("sub", "div", "lt", "le", "gt", "ge", "eq", "ne", "max", "min")
"""In which a value meets what it began as on purpose."""


def renewed(audited: Audited) -> Iterator[Finding]:
    """LOX208: an iteration computes a value as it was computed before the loop, and carries on the first one."""
    for body in audited.once(bodies):
        around = _around(audited, body) if body.kept and body.changing else {}
        leaves = {resolved(each.new): around[each.outside] for each in body.changing if each.outside in around}
        leaves |= {resolved(node): around[outside] for outside, node in _begun(body) if outside in around}
        comparison = _Comparison(leaves)
        for kept in body.kept if leaves else ():
            began = resolved(around[kept.outside]) if kept.outside in around else None
            if not kept.value.name or not kept.value.shape or began is None or began.place is None:
                continue
            made = _made(body, began.place, began)
            again = next((each for each in made if comparison.is_renewed(each, began)), None)
            if again is not None and not _meet(body, kept, again):
                yield SAME.at(
                    body.location,
                    f"An iteration computes {kept.name} from what is carried as it was computed before the loop, and "
                    f"the loop carries {kept.name} on as it was: all iterations have that of the first.",
                    severity="warning",
                )


def _around(audited: Audited, body: Body) -> dict[object, Node]:
    """The values that a loop gets, as they are met in the program."""
    place = next((each for each in audited.dependence.places if each.step is body.loop.step), None)
    return {} if place is None else dict(zip(place.step.inputs, place.inputs, strict=True))


def _begun(body: Body) -> Iterator[tuple[object, Node]]:
    """Each value that an iteration gets, after the value outside: a carried one is that before the loop."""
    inside = dict(zip(body.loop.body.inputs, body.graph.inputs, strict=True))
    for outside, value in body.loop.consts:
        yield outside, inside[value]
    for outside, value, _ in body.loop.carry:
        yield outside, inside[value]


def _made(body: Body, by: Place, began: Node) -> Iterator[Node]:
    """The values of a body that come out of the same operation as another one."""
    index = by.outputs.index(began)
    for place in body.graph.places:
        if place.step.equation.primitive is by.step.equation.primitive:
            yield place.outputs[index]


class _Comparison:
    """Compares values of a body with those of the program around it.

    Args:
        leaves: Values of the body, and what they stand for.
    """

    def __init__(self, leaves: dict[Node, Node]) -> None:
        self._leaves = leaves
        self._same: dict[tuple[Node, Node], bool] = {}

    def is_renewed(self, again: Node, began: Node) -> bool:
        """Say whether a value is computed like another one, by some operations, from what changes."""
        self._same = {}
        return self._is_same(again, began, whole=True) and len(self._same) >= _LEAST

    def _is_same(self, one: Node, other: Node, whole: bool = False) -> bool:
        one, other = resolved(one), resolved(other)
        if one in self._leaves and not whole:
            return resolved(self._leaves[one]) is other
        if one.value.number is not None or other.value.number is not None:
            return one.value.number == other.value.number
        if (one, other) not in self._same and len(self._same) < _MOST:
            self._same[one, other] = False
            self._same[one, other] = self._is_made_alike(one.place, other.place)
        return self._same.get((one, other), False)

    def _is_made_alike(self, one: Place | None, other: Place | None) -> bool:
        if one is None or other is None or len(one.inputs) != len(other.inputs):
            return False
        first, second = one.step.equation, other.step.equation
        if first.primitive is not second.primitive or _params(first) != _params(second):
            return False
        return all(map(self._is_same, one.inputs, other.inputs))


def _params(equation: object) -> dict[str, object]:
    params = getattr(equation, "params", {})
    return {name: text_of(value, _MOST) if hasattr(value, "eqns") else value for name, value in params.items()}


def _meet(body: Body, kept: Carried, again: Node) -> bool:
    """Say whether a value is compared with what it was at first."""
    pair = {plain(again), plain(kept.inside)}
    return any(
        pair <= {plain(node) for node in place.inputs}
        for place in body.graph.places
        if place.step.equation.primitive in _COMPARES
    )


CHECKS = (renewed,)
