"""The loss of variational inference: with which sign the spread of what is drawn is in it."""

from __future__ import annotations

from collections.abc import Iterator

from lox._audit._attained import is_constant, plain, resolved
from lox._audit._audited import Audited
from lox._audit._checks._autodiff._paths import loss_of
from lox._audit._checks._autodiff._way import Way, is_asked, is_square
from lox._audit._dependence import Node, Place, downstream
from lox._audit._findings import Finding, Held, Kind
from lox._audit._rules import primitives
from lox._audit._terms import Term, terms

SPREAD = Kind(
    "LOX620",
    "warning",
    "The loss of variational inference makes the spread small",
    "Subtract the entropy from what is minimized, or add the divergence: loss = error - log_scale.sum(), with "
    "0.5 * (exp(2 * log_scale) + mean**2 - 1 - 2 * log_scale).sum() for the divergence from a standard normal.",
    "Losses of variational inference make the entropy large.",
    "The sign of the logarithm of the scale of what is drawn was compared with that of the squared errors.",
)

_SUMS = primitives("reduce_sum")
_EXP = primitives("exp")
_DEEP = 6


def spreads(audited: Audited) -> Iterator[Finding | Held]:
    """LOX620: the logarithm of the scale of a sample has the sign of the squared errors that depend on the sample."""
    if not is_asked(audited) or not audited.has("erf_inv"):
        return
    way = audited.once(Way)
    samples = [(place, scale) for place in way.of("mul") if (scale := _log_scale(place, way)) is not None]
    parts = (
        [each for loss in loss_of(audited, audited.dependence) for each in terms(loss, way.on, _SUMS)]
        if samples
        else []
    )
    for place, log_scale in samples:
        of_sample = downstream(place.outputs)
        signs = {each.sign for each in parts if _is_error(each, of_sample, place)}
        own = {each.node: each.sign for each in terms(log_scale, way.on)}
        found = [each for each in parts if each.node in own and each.node not in of_sample]
        entropy = {each.sign * own[each.node] for each in found}
        if len(signs) != 1 or len(entropy) != 1:
            continue
        if entropy != signs:
            yield SPREAD.fine(place.location)
        else:
            yield SPREAD.at(
                place.location,
                "The logarithm of the scale of what is drawn here is in the loss with the sign of the squared errors: "
                "as the loss gets less, so does the scale, and nothing keeps it from zero.",
            )


def _log_scale(place: Place, way: Way) -> Node | None:
    """The logarithm of what normal numbers are multiplied by, without the number that it is multiplied by."""
    for scale, noise in (place.inputs, place.inputs[::-1]):
        made = plain(scale).place
        if made is None or made.step.equation.primitive not in _EXP or scale not in way.on or not _is_normal(noise):
            continue
        node = plain(made.inputs[0])
        product = node.place
        if product is not None and product.step.equation.primitive in primitives("mul", "div"):
            numbers = [each for each in product.inputs if is_constant(each)]
            others = [each for each in product.inputs if each not in numbers]
            if len(numbers) == 1 and numbers[0].value.fact.range.low > 0:
                node = plain(others[0])
        return node if node in way.on else None
    return None


def _is_normal(node: Node) -> bool:
    for _ in range(_DEEP):
        made = plain(node).place
        if made is None:
            return False
        if made.step.equation.primitive in primitives("erf_inv"):
            return True
        others = [each for each in made.inputs if not is_constant(each)]
        if made.step.equation.primitive not in primitives("mul") or len(others) != 1:
            return False
        (node,) = others
    return False


def _is_error(term: Term, of_sample: set[Node], place: Place) -> bool:
    """Say whether a term is a square that depends on a sample, and not on its distance from its own mean."""
    made = term.node.place
    if made is None or term.node not in of_sample or not is_square(made):
        return False
    base = plain(made.inputs[0]).place
    if base is None or base.step.equation.primitive not in primitives("sub", "div", "mul"):
        return True
    over, under = base.inputs
    if base.step.equation.primitive in primitives("sub"):
        sample = plain(over).place
        is_own = sample is not None and any(resolved(plain(each)) in place.outputs for each in sample.inputs)
        return not is_own or is_constant(under)
    return all(each in of_sample or is_constant(each) for each in base.inputs)


KINDS = (SPREAD,)
CHECKS = (spreads,)
