"""Derivatives that are infinite or NaN at values that are there to be reached."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Set

import numpy as np

from lox._audit._attained import End, attains, end_of, is_constant, is_softmax, is_square_product, plain, resolved
from lox._audit._audited import Audited
from lox._audit._checks._autodiff._pairs import is_zero_in_pairs, paired_without_themselves
from lox._audit._checks._autodiff._taken import Asked, Taken, ways_of
from lox._audit._dependence import Node, Place
from lox._audit._findings import Finding, Held, Kind
from lox._audit._location import frames, transformations
from lox._audit._origins import Origins
from lox._audit._ranges import COMPARISONS
from lox._audit._rules import primitives
from lox._compat import _tracebacks as tracebacks

SINGULAR = Kind(
    "LOX606",
    "warning",
    "A derivative is infinite or NaN at a value that is reached",
    "Keep the value away from there: jnp.sqrt(x + eps), jnp.log(jnp.maximum(x, eps)), jnp.clip(x, -1 + eps, 1 - eps); "
    "or use a function that is made for it, such as optax.safe_norm, jax.nn.log_softmax or jax.nn.log_sigmoid.",
    "Where a derivative would be infinite, values do not get.",
    "Intervals of the operands were compared with the points at which each derivative is infinite.",
)
GUARDED = Kind(
    "LOX607",
    "warning",
    "jnp.where hides a value that is infinite or NaN, and not its derivative, which becomes NaN",
    "Choose before the operation as well: safe = jnp.where(ok, x, 1.0); jnp.where(ok, jnp.log(safe), 0.0).",
    "What jnp.where keeps out is kept out before the operation.",
    "What each jnp.where selects between was followed to operations that are not finite where it is not selected.",
)

_POLES: dict[str, tuple[tuple[float, End], ...]] = {
    "sqrt": ((0.0, "low"),),
    "rsqrt": ((0.0, "low"),),
    "log": ((0.0, "low"),),
    "log2": ((0.0, "low"),),
    "log1p": ((-1.0, "low"),),
    "asin": ((-1.0, "low"), (1.0, "high")),
    "acos": ((-1.0, "low"), (1.0, "high")),
    "atanh": ((-1.0, "low"), (1.0, "high")),
    "acosh": ((1.0, "low"),),
}
"""Where derivatives are infinite: a number, and at which end of the range of the operand that counts."""

_BY_PRIMITIVE = {primitive: ends for name, ends in _POLES.items() for primitive in primitives(name)}
_LOGARITHMS = primitives("log", "log2", "log1p")
_DIVISIONS = primitives("div")


def singular(audited: Audited) -> Iterator[Finding | Held]:
    """LOX606 and LOX607: an operation has no finite derivative at a value that it gets."""
    ways = audited.once(ways_of)
    places = [place for place in audited.dependence.places if not is_of_library(place)] if ways else []
    for way in ways:
        yield from _singular(places, way, audited.origins)


def is_of_library(place: Place) -> bool:
    """Say whether an operation is in a library, or in a function of `jax.scipy`, which guards its own poles."""
    files = (frame.file for frame in frames(place.step.equation))
    return "site-packages" in place.location.file or tracebacks.is_of_scipy(files)


def _singular(places: list[Place], way: Asked | Taken, origins: Origins) -> Iterator[Finding | Held]:
    hidden: set[Place] = set()
    for place in places:
        if place.step.equation.primitive in primitives("select_n") and way.chooses(place):
            found = _hidden(place, way) or _hidden_in_pairs(place, way, origins)
            hidden.update(found)
            for inner in found:
                yield GUARDED.at(
                    inner.location,
                    f"jnp.where leaves out '{inner.step.equation.primitive.name}' where it is not finite, but its "
                    "derivative is taken everywhere, and is multiplied by zero there: infinity times zero is NaN.",
                )
    for place in places:
        poles = _poles(place)
        if not poles or place in hidden or not way.takes(place) or _only_divides(place):
            continue
        operand = place.inputs[0]
        maker = plain(operand).place
        if maker is not None and is_softmax(maker):
            continue  # Which is wrong also for what does not differentiate, and is said there.
        logarithm = place.step.equation.primitive in _LOGARITHMS
        reached = [number for number, end in poles if _at(operand, number, end) and attains(operand, end, logarithm)]
        if reached:
            yield SINGULAR.at(
                place.location,
                f"The operand of '{place.step.equation.primitive.name}' can be {reached[0]:g}, where its derivative is "
                f"infinite{_range(operand)}; times a derivative of zero before it, that is NaN.",
            )
        elif any(math.isfinite(getattr(operand.value.fact.range, end)) for _, end in poles):
            yield SINGULAR.fine(place.location)


def _only_divides(place: Place) -> bool:
    """Say whether the result of a root is only divided by, so that what comes of it is not finite at the pole."""
    if place.step.equation.primitive not in primitives("sqrt"):
        return False
    left, seen, divides = list(place.outputs), set[Node](), False
    while left and len(seen) < _NEARBY:
        node = left.pop()
        seen.add(node)
        for fed, smooth in node.feeds:
            if not smooth:  # A comparison asks for no derivative.
                if fed.place is not None and _is_above(fed.place, node):
                    return False
                continue
            if fed.place is None:
                left += [fed] if fed not in seen else []
                continue
            primitive = fed.place.step.equation.primitive
            steps = (fed.place.step, *fed.place.around)
            if any("transpose" in transformations(step.equation) for step in steps):
                continue
            power = fed.place.step.equation.params["y"] if primitive in primitives("integer_pow") else 0
            if power < 0 or (primitive in primitives("div") and resolved(fed.place.inputs[1]) in seen):
                divides = True
            elif primitive in _LAID_OUT or power > 0 or _scales(fed.place):
                left += [fed] if fed not in seen else []
            else:
                return False
    return divides and not left


def _is_above(place: Place, node: Node) -> bool:
    """Say whether an operation asks if a value is large: `jnp.where` may leave out then what is divided by zero."""
    primitive, large = place.step.equation.primitive, place.inputs[:1]
    if primitive in primitives("lt", "le"):
        large = place.inputs[1:]
    return primitive in primitives("lt", "le", "gt", "ge") and node in map(resolved, large)


def _scales(place: Place) -> bool:
    return place.step.equation.primitive in primitives("mul", "div") and any(map(is_constant, place.inputs))


def _range(operand: Node) -> str:
    text = str(operand.value.fact.range)
    return f", as it is in {text}" if text else ""


def _poles(place: Place) -> tuple[tuple[float, End], ...]:
    """Where the derivative of an operation by its first operand is infinite."""
    primitive = place.step.equation.primitive
    if primitive in primitives("pow"):
        exponent = place.inputs[1].value.number
        return ((0.0, "low"),) if exponent is not None and 0 < exponent < 1 else ()
    return _BY_PRIMITIVE.get(primitive, ())


def _at(node: Node, number: float, end: End) -> bool:
    """Say whether a number is this end of the range of a value."""
    limits = node.value.fact.range
    return bool(getattr(limits, end) == number) or (number in limits and is_square_product(resolved(node)))


_NEAR = 0.01
"""How near to where a derivative is infinite a comparison is about that."""

_NEARBY = 64
"""How many operations before a jnp.where are looked at."""

_LAID_OUT = primitives("broadcast_in_dim", "reshape", "squeeze", "transpose", "copy")
_NOTHING_BEYOND = primitives("sqrt", "rsqrt", "pow", "asin", "acos", "acosh", "atanh")
"""What is NaN beyond its pole, as is its derivative."""

_OF_SOFTMAX = primitives("exp", "div", "sub")
_LEFT_OUT = -1e4
"""Logits below this have a softmax of zero."""

_LINES = primitives("add", "sub", "mul", "div", "neg")

Excludes = Callable[[float, bool], bool]


def _hidden(select: Place, way: Asked | Taken) -> list[Place]:
    """The operations without a finite derivative at values for which a choice leaves their results out."""
    which, *cases = select.inputs
    if len(cases) != 2:
        return []
    found: dict[Place, None] = {}
    for truth, (case, other) in ((False, cases), (True, cases[::-1])):
        if _is_nan(other):
            continue
        conditions = list(conditions_of(which, truth))
        for place in nearby(case):
            operand, pole = _pole(place)
            if operand is None or pole not in operand.value.fact.range:
                continue
            if not way.passes(place, operand):
                continue
            if pole == 0 and _is_softmax_without(operand, which, truth):
                found[place] = None
            for compared, excludes in conditions:
                on_result = compared is plain(place.outputs[0]) and excludes(math.nan, True)
                if on_result or _keeps_out(place, operand, pole, compared, excludes):
                    found[place] = None
    return list(found)


def _hidden_in_pairs(select: Place, way: Asked | Taken, origins: Origins) -> list[Place]:
    """The first operation without a finite derivative at zero, where a choice leaves out elements beside themselves."""
    condition, *cases = select.step.inputs
    for truth, case in enumerate(select.inputs[1:] if len(cases) == 2 else ()):
        axes = paired_without_themselves(condition, bool(truth), origins)
        for place in reversed([*nearby(case)] if axes is not None else []):
            operand, pole = _pole(place)
            if operand is None or pole != 0 or not way.passes(place, operand):
                continue
            value = place.step.inputs[place.inputs.index(operand)]
            if axes is not None and is_zero_in_pairs(value, axes, origins):
                return [place]
    return []


def _is_softmax_without(operand: Node, which: Node, truth: bool) -> bool:
    """Say whether an operand is a softmax, or is made by exponentials, of logits that the same choice left out."""
    seen, left = {operand}, [operand]
    while left and len(seen) < _NEARBY:
        node = plain(left.pop())
        place = node.place
        if place is None:
            continue
        if place.step.equation.primitive in primitives("select_n") and len(place.inputs) == 3:
            case = place.inputs[1 + (not truth)]
            if plain(place.inputs[0]) is plain(which) and is_constant(case) and end_of(case, "high") < _LEFT_OUT:
                return True
        if place.step.equation.primitive in _OF_SOFTMAX or place.step.blocks:
            new = [source for source, smooth in node.sources if smooth and source not in seen]
            seen.update(new)
            left += new
    return False


def _keeps_out(place: Place, operand: Node, pole: float, compared: Node, excludes: Excludes) -> bool:
    """Say whether a comparison keeps an operand from a pole.

    One with another number than the pole does so too, but may be about something else: it counts if the operand itself
    is compared and has no value beyond the pole, or if it surely gets to the pole.
    """
    numbers = _at_pole(operand, pole, compared)
    if not numbers:
        return False
    if all(excludes(number, True) for number in numbers):
        return True
    direct = plain(operand) in (compared, _unsigned(compared)) and place.step.equation.primitive in _NOTHING_BEYOND
    poles: tuple[tuple[float, End], ...] = _poles(place) or ((0.0, "low"),)
    ends = [end for number, end in poles if number == pole and _at(operand, number, end)]
    reached = any(attains(operand, end, place.step.equation.primitive in _LOGARITHMS) for end in ends)
    return (direct or reached) and all(excludes(number, False) for number in numbers)


def _at_pole(operand: Node, pole: float, compared: Node) -> tuple[float, ...]:
    """The numbers that a value that is compared is where an operand is at its pole; none if it has no part in it."""
    (base, scale, shift), (other, by, plus) = _line(operand), _line(compared)
    number = (pole - shift) / scale
    if base is not other:
        if _unsigned(base) is not _unsigned(other):
            return ()
        if base is not _unsigned(base) and number < 0:
            return ()
        size = math.sqrt(number) if _is_square(base) else abs(number)
        if other is _unsigned(other):
            return tuple({by * size + plus, -by * size + plus})
        number = size**2 if _is_square(other) else size
    return (by * number + plus,)


def _line(node: Node) -> tuple[Node, float, float]:
    """A value as `scale * base + shift`."""
    scale, shift, node = 1.0, 0.0, plain(node)
    while node.place is not None and node.place.step.equation.primitive in _LINES:
        primitive, operands = node.place.step.equation.primitive, node.place.inputs
        if primitive in primitives("neg"):
            scale, node = -scale, plain(operands[0])
            continue
        one, other = operands
        if is_constant(one) and primitive not in _DIVISIONS:
            number, node = end_of(one, "low"), other
            turned = -scale if primitive in primitives("sub") else scale
        elif is_constant(other):
            number, node = end_of(other, "low"), one
            number, turned = (-number if primitive in primitives("sub") else number), scale
        else:
            break
        if primitive in primitives("add", "sub"):
            scale, shift = turned, shift + scale * number
        elif number == 0 or math.isinf(number):
            break
        else:
            scale = scale / number if primitive in _DIVISIONS else scale * number
        node = plain(node)
    return node, scale, shift


def _unsigned(node: Node) -> Node:
    """A value of which another one is the size."""
    if node.place is not None and (node.place.step.equation.primitive in primitives("abs") or _is_square(node)):
        return plain(node.place.inputs[0])
    return node


def _is_square(node: Node) -> bool:
    if node.place is None:
        return False
    step, operands = node.place.step, node.place.inputs
    if step.equation.primitive in primitives("mul"):
        return plain(operands[0]) is plain(operands[1])
    return step.equation.primitive in primitives("square") or step.equation.params.get("y") == 2


def _pole(place: Place) -> tuple[Node | None, float]:
    """The operand and the number at which an operation has no finite derivative, the number that people keep out."""
    if place.step.equation.primitive in _DIVISIONS:
        return place.inputs[1], 0.0
    poles = _poles(place)
    return (place.inputs[0], poles[-1][0]) if poles else (None, 0.0)


def nearby(node: Node, among: Set[Node] | None = None) -> Iterator[Place]:
    """The operations that a value comes out of, the last ones first; of those with a result among some, if given."""
    seen, left = {node}, [node]
    while left and len(seen) < _NEARBY:
        node = left.pop(0)
        if among is not None and node not in among:
            continue
        if node.place is not None:
            yield node.place
        for source, smooth in node.sources:
            if smooth and source not in seen:
                seen.add(source)
                left.append(source)


def conditions_of(which: Node, truth: bool) -> Iterator[tuple[Node, Excludes]]:
    """The values that a condition is about, and what it says that they are not when it has this truth.

    What a value is not is asked by a number, or by NaN for whatever is not finite, and by whether only what is near to
    the number of a comparison counts.
    """
    place = plain(which).place
    if place is None:
        return
    primitive = place.step.equation.primitive
    if primitive in primitives("not"):
        yield from conditions_of(place.inputs[0], not truth)
    elif primitive in (primitives("and") if truth else primitives("or")):
        for each in place.inputs:
            yield from conditions_of(each, truth)
    elif primitive in primitives("is_finite"):
        yield plain(place.inputs[0]), lambda number, _: truth and math.isnan(number)
    elif primitive in COMPARISONS:
        one, two = place.inputs
        if plain(one) is plain(two) and primitive in primitives("ne", "eq"):
            finite = truth is (primitive in primitives("eq"))
            yield plain(one), lambda number, _: finite and math.isnan(number)
        holds = COMPARISONS[primitive]
        for value, bound, is_first in ((one, two, True), (two, one, False)):
            if is_constant(bound):
                yield plain(value), _excluded(holds, end_of(bound, "low"), is_first, truth)
                break


def _excluded(holds: Callable[[float, float], bool], constant: float, is_first: bool, truth: bool) -> Excludes:
    def excludes(number: float, near: bool) -> bool:
        if near and not abs(constant - number) <= _NEAR:
            return False
        return holds(*((number, constant) if is_first else (constant, number))) is not truth

    return excludes


def _is_nan(node: Node) -> bool:
    literal = plain(node).literal
    return literal is not None and np.ndim(literal) == 0 and bool(np.isnan(literal))


KINDS = (SINGULAR, GUARDED)
CHECKS = (singular,)
