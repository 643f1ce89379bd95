"""What is to be a constant for the derivative, and is none: a stop_gradient that is missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence, Set
from typing import Any

from lox._audit._attained import is_constant, is_softmax, plain, resolved
from lox._audit._audited import Audited
from lox._audit._checks._autodiff._paths import differentiated, loss_of
from lox._audit._checks._autodiff._rules import equations_in
from lox._audit._dependence import Node, Place, downstream, upstream
from lox._audit._findings import Finding, Held, Kind
from lox._audit._location import NOWHERE, is_users, transformations
from lox._audit._rules import primitives
from lox._audit._terms import Computations, Term, terms

TARGET = Kind(
    "LOX610",
    "warning",
    "A loss moves the target of temporal differences",
    "Take the target as a constant: target = jax.lax.stop_gradient(reward + discount * value(next_observation)), or "
    "compute it with the parameters of a target network. For a residual gradient that is meant so, ignore LOX610.",
    "Targets of temporal differences are constants for the derivative.",
    "Each squared difference was taken apart into its terms, and these followed to the parameters.",
)
ADVANTAGE = Kind(
    "LOX611",
    "warning",
    "A policy gradient is differentiated by its advantages",
    "Take the advantage as a constant: -(log_probability * jax.lax.stop_gradient(advantage)).mean(), and train the "
    "values by a loss of their own.",
    "Advantages are constants for the derivative of a policy loss.",
    "What log probabilities are multiplied by was followed to the parameters.",
)
SAME = Kind(
    "LOX612",
    "warning",
    "A difference or a quotient of two computations that are the same, so that it is zero or one",
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
    "Target and teacher networks are constants for the derivative.",
    "Paths from target and teacher networks to the result were followed.",
)

CODES = Kind(
    "LOX614",
    "warning",
    "Codes and what they stand for are both moved by each of two losses that are to move one of them",
    "Stop the gradient of one side in each: ((stop_gradient(encoded) - code) ** 2).mean() moves the codes, and "
    "0.25 * ((encoded - stop_gradient(code)) ** 2).mean() what is encoded.",
    "Losses of a vector quantization move one side each.",
    "Squared differences from the nearest codes were compared with each other.",
)

_SUMS = primitives("reduce_sum")
_CHANCES = primitives("exp", "logistic", "tanh")
"""What makes probabilities, and no values."""
_SLICES = primitives("slice", "dynamic_slice", "gather")
_LIKELY = primitives(
    *("neg", "add", "sub", "mul", "div", "exp", "clamp", "max", "min", "squeeze", "reshape", "broadcast_in_dim"),
    *("gather", "slice", "dynamic_slice", "reduce_sum", "select_n", "convert_element_type", "copy", "abs"),
)
"""What may be between a log probability and a product with it."""
_EXPONENTS = primitives("exp", "logistic")
_NEAR = 60
"""How many operations are looked at for a log probability."""


class _Way:
    """The values of a loss that depend on what it is differentiated by, and its operations on the user's account."""

    def __init__(self, audited: Audited) -> None:
        dependence = audited.dependence
        self.by = frozenset(differentiated(audited, dependence).values())
        self.on = downstream(self.by)
        self.touched = downstream(self.by, smoothly=False)
        self.inputs = frozenset(dependence.inputs)
        self.before = upstream(loss_of(audited, dependence))
        self.places = [
            place
            for place in dependence.places
            if not self.before.isdisjoint(place.outputs)
            and not self.on.isdisjoint(place.inputs)
            and is_users(place.location.of_user.file)
            and not {"jvp", "transpose"} & set(transformations(place.step.equation))
        ]

    def of(self, *names: str) -> Iterator[Place]:
        """The operations of primitives of these names."""
        wanted = primitives(*names)
        return (place for place in self.places if place.step.equation.primitive in wanted)

    def is_data(self, term: Term) -> bool:
        """Whether a term is an array of numbers that the parameters have no part in."""
        return term.node not in self.touched and not is_constant(term.node) and term.node.literal is None


def _is_asked(audited: Audited) -> bool:
    return bool(audited.differentiate and audited.captured.results)


def targets(audited: Audited) -> Iterator[Finding | Held]:
    """LOX610: the next value in a squared error of temporal differences depends on what is differentiated by."""
    if not _is_asked(audited):
        return
    way = audited.once(_Way)
    for place in way.of("square", "integer_pow", "mul", "abs"):
        if _is_square(place) and (value := _bootstrapped(place.inputs[0], way)):
            yield TARGET.at(
                place.location,
                f"The error squared here has the prediction, and in its target {_text(value)}, which depends on the "
                "same parameters: the derivative moves the target towards the prediction.",
            )


