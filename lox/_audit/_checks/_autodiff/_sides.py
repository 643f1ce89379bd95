"""Losses that compare two outputs of one network, and change both."""

from __future__ import annotations

from collections.abc import Iterator

from lox._audit._attained import is_constant, is_softmax, plain, resolved
from lox._audit._audited import Audited
from lox._audit._checks._autodiff._advantages import leading, logits_of, logits_within
from lox._audit._checks._autodiff._paths import loss_of
from lox._audit._checks._autodiff._stopped import TARGET, is_stopped, unstopped
from lox._audit._checks._autodiff._way import Way, is_asked, is_square, text_of
from lox._audit._dependence import Node, Place, upstream
from lox._audit._findings import Finding, Held, Kind
from lox._audit._rules import primitives
from lox._audit._terms import terms

COLLAPSE = Kind(
    "LOX619",
    "warning",
    "A loss only makes outputs of one network alike, and moves both sides",
    "Keep one side out of the derivative: similarity(predicted, jax.lax.stop_gradient(other)), or compute it with a "
    "slow copy of the parameters. Otherwise a network whose output is always the same has the least loss.",
)
MULTIPLIER = Kind(
    "LOX621",
    "warning",
    "The loss of a multiplier moves what the multiplier weighs",
    "Take what is weighed as a constant there: -(alpha * jax.lax.stop_gradient(log_probability + target)).mean(), as "
    "the multiplier is one in the other part of the loss.",
)

_SUMS = primitives("reduce_sum")
_MIXING = primitives(
    *("mul", "div", "add", "dot_general", "reduce_sum", "gather", "slice", "dynamic_slice", "squeeze", "reshape"),
    *("broadcast_in_dim", "transpose", "convert_element_type", "copy", "scatter_add", "select_n", "concatenate"),
)
"""Operations that combine probabilities linearly, if their other operands are data."""


def distributions(audited: Audited) -> Iterator[Finding | Held]:
    """LOX610: in a cross-entropy, the probabilities of the target come out of the network that is trained."""
    if not is_asked(audited):
        return
    way = audited.once(Way)
    for place in way.of("mul", "dot_general"):
        for chance, factor in (place.inputs[:2], place.inputs[1::-1]):
            if chance in way.on and factor in way.on and _is_moved_target(chance, factor, way):
                yield TARGET.at(
                    place.location,
                    f"A log probability is multiplied here by {text_of(resolved(factor))}, made of probabilities that "
                    "the same parameters give for other data: the derivative moves the target towards the prediction.",
                )
                break


def _is_moved_target(chance: Node, factor: Node, way: Way) -> bool:
    found, is_mixed = _distributed(factor, way)
    predicted = logits_of(chance, way)
    if not found or not predicted or not is_mixed or not found.isdisjoint(predicted):
        return False
    parameters = [way.by & upstream(nodes, smoothly=False) for nodes in (found, predicted)]
    is_one = bool(parameters[0]) and (parameters[0] <= parameters[1] or parameters[1] <= parameters[0])
    return is_one and not data_of(found, way) <= data_of(predicted, way)


def _distributed(factor: Node, way: Way) -> tuple[set[Node], bool]:
    """The logits of the probabilities that a value is a linear combination of, and whether that is by data."""
    found, is_mixed = set[Node](), False
    for place in leading(factor, way, _MIXING - primitives("div")):
        primitive = place.step.equation.primitive
        if is_softmax(place):
            found |= logits_within(plain(place.inputs[0]).place)
        elif primitive in primitives("exp") and (inside := logits_of(place.inputs[0], way)):
            found |= inside
        elif primitive not in _MIXING:
            return set(), False
        elif primitive in primitives("mul", "dot_general", "scatter_add"):
            is_mixed |= any(each not in way.touched and not is_constant(each) for each in place.inputs)
    return found, is_mixed


def data_of(nodes: set[Node], way: Way) -> set[Node]:
    """The arrays of data that meet parameters, or what depends on them, on the way to some values."""
    before = upstream(nodes, smoothly=False)
    sources = (resolved(source) for each in before & way.touched for source, _ in each.sources)
    return {plain(each) for each in sources if each not in way.touched and not _is_known(each)}


