"""Moving averages that loops carry and do not go on from."""

from __future__ import annotations

import re
from collections.abc import Iterator

import jax.numpy as jnp

from lox._audit._alike import Computations, of_nodes
from lox._audit._attained import plain
from lox._audit._audited import Audited
from lox._audit._bodies import Body, Carried, bodies, made_by
from lox._audit._checks._loops._carried import UNREAD
from lox._audit._dependence import Node
from lox._audit._findings import Finding

_AVERAGE = re.compile(r"av(?:era)?g|mean|ema|smooth|bar\b|polyak", re.IGNORECASE)


def blended(audited: Audited) -> Iterator[Finding]:
    """LOX209: what is carried is w * new + (1 - w) * old of another value, and no iteration reads what it was."""
    for body in audited.once(bodies):
        computed = of_nodes()
        for each in body.changing:
            if each.inside.value in audited.live or not each.is_of(jnp.floating) or made_by(each.new, "add") is None:
                continue
            old = next((other for other in body.changing if _is_blend(body, computed, each, other)), None)
            place = made_by(each.new, "add")
            if old is not None and place is not None:
                yield UNREAD.at(
                    place.location,
                    f"A loop carries an average, {each.name}, that does not go on from the one before: it is of the "
                    f"new and the old {old.name}, and nothing reads {each.name} of its carry.",
                    severity="warning",
                )


def _is_blend(body: Body, computed: Computations[Node], average: Carried, other: Carried) -> bool:
    """Say whether a value is an average of what another one is and was, by other weights than a half."""
    place = made_by(average.new, "add")
    if other is average or place is None or other.value.aval != average.value.aval:
        return False
    for first, second in (place.inputs, place.inputs[::-1]):
        for weight, new in _scaled(first):
            for rest, old in _scaled(second):
                if plain(old) is other.inside and computed[plain(new)] == computed[plain(other.new)]:
                    if _is_rest(computed, weight, rest) and _is_average(average, weight):
                        return True
    return False


def _scaled(node: Node) -> Iterator[tuple[Node, Node]]:
    """A factor of a product, and the other one."""
    if (place := made_by(node, "mul")) is not None:
        one, other = place.inputs
        yield from ((one, other), (other, one))


def _is_rest(computed: Computations[Node], weight: Node, rest: Node) -> bool:
    """Say whether one weight is one without the other."""
    numbers = weight.value.number, rest.value.number
    if None not in numbers:
        return abs(sum(filter(None, numbers)) - 1) < 1e-6
    for one, other in ((weight, rest), (rest, weight)):
        place = made_by(one, "sub")
        if place is not None and place.inputs[0].value.number == 1:
            return computed[plain(place.inputs[1])] == computed[plain(other)]
    return False


def _is_average(average: Carried, weight: Node) -> bool:
    """Say whether an average over iterations is meant, and no value between two."""
    if weight.value.number is not None:
        return weight.value.number != 0.5 and _AVERAGE.search(average.name) is not None
    return True


CHECKS = (blended,)
