"""Carries that a loop leaves as they were, though its body computes anew what they began as."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from lox._audit._alike import Computations, of_nodes
from lox._audit._attained import plain, resolved
from lox._audit._audited import Audited
from lox._audit._bodies import Body, Carried, bodies
from lox._audit._checks._loops._carried import SAME
from lox._audit._dependence import Node, Place
from lox._audit._findings import Finding
from lox._audit._rules import primitives

_COMPARES = primitives("sub", "div", "lt", "le", "gt", "ge", "eq", "ne", "max", "min")
"""In which a value meets what it began as on purpose."""


def renewed(audited: Audited) -> Iterator[Finding]:
    """LOX208: an iteration computes a value as it was computed before the loop, and carries on the first one."""
    for body in audited.once(bodies):
        around = _around(audited, body) if body.kept and body.changing else {}
        leaves = {resolved(each.new): around[each.outside] for each in body.changing if each.outside in around}
        leaves |= {resolved(node): around[outside] for outside, node in _begun(body) if outside in around}
        computed = of_nodes(leaves)
        for kept in body.kept if leaves else ():
            began = resolved(around[kept.outside]) if kept.outside in around else None
            if not kept.value.name or not kept.value.shape or began is None or began.place is None:
                continue
            made = _made(body, began.place, began)
            again = next((each for each in made if _is_renewed(computed, leaves, each, began)), None)
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


def _is_renewed(computed: Computations[Node], leaves: Mapping[Node, Node], again: Node, began: Node) -> bool:
    """Say whether a value is computed like another one, by more than one operation, from what stands for its leaves."""
    again = resolved(again)
    made = [] if again.place is None or again in leaves else [resolved(node) for node in again.place.inputs]
    is_computed = any(node.place is not None and node not in leaves and node.value.number is None for node in made)
    return is_computed and computed[again] == computed[began]


def _meet(body: Body, kept: Carried, again: Node) -> bool:
    """Say whether a value is compared with what it was at first."""
    pair = {plain(again), plain(kept.inside)}
    return any(
        pair <= {plain(node) for node in place.inputs}
        for place in body.graph.places
        if place.step.equation.primitive in _COMPARES
    )


CHECKS = (renewed,)
