"""The loss of a policy gradient: with which sign its parts are there."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from lox._audit._attained import is_constant, is_softmax, plain, resolved
from lox._audit._audited import Audited
from lox._audit._checks._autodiff._advantages import logits_of, probable
from lox._audit._checks._autodiff._paths import loss_of
from lox._audit._checks._autodiff._way import Way, is_asked
from lox._audit._dependence import Node, Place
from lox._audit._findings import Finding, Held, Kind
from lox._audit._rules import primitives
from lox._audit._terms import terms

ENTROPY = Kind(
    "LOX616",
    "warning",
    "The loss of a policy gradient makes the entropy small",
    "Subtract the entropy from what is minimized: loss = policy_loss - 0.01 * entropy, with entropy = -(p * "
    "log_p).sum(axis=-1).mean().",
    "Losses of policy gradients make the entropy large.",
    "The sign was followed with which p * log(p) of the actions goes into the loss.",
)

POLICY = Kind(
    "LOX617",
    "warning",
    "The loss of a policy gradient makes good actions less likely",
    "Negate it: loss = -(log_probability * advantage).mean(), which is minimized.",
    "Losses of policy gradients make actions with a high return more likely.",
    "The sign was followed with which log probabilities times advantages, returns or rewards go into the loss.",
)

_GOOD = re.compile(r"(adv|advantages?|gae|returns?|rewards?)(_|$)", re.IGNORECASE)
_PASSED = primitives("stop_gradient", "div", "sub", "add")
_EXTREMES = primitives("min", "max")


def policies(audited: Audited) -> Iterator[Finding | Held]:
    """LOX617: a loss adds log probabilities times what is called an advantage, a return or a reward."""
    if not is_asked(audited) or "loss" not in audited.captured.name.lower():
        return
    way = audited.once(Way)
    weighted = {place.outputs[0]: (place, sign) for place in way.of("mul") if (sign := _sign_of_weight(place, way))}
    if not weighted:
        return
    scaled = Counter(resolved(plain(each)) for place in way.of("mul") for each in place.inputs)
    inside = {resolved(plain(chance)): found for found in weighted.values() for chance in found[0].inputs}
    inside = {chance: found for chance, found in inside.items() if scaled[chance] == 1}
    for loss in loss_of(audited, audited.dependence):
        for term in terms(loss, way.on, primitives("reduce_sum")):
            made = term.node.place
            extreme = made is not None and made.step.equation.primitive in _EXTREMES
            operands = [resolved(plain(each)) for each in made.inputs] if made is not None and extreme else []
            known = [weighted[each] for each in operands if each in weighted]
            place, sign = known[0] if known else inside.get(term.node, (None, 0))
            if place is None or len({sign for _, sign in known}) > 1:
                continue
            if sign * term.sign < 0:
                yield POLICY.fine(place.location)
            else:
                yield POLICY.at(
                    place.location,
                    "A log probability is multiplied here by what is called an advantage, a return or a reward, and "
                    "is added to the loss: as the loss gets less, good actions become less likely.",
                )


def _sign_of_weight(place: Place, way: Way) -> int:
    """The sign with which a log probability is multiplied by what is better the more it is; 0 for another product."""
    for chance, factor in (place.inputs, place.inputs[::-1]):
        if chance in way.on and factor not in way.on and factor.value.shape and logits_of(chance, way):
            return _sign_of_good(factor) * _sign(chance)
    return 0


def _sign(node: Node) -> int:
    """-1 if a value is the negative of another one."""
    made = plain(node).place
    return -1 if made is not None and made.step.equation.primitive in primitives("neg") else 1


def _sign_of_good(factor: Node) -> int:
    """The sign of what is called an advantage, a return or a reward in a factor; 0 if there is none."""
    sign = 1
    while True:
        factor = plain(factor)
        if any(map(_GOOD.search, factor.value.name.split("/"))):
            return sign
        made = factor.place
        if made is None:
            return 0
        if made.step.equation.primitive in primitives("neg"):
            sign = -sign
        elif made.step.equation.primitive not in _PASSED:
            return 0
        factor = made.inputs[0]


def entropies(audited: Audited) -> Iterator[Finding | Held]:
    """LOX616: -p log(p) of the distribution whose log probabilities are weighted by advantages is added to the loss."""
    if not is_asked(audited):
        return
    way = audited.once(Way)
    found = {node: logits for place in way.of("mul") if (logits := _of_entropy(place, way)) for node in place.outputs}
    if not found:
        return
    chosen = set[Node]().union(*(_weighted(place, way) for place in way.of("mul")))
    for loss in loss_of(audited, audited.dependence):
        for term in terms(loss, way.on, primitives("reduce_sum")):
            place = term.node.place
            if place is None or term.node not in found or found[term.node].isdisjoint(chosen):
                continue
            if term.sign > 0:
                yield ENTROPY.fine(place.location)
            else:
                yield ENTROPY.at(
                    place.location,
                    "The entropy made here is added to a loss in which log probabilities of the same logits are "
                    "weighted: as the loss gets less, so does the entropy, and the policy stops to explore.",
                )


def _of_entropy(place: Place, way: Way) -> set[Node]:
    """The logits of a probability that is multiplied by its logarithm."""
    for chance, logarithm in (place.inputs, place.inputs[::-1]):
        made = plain(chance).place
        if made is None or not {chance, logarithm} <= way.on:
            continue
        if made.step.equation.primitive in primitives("exp"):
            of_chance = logits_of(made.inputs[0], way)
        else:
            of_chance = probable(chance, way) if is_softmax(made) else set()
        shared = of_chance & logits_of(logarithm, way)
        if shared and not _is_chance(logarithm):
            return shared
    return set()


def _is_chance(node: Node) -> bool:
    made = plain(node).place
    return made is not None and (made.step.equation.primitive in primitives("exp") or is_softmax(made))


def _weighted(place: Place, way: Way) -> set[Node]:
    """The logits of a log probability, or a ratio of probabilities, that is multiplied by numbers of the data."""
    for chance, factor in (place.inputs, place.inputs[::-1]):
        if chance in way.on and factor not in way.on and factor.value.shape and not is_constant(factor):
            return logits_of(chance, way)
    return set()


KINDS = (ENTROPY, POLICY)
CHECKS = (entropies, policies)
