"""Returns of several steps, whose last value is discounted as that of one."""

from __future__ import annotations

from collections.abc import Iterator

from lox._audit._attained import plain
from lox._audit._audited import Audited
from lox._audit._bodies import after, made_by
from lox._audit._dependence import Node, Place, upstream
from lox._audit._findings import Finding, Held, Kind
from lox._audit._location import transformations
from lox._audit._rules import primitives

ONCE = Kind(
    "LOX224",
    "warning",
    "A value after several steps is discounted once",
    "Discount it by as many steps as the rewards before it: rewards + discount**n * value.",
    "What follows n discounted rewards is discounted n times.",
    "Sums of rewards that are weighted by powers of a number were compared with what is added to them.",
)


def discounts(audited: Audited) -> Iterator[Finding | Held]:
    """LOX224: to a sum over n powers of a discount, a value is added that is multiplied by its first power."""
    if not audited.has("pow") or not audited.has("iota"):
        return
    for place in audited.dependence.places:
        is_sum = place.step.equation.primitive in primitives("add")
        if not is_sum or "transpose" in transformations(place.step.equation):
            continue
        for one, other in (place.inputs, place.inputs[::-1]):
            power = _power(one)
            if power is None or not (factors := list(_factors(other))):
                continue
            base, weights = plain(power.inputs[0]), after(power.outputs)
            first = [each for each in factors if _is_same(each, base)]
            rest = [each for each in factors if each not in first]
            if len(first) == 1 and rest and not any(_is_discounted(each, base, weights) for each in rest):
                count = power.outputs[0].value.shape[0]
                yield ONCE.at(
                    place.location,
                    f"To {count} rewards, discounted step by step, this adds a value that is discounted once: it "
                    f"comes after {count} steps.",
                )
            elif not first:
                yield ONCE.fine(place.location)


def _power(node: Node) -> Place | None:
    """The powers of a discount by which what is summed over time is weighted."""
    total = made_by(node, "reduce_sum")
    if total is None or len(total.step.equation.params["axes"]) != 1:
        return None
    length = total.inputs[0].value.shape[total.step.equation.params["axes"][0]]
    for factor in _factors(total.inputs[0]):
        power = made_by(factor, "pow")
        if power is not None and power.outputs[0].value.shape == (length,) and length > 1:
            if made_by(power.inputs[1], "iota") is not None and not plain(power.inputs[0]).value.shape:
                return power
    return None


def _factors(node: Node) -> Iterator[Node]:
    """The factors of a product; of what is none, itself."""
    place = made_by(node, "mul")
    for each in place.inputs if place is not None else ():
        yield from _factors(each)
    if place is None:
        yield plain(node)


def _is_same(one: Node, base: Node) -> bool:
    numbers = one.value.number, base.value.number
    if numbers[0] is not None and numbers[1] is not None:
        return 0 < numbers[1] < 1 and abs(numbers[0] - numbers[1]) < 1e-6
    return one is base


def _is_discounted(node: Node, base: Node, weights: set[Node]) -> bool:
    """Say whether a value may be discounted already."""
    sources = upstream([node], smoothly=False)
    return not sources.isdisjoint(weights) or any(_is_same(each, base) for each in sources)


KINDS = (ONCE,)
CHECKS = (discounts,)
