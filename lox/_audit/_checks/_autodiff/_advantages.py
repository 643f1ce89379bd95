"""Advantages in a policy gradient that are differentiated: what log probabilities are multiplied by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Set
from typing import Any

from lox._audit._attained import is_constant, is_softmax, plain, resolved
from lox._audit._audited import Audited
from lox._audit._checks._autodiff._rules import equations_in
from lox._audit._checks._autodiff._way import Way, is_asked, is_square, text_of
from lox._audit._dependence import Node, Place, upstream
from lox._audit._findings import Finding, Held, Kind
from lox._audit._rules import primitives
from lox._audit._terms import Term, terms

ADVANTAGE = Kind(
    "LOX611",
    "warning",
    "A policy gradient is differentiated by its advantages",
    "Take the advantage as a constant: -(log_probability * jax.lax.stop_gradient(advantage)).mean(), and train the "
    "values by a loss of their own.",
)

_SUMS = primitives("reduce_sum")
_CHANCES = primitives("exp", "logistic", "tanh")
"""What makes probabilities, and no values."""
_LIKELY = primitives(
    *("neg", "add", "sub", "mul", "div", "exp", "clamp", "max", "min", "squeeze", "reshape", "broadcast_in_dim"),
    *("gather", "slice", "dynamic_slice", "reduce_sum", "select_n", "convert_element_type", "copy", "abs"),
)
"""What may be between a log probability and a product with it."""
_EXPONENTS = primitives("exp", "logistic")
_NEAR = 60
"""How many operations are looked at for a log probability."""


def advantages(audited: Audited) -> Iterator[Finding | Held]:
    """LOX611: what a log probability is multiplied by depends on a value that is differentiated."""
    if not is_asked(audited):
        return
    way = audited.once(Way)
    for place in way.of("mul"):
        for chance, factor in (place.inputs, place.inputs[::-1]):
            if chance in way.on and factor in way.on and (value := _baseline(chance, factor, way)):
                yield ADVANTAGE.at(
                    place.location,
                    f"A log probability is multiplied by an advantage with {text_of(value)} in it, which depends on "
                    "the parameters: the derivative makes values fit the policy loss.",
                )
                break


def _baseline(chance: Node, factor: Node, way: Way) -> Node | None:
    """The value in an advantage that a log probability is multiplied by."""
    found = terms(_exponent(factor), way.on, _SUMS)
    data = [term for term in found if _is_fixed(term, way) and term.node.value.shape]
    values = [term.node for term in found if term.node in way.on]
    made = {node.place.step.equation.primitive for node in values if node.place is not None}
    if not data or not values or made & _CHANCES:
        return None
    scores = logits_of(chance, way)
    if not scores:
        return None
    if not scores.isdisjoint(upstream([factor])) or not set(values).isdisjoint(upstream([chance])):
        return None
    return values[0]


def _is_fixed(term: Term, way: Way) -> bool:
    """Say whether a term is an array of data, or of what is kept out of the derivative."""
    return way.is_data(term) or (term.node not in way.on and not is_constant(term.node) and term.node.literal is None)


def _exponent(factor: Node) -> Node:
    """The exponent of a weight that is an exponential, which may be clipped."""
    inside = plain(factor)
    while inside.place is not None and inside.place.step.equation.primitive in primitives("min", "clamp"):
        arrays = [each for each in inside.place.inputs if not is_constant(each)]
        if len(arrays) != 1:
            return factor
        inside = plain(arrays[0])
    is_power = inside.place is not None and inside.place.step.equation.primitive in primitives("exp")
    return inside.place.inputs[0] if inside.place is not None and is_power else factor


def logits_of(node: Node, way: Way) -> set[Node]:
    """The logits, or the means, of the distributions of which a value is a log probability or a ratio of them."""
    found: set[Node] = set()
    met: set[Node] = set()
    sigmoids: Counter[Node] = Counter()
    for place in leading(node, way, _LIKELY):
        met.update(place.outputs)
        primitive, inputs = place.step.equation.primitive, place.inputs
        if primitive in primitives("log"):
            found |= probable(inputs[0], way)
        elif primitive in primitives("custom_jvp_call") and _is_softplus(place):
            sigmoids.update({_unsigned(each) for each in inputs if each in way.on})
        elif is_square(place):
            found |= _means(inputs[0], way)
    normalized = {node for place in leading(node, way, _LIKELY) for node in _normalized(place, way)}
    return found | normalized & met | {node for node, count in sigmoids.items() if count > 1}


def leading(node: Node, way: Way, through: Set[Any]) -> Iterator[Place]:
    """The operations that a value comes out of, up to those that are none of some primitives, these included."""
    left = [node]
    seen: set[Node] = set()
    while left and len(seen) < _NEAR:
        here = resolved(left.pop())
        if here in seen or here not in way.on:
            continue
        seen.add(here)
        if here.place is None:
            left += [source for source, smooth in here.sources if smooth]
            continue
        yield here.place
        is_product = here.place.step.equation.primitive in primitives("mul") and is_square(here.place)
        if here.place.step.equation.primitive in through and not is_product:
            left += here.place.inputs


def probable(node: Node, way: Way) -> set[Node]:
    """The logits of what may be a probability: of a quotient of exponentials, or of a sigmoid."""
    found: set[Node] = set()
    for place in leading(node, way, _LIKELY - _EXPONENTS - primitives("reduce_sum")):
        primitive = place.step.equation.primitive
        if primitive in primitives("logistic"):
            found.add(plain(place.inputs[0]))
        elif is_softmax(place):
            found |= logits_within(plain(place.inputs[0]).place)
    return found


def _normalized(place: Place, way: Way) -> set[Node]:
    """The logits of a logarithm of a sum of exponentials, which is taken from them in a log probability."""
    if place.step.equation.primitive not in primitives("log"):
        return set()
    before = leading(place.inputs[0], way, primitives("abs", "reduce_sum", "broadcast_in_dim", "reshape", "squeeze"))
    return set().union(*map(logits_within, before))


def logits_within(place: Place | None) -> set[Node]:
    """What an exponential is of, before the largest is taken off."""
    if place is None or place.step.equation.primitive not in primitives("exp"):
        return set()
    shifted = plain(place.inputs[0])
    if shifted.place is not None and shifted.place.step.equation.primitive in primitives("sub"):
        shifted = plain(shifted.place.inputs[0])
    return {shifted}


def _unsigned(node: Node) -> Node:
    node = plain(node)
    while node.place is not None and node.place.step.equation.primitive in primitives("neg"):
        node = plain(node.place.inputs[0])
    return node


def _is_softplus(place: Place) -> bool:
    """Whether an operation is the logarithm of a sigmoid, but for signs."""
    jaxpr = place.step.equation.params["call_jaxpr"]
    return any(each.primitive in primitives("log1p") for each in equations_in(jaxpr))


def _means(error: Node, way: Way) -> set[Node]:
    """What is taken from data."""
    found = terms(error, way.on)
    if not any(way.is_data(term) for term in found):
        return set()
    return {term.node for term in found if term.node in way.on}


KINDS = (ADVANTAGE,)
CHECKS = (advantages,)