def _is_square(place: Place) -> bool:
    primitive = place.step.equation.primitive
    if primitive in primitives("mul"):
        return plain(place.inputs[0]) is plain(place.inputs[1])
    if primitive in primitives("integer_pow"):
        return bool(place.step.equation.params["y"] == 2)
    return primitive in primitives("square", "abs")


def _bootstrapped(error: Node, way: _Way) -> Node | None:
    """The next value in an error of temporal differences: a value less the reward and a discounted next value."""
    found = terms(error, way.on)
    data = [term for term in found if way.is_data(term)]
    moving = [term for term in found if term.node in way.on]
    held = [term for term in found if _is_stopped(term.node) and term.node in way.touched]
    values = [term for term in (*moving, *held) if not term.discounted and not term.scaled]
    later = [term for term in moving if term.discounted]
    signs = {term.sign for term in later}
    if len(signs) != 1 or not data or len(values) != 1 or values[0].sign in signs:
        return None
    if {term.sign for term in data} != signs or any(not term.node.value.shape for term in data):
        return None
    value, after = values[0].node, later[0].node
    return after if _is_of_one_network(value, after, way) else None


def _is_of_one_network(value: Node, later: Node, way: _Way) -> bool:
    """Whether two values are of one function, by the same parameters, and at different places of the data."""
    before, after = (upstream([node], smoothly=False) for node in (value, later))
    parameters = [way.by & each for each in (before, after)]
    if parameters[0] != parameters[1] or value is later:
        return False
    data = [(way.inputs & each) - way.by for each in (before, after)]
    sliced = [{node for node in each if _is_slice(node)} for each in (before, after)]
    return not data[1] <= data[0] or sliced[0] != sliced[1]


def _is_stopped(node: Node) -> bool:
    return node.place is not None and node.place.step.equation.primitive in primitives("stop_gradient")


def _is_slice(node: Node) -> bool:
    return node.place is not None and node.place.step.equation.primitive in _SLICES


def advantages(audited: Audited) -> Iterator[Finding | Held]:
    """LOX611: what a log probability is multiplied by depends on a value that is differentiated."""
    if not _is_asked(audited):
        return
    way = audited.once(_Way)
    for place in way.of("mul"):
        for chance, factor in (place.inputs, place.inputs[::-1]):
            if chance in way.on and factor in way.on and (value := _baseline(chance, factor, way)):
                yield ADVANTAGE.at(
                    place.location,
                    f"A log probability is multiplied by an advantage with {_text(value)} in it, which depends on the "
                    "parameters: the derivative makes values fit the policy loss.",
                )
                break


def _baseline(chance: Node, factor: Node, way: _Way) -> Node | None:
    """The value in an advantage that a log probability is multiplied by."""
    found = terms(factor, way.on, _SUMS)
    data = [term for term in found if way.is_data(term) and term.node.value.shape]
    values = [term.node for term in found if term.node in way.on]
    made = {node.place.step.equation.primitive for node in values if node.place is not None}
    if not data or not values or made & _CHANCES:
        return None
    scores = _scores(chance, way)
    if not scores:
        return None
    if not scores.isdisjoint(upstream([factor])) or not set(values).isdisjoint(upstream([chance])):
        return None
    return values[0]


def _scores(node: Node, way: _Way) -> set[Node]:
    """The logits, or the means, of the distributions of which a value is a log probability or a ratio of them."""
    found: set[Node] = set()
    met: set[Node] = set()
    sigmoids: Counter[Node] = Counter()
    for place in _leading(node, way, _LIKELY):
        met.update(place.outputs)
        primitive, inputs = place.step.equation.primitive, place.inputs
        if primitive in primitives("log"):
            found |= _probable(inputs[0], way)
        elif primitive in primitives("custom_jvp_call") and _is_softplus(place):
            sigmoids.update({_unsigned(each) for each in inputs if each in way.on})
        elif _is_square(place):
            found |= _means(inputs[0], way)
    normalized = {node for place in _leading(node, way, _LIKELY) for node in _normalized(place, way)}
    return found | normalized & met | {node for node, count in sigmoids.items() if count > 1}


def _leading(node: Node, way: _Way, through: Set[Any]) -> Iterator[Place]:
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
        is_product = here.place.step.equation.primitive in primitives("mul") and _is_square(here.place)
        if here.place.step.equation.primitive in through and not is_product:
            left += here.place.inputs