def _is_known(node: Node) -> bool:
    return node.literal is not None or is_constant(node) or node.value.constant is not None


def alike_alone(audited: Audited) -> Iterator[Finding | Held]:
    """LOX619: all terms of a loss are similarities of a prediction and an output of the network that it is made with.

    Losses with any other term that has data are left alone: such a term may keep outputs apart.
    """
    if not is_asked(audited):
        return
    way = audited.once(Way)
    found = [term.node for node in loss_of(audited, audited.dependence)[:1] for term in terms(node, way.on, _SUMS)]
    compared = [node for node in found if node in way.on and data_of({node}, way)]
    pairs = [_sides(node, way) for node in compared]
    if not pairs or any(pair is None or not _is_predicted(*pair, way) for pair in pairs):
        return
    place = resolved(audited.dependence.outputs[0]).place
    if place is not None and (pair := pairs[0]) is not None:
        yield COLLAPSE.at(
            place.location,
            f"The loss computed here compares {text_of(pair[0])} with {text_of(pair[1])}, which depend on the same "
            "parameters, and nothing else: where both are always the same, no loss is less.",
        )


def _sides(node: Node, way: Way) -> tuple[Node, Node] | None:
    """The two values that a term of a loss compares: by a product, or by the size of their difference."""
    place = node.place
    if place is None:
        return None
    if is_square(place):
        error = terms(place.inputs[0], way.on)
        if len(error) != 2 or {term.sign for term in error} != {1, -1} or any(term.scaled for term in error):
            return None
        one, other = (term.node for term in error)
    elif place.step.equation.primitive in primitives("mul"):
        one, other = place.inputs
    elif place.step.equation.primitive in primitives("dot_general"):
        (over, _), (batch, _) = place.step.equation.params["dimension_numbers"]
        if any(len(each.value.shape) != len(over) + len(batch) for each in place.inputs[:2]):
            return None  # All pairs, so that some may be pushed apart.
        one, other = place.inputs[:2]
    else:
        return None
    return (one, other) if {one, other} <= way.on and one.value.shape == other.value.shape != () else None


def _is_predicted(one: Node, other: Node, way: Way) -> bool:
    """Say whether one value has the parameters of the other and more, and is of other data."""
    before = [upstream([each]) & way.by for each in (one, other)]
    data = [data_of({each}, way) for each in (one, other)]
    is_more = bool(before[0] and before[1]) and (before[0] < before[1] or before[1] < before[0])
    return is_more and not data[0] <= data[1] and not data[1] <= data[0]


def multipliers(audited: Audited) -> Iterator[Finding | Held]:
    """LOX621: a multiplier weighs a value once as a constant, and once is trained by it while that moves too."""
    if not is_asked(audited):
        return
    way = audited.once(Way)
    products = [pair for place in way.of("mul") for pair in _weighed(place, way)]
    held = [(way.by & upstream([factor]), _terms(value, way)) for _, factor, value, is_held in products if is_held]
    for place, factor, value, is_held in products:
        own = way.by & upstream([factor])
        others = set().union(*(each for by, each in held if by == own and not is_held))
        if any(own.isdisjoint(upstream([node])) for node in others & _terms(value, way)):
            yield MULTIPLIER.at(
                place.location,
                f"The loss of {text_of(factor)} has a derivative by {text_of(resolved(value))}, which another part of "
                "the loss weighs by the same multiplier as a constant.",
            )


def _weighed(place: Place, way: Way) -> Iterator[tuple[Place, Node, Node, bool]]:
    """The multiplier of a product, what it weighs, and whether it is kept out of the derivative."""
    for factor, value in (place.inputs, place.inputs[::-1]):
        scalar = plain(factor)
        inside = unstopped(scalar)
        if value in way.on and inside in way.on and len(inside.value.shape) < 2 and not data_of({inside}, way):
            yield place, inside, value, is_stopped(scalar)


def _terms(value: Node, way: Way) -> set[Node]:
    return {term.node for term in terms(value, way.on, _SUMS) if term.node in way.on}


KINDS = (COLLAPSE, MULTIPLIER)
CHECKS = (distributions, alike_alone, multipliers)
