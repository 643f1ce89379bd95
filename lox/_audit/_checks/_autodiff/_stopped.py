"""What is to be a constant for the derivative, and is none: a stop_gradient that is missing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from lox._audit._alike import of_nodes
from lox._audit._attained import plain, resolved
from lox._audit._audited import Audited
from lox._audit._checks._autodiff._paths import differentiated, loss_of
from lox._audit._checks._autodiff._way import Way, is_asked, is_square, text_of
from lox._audit._dependence import Node, Place, upstream
from lox._audit._findings import Finding, Held, Kind
from lox._audit._location import NOWHERE
from lox._audit._rules import primitives
from lox._audit._terms import terms

TARGET = Kind(
    "LOX610",
    "warning",
    "A loss moves the target of temporal differences",
    "Take the target as a constant: target = jax.lax.stop_gradient(reward + discount * value(next_observation)), or "
    "compute it with the parameters of a target network. For a residual gradient that is meant so, ignore LOX610.",
)
SAME = Kind(
    "LOX612",
    "warning",
    "Two sides of an operation are the same computation",
    "Give one side other parameters or another input, such as the log probability that was kept when the action was "
    "taken; or keep it out of the derivative: log_probability - jax.lax.stop_gradient(log_probability).",
    "Differences are of what is computed differently.",
    "The operations of both sides of each difference were compared.",
)
MOVED = Kind(
    "LOX613",
    "warning",
    "A target or teacher network among the parameters is trained by the loss",
    "Keep it out of the derivative: jax.lax.stop_gradient(params['target']) in the loss, or an argument of its own.",
)
CODES = Kind(
    "LOX614",
    "warning",
    "Codes and what they stand for are both moved by each of two losses that are to move one of them",
    "Stop the gradient of one side in each: ((stop_gradient(encoded) - code) ** 2).mean() moves the codes, and "
    "0.25 * ((encoded - stop_gradient(code)) ** 2).mean() what is encoded.",
)

_SLICES = primitives("slice", "dynamic_slice", "gather")


def targets(audited: Audited) -> Iterator[Finding | Held]:
    """LOX610: the next value in a squared error of temporal differences depends on what is differentiated by."""
    if not is_asked(audited):
        return
    way = audited.once(Way)
    for place in way.of("square", "integer_pow", "mul", "abs"):
        if is_square(place) and (value := bootstrapped(place.inputs[0], way)):
            yield TARGET.at(
                place.location,
                f"The error squared here has the prediction, and in its target {text_of(value)}, which depends on the "
                "same parameters: the derivative moves the target towards the prediction.",
            )


def bootstrapped(error: Node, way: Way) -> Node | None:
    """The next value in an error of temporal differences: a value less the reward and a discounted next value."""
    found = terms(error, way.on)
    # What is discounted beside the next value, as an entropy is, is of that.
    data = [term for term in found if way.is_data(term) and not term.discounted]
    moving = [term for term in found if term.node in way.on]
    held = [term for term in found if is_stopped(term.node) and term.node in way.touched]
    values = [term for term in (*moving, *held) if not term.discounted and not term.scaled]
    later = [term for term in moving if term.discounted]
    signs = {term.sign for term in later}
    if len(signs) != 1 or not data or {term.sign for term in values} != {-sign for sign in signs}:
        return None
    if {term.sign for term in data} != signs or any(not term.node.value.shape for term in data):
        return None
    before, after = ({term.node for term in each} for each in (values, later))
    if before == after or not _is_of_one_network(before, after, way):
        return None
    if any(_is_earlier(node, value) for node in after for value in before):
        return None
    computed = [term.node for term in later if term.node.place is not None]
    return max(computed or [later[0].node], key=lambda node: (len(node.value.shape), math.prod(node.value.shape)))


def _is_of_one_network(values: set[Node], later: set[Node], way: Way) -> bool:
    """Say whether two values are of one function, by the same parameters, and at different places of the data.

    The later one may have more parameters, as the least of two values does. Or it has none of those, as the value of a
    state has in the target of the value of an action, and is of data that the other is not of.
    """
    before, after = (upstream(nodes, smoothly=False) for nodes in (values, later))
    parameters = [way.by & each for each in (before, after)]
    is_other = parameters[0].isdisjoint(parameters[1])
    if not parameters[0] or not parameters[1] or not (parameters[0] <= parameters[1] or is_other):
        return False
    data = [(way.inputs & each) - way.by for each in (before, after)]
    sliced = [{node for node in each if _is_slice(node)} for each in (before, after)]
    return not data[1] <= data[0] or (not is_other and sliced[0] != sliced[1])


def _is_earlier(one: Node, other: Node) -> bool:
    """Say whether two values are slices of one array, of which the first begins before the second, as in `x[:-1]`."""
    if one.place is None or other.place is None or not _is_slice(one) or not _is_slice(other):
        return False
    starts = [place.step.equation.params.get("start_indices") for place in (one.place, other.place)]
    same = plain(one.place.inputs[0]) is plain(other.place.inputs[0])
    return same and None not in starts and starts[0] < starts[1]


def is_stopped(node: Node) -> bool:
    return node.place is not None and node.place.step.equation.primitive in primitives("stop_gradient")


def _is_slice(node: Node) -> bool:
    return node.place is not None and node.place.step.equation.primitive in _SLICES


def differences(audited: Audited) -> Iterator[Finding | Held]:
    """LOX612: both sides of a difference or of a quotient are the same computation."""
    if not is_asked(audited):
        return
    way = audited.once(Way)
    computed = of_nodes()
    for place in (place for place in way.of("sub", "div") if _may_be_alike(place, way)):
        if computed[place.inputs[0]] == computed[place.inputs[1]]:
            is_quotient = place.step.equation.primitive in primitives("div")
            yield SAME.at(
                place.location,
                f"Both sides of this {'quotient' if is_quotient else 'difference'} are the same computation from the "
                f"same values, {text_of(place.inputs[0])}: it is {'one' if is_quotient else 'zero'}, and its "
                "derivative is zero.",
            )
        else:
            yield SAME.fine(place.location)


def _may_be_alike(place: Place, way: Way) -> bool:
    one, other = map(resolved, place.inputs)
    if one is other or one.place is None or other.place is None or not {one, other} <= way.on:
        return False
    return one.place.step.equation.primitive is other.place.step.equation.primitive


def codes(audited: Audited) -> Iterator[Finding | Held]:
    """LOX614: of two squared differences between the nearest codes and the same values, one moves both."""
    if not is_asked(audited) or not audited.has("argmin", "argmax"):
        return
    way = audited.once(Way)
    pairs: dict[frozenset[Node], list[tuple[Place, bool]]] = {}
    for place in way.of("square", "integer_pow", "mul"):
        error = plain(place.inputs[0]).place
        if error is None or not is_square(place) or error.step.equation.primitive not in primitives("sub"):
            continue
        sides = [unstopped(node) for node in error.inputs]
        if any(_is_nearest(side) for side in sides) and set(sides) <= way.on:
            both = all(node in way.on for node in error.inputs)
            pairs.setdefault(frozenset(sides), []).append((place, both))
    for found in pairs.values():
        wrong = [place for place, both in found if both]
        if wrong and len(found) > 1:
            yield CODES.at(
                wrong[-1].location,
                "Two losses here have the difference of the same values from their nearest codes, and this one moves "
                "the values and the codes.",
            )


def straight_through(audited: Audited) -> Iterator[Finding]:
    """LOX614: the loss of codes is of a straight-through value, whose derivative does not go to the codes."""
    if not is_asked(audited) or not audited.has("stop_gradient"):
        return
    way = audited.once(Way)
    for place in way.of("square", "integer_pow", "mul"):
        error = plain(place.inputs[0]).place
        if error is None or not is_square(place) or error.step.equation.primitive not in primitives("sub"):
            continue
        for value, held in (error.inputs, error.inputs[::-1]):
            encoded = unstopped(held)
            code = _passed_by(value, encoded) if is_stopped(plain(held)) else None
            if code is not None and _never_learns(code, encoded, way):
                yield CODES.at(
                    place.location,
                    "This squared difference has a straight-through value in the place of the code: its derivative "
                    f"moves {text_of(encoded)} away from the codes, and none gets to the codes, which never learn.",
                )


def _passed_by(value: Node, encoded: Node) -> Node | None:
    """The code in `encoded + stop_gradient(code - encoded)` or `encoded - stop_gradient(encoded - code)`."""
    made = plain(value).place
    if made is None or made.step.equation.primitive not in primitives("add", "sub"):
        return None
    is_sum = made.step.equation.primitive in primitives("add")
    for moved, held in (made.inputs, made.inputs[::-1]) if is_sum else (made.inputs,):
        difference = unstopped(held).place
        if plain(moved) is not encoded or not is_stopped(plain(held)) or difference is None:
            continue
        code, less = map(plain, difference.inputs if is_sum else difference.inputs[::-1])
        if difference.step.equation.primitive in primitives("sub") and unstopped(less) is encoded:
            return unstopped(code)
    return None


def _never_learns(code: Node, encoded: Node, way: Way) -> bool:
    """Say whether codes are made of parameters of their own that nothing else in the loss moves."""
    own = (way.by & upstream([code])) - upstream([encoded])
    return encoded in way.on and bool(own) and own.isdisjoint(way.before)


def unstopped(node: Node) -> Node:
    node = plain(node)
    while is_stopped(node) and node.place is not None:
        node = plain(node.place.inputs[0])
    return node


def _is_nearest(node: Node) -> bool:
    """Say whether a value is made of rows whose places are those of the least distances."""
    if node.place is None or node.place.step.equation.primitive not in primitives("gather"):
        return False
    chosen = upstream(node.place.inputs[1:], smoothly=False)
    nearest = primitives("argmin", "argmax")
    return any(each.place is not None and each.place.step.equation.primitive in nearest for each in chosen)


def networks(audited: Audited) -> Iterator[Finding | Held]:
    """LOX613: a target network is differentiated by."""
    if not is_asked(audited):
        return
    smooth = upstream(loss_of(audited, audited.dependence))
    trained = [name for name, node in differentiated(audited, audited.dependence).items() if node in smooth]
    told = set()
    for name in trained:
        root, *parts = name.split("/")
        for place, part in enumerate(parts):
            for twin in _twins(part):
                other = "/".join([root, *parts[:place], twin, *parts[place + 1 :]])
                network = "/".join([root, *parts[: place + 1]])
                if other in trained and network not in told:
                    told.add(network)
                    yield MOVED.at(
                        NOWHERE,
                        f"The loss has a derivative by {network!r}, the slow copy of "
                        f"{'/'.join([root, *parts[:place], twin])!r}: it is trained as well.",
                    )


_COPIES = {
    "target": ("online", "params", "current", "main", "critic", "network"),
    "teacher": ("student",),
}


def _twins(name: str) -> Sequence[str]:
    """The networks that one of this name is a slow copy of."""
    for copy, twins in _COPIES.items():
        if name in (copy, f"{copy}_network", f"{copy}_params", f"{copy}_net"):
            return (*twins, *(f"{twin}{name[len(copy) :]}" for twin in twins))
        if name.startswith(f"{copy}_") or name.endswith(f"_{copy}"):
            twins = (name.removeprefix(f"{copy}_"), name.removesuffix(f"_{copy}"))
            return tuple(twin for twin in twins if twin != name)
    return ()


KINDS = (TARGET, SAME, MOVED, CODES)
CHECKS = (targets, differences, networks, codes, straight_through)