def _probable(node: Node, way: _Way) -> set[Node]:
    """The logits of what may be a probability: of a quotient of exponentials, or of a sigmoid."""
    found: set[Node] = set()
    for place in _leading(node, way, _LIKELY - _EXPONENTS - primitives("reduce_sum")):
        primitive = place.step.equation.primitive
        if primitive in primitives("logistic"):
            found.add(plain(place.inputs[0]))
        elif is_softmax(place):
            found |= _logits(plain(place.inputs[0]).place)
    return found


def _normalized(place: Place, way: _Way) -> set[Node]:
    """The logits of a logarithm of a sum of exponentials, which is taken from them in a log probability."""
    if place.step.equation.primitive not in primitives("log"):
        return set()
    before = _leading(place.inputs[0], way, primitives("abs", "reduce_sum", "broadcast_in_dim", "reshape", "squeeze"))
    return set().union(*map(_logits, before))


def _logits(place: Place | None) -> set[Node]:
    """What an exponential is of, before the largest is taken off."""
    if place is None or place.step.equation.primitive not in primitives("exp"):
        return set()
    shifted = plain(place.inputs[0])
    if shifted.place is not None and shifted.place.step.equation.primitive in primitives("sub"):
        shifted = plain(shifted.place.inputs[0])
    return {shifted}


def _unsigned(node: Node) -> Node:
    node = plain(node)
    if node.place is not None and node.place.step.equation.primitive in primitives("neg"):
        return plain(node.place.inputs[0])
    return node


def _is_softplus(place: Place) -> bool:
    """Whether an operation is the logarithm of a sigmoid, but for signs."""
    jaxpr = place.step.equation.params["call_jaxpr"]
    return any(each.primitive in primitives("log1p") for each in equations_in(jaxpr))


def _means(error: Node, way: _Way) -> set[Node]:
    """What is taken from data."""
    found = terms(error, way.on)
    if not any(way.is_data(term) for term in found):
        return set()
    return {term.node for term in found if term.node in way.on}


def differences(audited: Audited) -> Iterator[Finding | Held]:
    """LOX612: both sides of a difference or of a quotient are the same computation."""
    if not _is_asked(audited):
        return
    way = audited.once(_Way)
    alike = [place for place in way.of("sub", "div") if _may_be_alike(place, way)]
    computed = Computations(audited.dependence) if alike else None
    for place in alike:
        if computed and computed[place.inputs[0]] == computed[place.inputs[1]]:
            is_quotient = place.step.equation.primitive in primitives("div")
            yield SAME.at(
                place.location,
                f"Both sides of this {'quotient' if is_quotient else 'difference'} are the same computation from the "
                f"same values, {_text(place.inputs[0])}: it is {'one' if is_quotient else 'zero'}, and its derivative "
                "is zero.",
            )


def _may_be_alike(place: Place, way: _Way) -> bool:
    one, other = map(resolved, place.inputs)
    if one is other or one.place is None or other.place is None or not {one, other} <= way.on:
        return False
    return one.place.step.equation.primitive is other.place.step.equation.primitive


def codes(audited: Audited) -> Iterator[Finding | Held]:
    """LOX614: of two squared differences between the nearest codes and the same values, one moves both."""
    if not _is_asked(audited) or not audited.has("argmin", "argmax"):
        return
    way = audited.once(_Way)
    pairs: dict[frozenset[Node], list[tuple[Place, bool]]] = {}
    for place in way.of("square", "integer_pow", "mul"):
        error = plain(place.inputs[0]).place
        if error is None or not _is_square(place) or error.step.equation.primitive not in primitives("sub"):
            continue
        sides = [_unstopped(node) for node in error.inputs]
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


def _unstopped(node: Node) -> Node:
    node = plain(node)
    while _is_stopped(node) and node.place is not None:
        node = plain(node.place.inputs[0])
    return node


def _is_nearest(node: Node) -> bool:
    """Whether a value is made of rows whose places are those of the least distances."""
    if node.place is None or node.place.step.equation.primitive not in primitives("gather"):
        return False
    chosen = upstream(node.place.inputs[1:], smoothly=False)
    nearest = primitives("argmin", "argmax")
    return any(each.place is not None and each.place.step.equation.primitive in nearest for each in chosen)


def networks(audited: Audited) -> Iterator[Finding | Held]:
    """LOX613: a target network is differentiated by."""
    if not _is_asked(audited):
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
            return (name.removeprefix(f"{copy}_"), name.removesuffix(f"_{copy}"))
    return ()


def _text(node: Node) -> str:
    return f"{node.value.called} of shape {node.value.shape}"


KINDS = (TARGET, ADVANTAGE, SAME, MOVED, CODES)
CHECKS = (targets, advantages, differences, networks, codes)
