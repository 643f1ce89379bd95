"""Infinities that become NaN, because zero or another infinity is where they are."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from lox._audit._audited import Audited
from lox._audit._checks._numerics._exponentials import chosen_from, made_by
from lox._audit._checks._numerics._integers import is_float
from lox._audit._checks._numerics._masks import masks_of
from lox._audit._findings import Finding, Held, Kind
from lox._audit._location import frames, is_users, transformations
from lox._audit._origins import FLOWS, Origins
from lox._audit._program import Step, Value
from lox._audit._ranges import MONOTONE
from lox._audit._rules import primitives
from lox._compat import _tracebacks as tracebacks

UNDEFINED = Kind(
    "LOX808",
    "warning",
    "Infinity where zero or another infinity makes it NaN",
    "Choose instead of multiplying: jnp.where(mask, x, -jnp.inf), jnp.where(p > 0, p * jnp.log(p), 0.0), "
    "jax.scipy.special.entr(p); or mask with a large finite number, such as jnp.finfo(x.dtype).min.",
    "Where infinities are put, no operation makes NaN of them.",
    "What each jnp.where puts somewhere was followed through the operations on the elements there.",
)
Key = tuple[Value, int]
"""A place in an array: where a condition has this truth; or where a value is zero, by the value and 0."""
At = Mapping[Key, float]
"""The numbers that a value is at places."""

Calls = tuple[Step, ...]

_UNARY: dict[Any, Callable[[Any], Any]] = {
    **{primitive: function for name, function in MONOTONE.items() for primitive in primitives(name)},
    **dict.fromkeys(primitives("neg"), np.negative),
    **dict.fromkeys(primitives("abs"), np.abs),
    **dict.fromkeys(primitives("square"), np.square),
}
_BINARY: dict[Any, Callable[[Any, Any], Any]] = {
    **dict.fromkeys(primitives("add"), np.add),
    **dict.fromkeys(primitives("sub"), np.subtract),
    **dict.fromkeys(primitives("mul"), np.multiply),
    **dict.fromkeys(primitives("div"), np.divide),
    **dict.fromkeys(primitives("max"), np.maximum),
    **dict.fromkeys(primitives("min"), np.minimum),
}
_LAYOUT = FLOWS - primitives("convert_element_type")
_DEEP = 60
_PRODUCTS = primitives("mul", "dot_general")
_MAXIMA = primitives("reduce_max", "scatter_max", "max", "select_n", "gather")
_ASKING = primitives("gt", "ge", "lt", "le", "eq", "ne", "not", "sub")


class Places:
    """What values are at places, and the operations that make NaN there.

    A value in a function that is called is met in the calls: `calls` are those from whose inside it is asked for.
    """

    def __init__(self, audited: Audited) -> None:
        self._origins = audited.origins
        self._known: dict[tuple[Value, Calls], At] = {}
        self.undefined: dict[Step, tuple[float, float]] = {}
        for step, _ in audited.steps:
            if step.equation.primitive in _BINARY or step.equation.primitive in _PRODUCTS:
                self._of_step(step, (), _DEEP)

    def at(self, value: Value, calls: Calls = (), depth: int = _DEEP) -> At:
        """What a value is at places."""
        met = self._origins.met(value, _LAYOUT, calls)
        if met not in self._known:
            self._known[met] = {}
            maker = met[0].maker
            if maker is not None and depth:
                self._known[met] = self._of_step(maker, met[1], depth - 1)
        return self._known[met]

    def _of_step(self, step: Step, calls: Calls, depth: int) -> At:
        primitive, params = step.equation.primitive, step.equation.params
        if primitive in primitives("select_n"):
            return self._chosen(step, calls, depth)
        if primitive in primitives("convert_element_type") and step.inputs[0].aval.dtype == jnp.bool_:
            asked, is_flipped = self.asked(step.inputs[0], calls)
            return {(asked, truth): float(truth != is_flipped) for truth in (0, 1)}
        if primitive in primitives("convert_element_type"):
            return self.at(step.inputs[0], calls, depth)
        if self._has_zeros(step, calls):
            return {(step.outputs[0], 0): 0.0}
        if primitive in primitives("integer_pow"):
            return _mapped(lambda number: number ** params["y"], self.at(step.inputs[0], calls, depth))
        if primitive in _UNARY:
            return _mapped(_UNARY[primitive], self.at(step.inputs[0], calls, depth))
        if primitive in _PRODUCTS | _BINARY.keys() and len(step.inputs) == 2:
            return self._combined(step, calls, depth)
        return {}

    def _has_zeros(self, step: Step, calls: Calls) -> bool:
        """Say whether a step counts, or cuts off at zero, so that some elements surely are zero."""
        primitive = step.equation.primitive
        if primitive in primitives("max", "clamp"):
            low, operand = step.inputs[:2] if step.inputs[0].number == 0 else step.inputs[1::-1]
            return low.number == 0 and operand.fact.range.low < 0
        if primitive in primitives("scatter_add"):
            return step.inputs[0].number == 0 and step.inputs[2].fact.range.low >= 0
        counted = step.inputs[0] if primitive in primitives("reduce_sum") else None
        return counted is not None and counted.fact.range.low == 0 and 0.0 in self.at(counted, calls).values()

    def asked(self, condition: Value, calls: Calls = ()) -> tuple[Value, bool]:
        """The condition without negations, and whether it is the other one then."""
        is_flipped = False
        condition, calls = self._origins.met(condition, FLOWS, calls)
        while (negation := made_by(condition, primitives("not"))) is not None:
            condition, calls = self._origins.met(negation.inputs[0], FLOWS, calls)
            is_flipped = not is_flipped
        return condition, is_flipped

    def _chosen(self, step: Step, calls: Calls, depth: int) -> At:
        which, *cases = step.inputs
        if len(cases) != 2:
            return {}
        asked, is_flipped = self.asked(which, calls)
        found: dict[Key, float] = {}
        for place, case in enumerate(cases):
            key = (asked, place ^ is_flipped)
            number = case.number
            number = self.at(case, calls, depth).get(key) if number is None else number
            if number is not None:
                found[key] = number
        return found

    def _combined(self, step: Step, calls: Calls, depth: int) -> At:
        known = [self.at(value, calls, depth) for value in step.inputs]
        numbers = [value.number for value in step.inputs]
        found: dict[Key, float] = {}
        for key in dict.fromkeys((*known[0], *known[1])):
            one, other = (each.get(key, number) for each, number in zip(known, numbers, strict=True))
            number = _result(step, one, other)
            if number is not None and not math.isnan(number):
                found[key] = number
            elif number is not None and one is not None and other is not None:
                self.undefined.setdefault(step, (one, other))
        apart = self._apart(step, known, numbers) if step.equation.primitive in _PRODUCTS else None
        if apart is not None:
            self.undefined.setdefault(step, apart)
        return {} if step.equation.primitive in primitives("dot_general") else found

    def _apart(self, step: Step, known: list[At], numbers: list[float | None]) -> tuple[float, float] | None:
        """A zero and an infinity that a product has at places of different conditions."""
        for one, other in ((0, 1), (1, 0)):
            infinite = next((number for number in known[other].values() if math.isinf(number)), None)
            zeros = [key for key, number in known[one].items() if number == 0]
            if infinite is not None and any(self._is_one_hot(*key) for key in zeros):
                return 0.0, infinite
            number, array = numbers[other], step.inputs[one]
            if number is not None and math.isinf(number) and array.shape and numbers[one] is None:
                if 0 in array.fact.range and is_float(array):
                    return 0.0, number
        return None

    def _is_one_hot(self, asked: Value, truth: int) -> bool:
        """Say whether a place is all of an axis but one element."""
        equal = made_by(asked, primitives("eq"))
        if equal is None or truth:
            return False
        counters = [self._origins.of(value, FLOWS).maker for value in equal.inputs]
        return any(maker is not None and maker.equation.primitive in primitives("iota") for maker in counters)


def _mapped(function: Callable[[Any], Any], numbers: At) -> At:
    with np.errstate(all="ignore"):
        found = {key: float(function(np.float64(number))) for key, number in numbers.items()}
    return {key: number for key, number in found.items() if not math.isnan(number)}


def _result(step: Step, one: float | None, other: float | None) -> float | None:
    """What an operation makes of numbers, one of which may not be known; None if that is not known either."""
    primitive = step.equation.primitive
    if primitive in primitives("dot_general"):
        primitive = next(iter(primitives("mul")))
        if not _is_sum_of_products(step):
            return None
    if one is not None and other is not None:
        with np.errstate(all="ignore"):
            return float(_BINARY[primitive](np.float64(one), np.float64(other)))
    number, unknown = (one, step.inputs[1]) if one is not None else (other, step.inputs[0])
    if number is None:
        return None
    limits = unknown.fact.range
    if primitive in primitives("add") or (primitive in primitives("sub") and one is not None):
        return number if math.isinf(number) else None
    if primitive in primitives("sub"):
        return -number if math.isinf(number) else None
    if primitive in primitives("mul") or (primitive in primitives("div") and one is not None):
        scales = math.isinf(number) and (limits.low >= 0 or limits.high <= 0)
        return (
            0.0 if number == 0 else math.copysign(number, number * (1 if limits.low >= 0 else -1)) if scales else None
        )
    if primitive in primitives("div"):
        return 0.0 if math.isinf(number) else None
    keeps = math.inf if primitive in primitives("max") else -math.inf
    return number if number == keeps else None


def _is_sum_of_products(step: Step) -> bool:
    """Say whether a product multiplies the elements of two arrays at the same places."""
    (left, right), (left_batch, right_batch) = step.equation.params["dimension_numbers"]
    shapes = [value.shape for value in step.inputs[:2]]
    return shapes[0] == shapes[1] and tuple(left) == tuple(right) and tuple(left_batch) == tuple(right_batch)


def undefined(audited: Audited) -> Iterator[Finding | Held]:
    """LOX808: zero times infinity, or infinity minus infinity, where something was put on purpose."""
    places = audited.once(Places)
    left_out = audited.once(chosen_from) | set(_tested(audited))
    for step, numbers in places.undefined.items():
        location, result = audited.lines[step], step.outputs[0]
        inside = transformations(step.equation)
        in_vain = result not in audited.live and "jvp" not in inside
        if in_vain or "transpose" in inside or result in left_out or not is_users(location.of_user.file):
            continue
        if tracebacks.is_of_scipy(frame.file for frame in frames(step.equation)):
            continue
        one, other = (f"{number:g}" for number in numbers)
        operands = " and ".join(value.called for value in step.inputs)
        yield UNDEFINED.at(
            location, f"'{step.equation.primitive.name}' of {operands} is NaN where these are {one} and {other}."
        )


def _tested(audited: Audited) -> Iterator[Value]:
    """The values that are asked for being finite."""
    for step, _ in audited.of("is_finite"):
        yield audited.origins.of(step.inputs[0], FLOWS)
    for step, _ in audited.of("ne", "eq"):
        one, other = (audited.origins.of(value, FLOWS) for value in step.inputs)
        if one is other or other.number in (-math.inf, math.inf):
            yield one


def shifted(audited: Audited) -> Iterator[Finding]:
    """LOX808: exponentials of all logits, less the largest of those that a mask keeps, are multiplied by the mask."""
    origins = audited.origins
    for step, location in audited.of("mul"):
        if "transpose" in transformations(step.equation) or not is_users(location.of_user.file):
            continue
        for powers, mask in (step.inputs, step.inputs[::-1]):
            exp = made_by(origins.of(powers, FLOWS), primitives("exp"))
            minus = made_by(origins.of(exp.inputs[0], FLOWS), primitives("sub")) if exp is not None else None
            condition = _kept_in_maximum(minus, origins) if minus is not None else None
            if minus is None or condition is None or condition is not _asked_of(mask, origins):
                continue
            difference = minus.inputs[0].fact.range
            if difference.high - difference.low > math.log(float(jnp.finfo(minus.outputs[0].aval.dtype).max)):
                yield UNDEFINED.at(
                    location,
                    f"{minus.inputs[0].called} is not masked, and only the largest that the mask keeps is subtracted "
                    "from it: where it is far above that, its exponential is infinite, and times zero it is NaN.",
                )


def _kept_in_maximum(minus: Step, origins: Origins) -> Value | None:
    """The array that masks logits for their maximum, where the maximum is subtracted from logits without a mask."""
    one, other = (origins.of(each, FLOWS) for each in minus.inputs)
    while (maker := made_by(other, _MAXIMA)) is not None:
        if maker.equation.primitive in primitives("reduce_max", "scatter_max"):
            break
        arrays = [each for each in maker.inputs if each.number is None and is_float(each)]
        if not arrays:
            return None
        other = origins.of(arrays[-1], FLOWS)
    if maker is None:
        return None
    largest = origins.of(maker.inputs[2 if maker.equation.primitive in primitives("scatter_max") else 0], FLOWS)
    made = made_by(largest, primitives("select_n", "add", "sub"))
    if made is None or one not in [origins.of(each, FLOWS) for each in made.inputs]:
        return None
    masks = [mask for mask in masks_of(largest, None, origins) if mask.number < -1e3]
    return _asked_of(masks[0].condition, origins) if len(masks) == 1 else None


def _asked_of(value: Value, origins: Origins) -> Value:
    """The array that a mask is made from by comparing it with a number, by negating it, or by taking it from one."""
    while (maker := made_by(origins.of(value, FLOWS), _ASKING)) is not None:
        arrays = [each for each in maker.inputs if each.number is None]
        if len(arrays) != 1:
            break
        (value,) = arrays
    return origins.of(value, FLOWS)


KINDS = (UNDEFINED,)
CHECKS = (undefined, shifted)
