"""Whether values get to the ends of their ranges, by what they are made of.

That a range is known to end somewhere does not say that any value is there. It is said here only of values that are
made so that they are: clipped, squared, saturated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

from lox._audit._dependence import Node, Place, upstream
from lox._audit._program import alike
from lox._audit._rules import Rules, primitives

End = Literal["low", "high"]
Reached = Callable[[Place, End, bool, int], bool]
_reached = Rules[Reached]()

_SHAPES = primitives(
    "broadcast_in_dim", "reshape", "transpose", "squeeze", "copy", "sharding_constraint", "reshard", "name"
)
_ELEMENTS = primitives("slice", "gather", "dynamic_slice", "rev", "sort", "reduce_max", "reduce_min", "stop_gradient")
_CONVERSIONS = primitives("convert_element_type", "reduce_precision")

_READS = primitives("gather")

_DEEP = 60
"""Through how many operations it is looked."""


def attains(node: Node, end: End, logarithm: bool = False, depth: int = _DEEP) -> bool:
    """Whether what a value is made of shows that it gets to an end of its range.

    Args:
        node: The value.
        end: Which end.
        logarithm: Whether it is asked for a logarithm. That has no value at zero, and is not taken of what is zero by
            chance; so what counts is what underflows or is clipped, while elsewhere what can be zero in all elements.
        depth: How far to look.
    """
    node = resolved(node)
    if is_constant(node):
        return True
    if depth == 0 or node.place is None:
        return False
    rule = _reached[node.place.step.equation.primitive]
    return rule is not None and rule(node.place, end, logarithm, depth - 1)


def resolved(node: Node) -> Node:
    """The value itself, where it is another one under another name."""
    while node.place is None and len(node.sources) == 1:
        node = node.sources[0][0]
    return node


def plain(node: Node) -> Node:
    """A value before changes of its shape and of its type."""
    node = resolved(node)
    while node.place is not None and node.place.step.equation.primitive in _SHAPES | _CONVERSIONS:
        node = resolved(node.place.inputs[0])
    return node


def end_of(node: Node, end: End) -> float:
    """An end of the range of a value."""
    return float(getattr(node.value.fact.range, end))


def _other(end: End) -> End:
    return "high" if end == "low" else "low"


def is_constant(node: Node) -> bool:
    """Whether all elements of a value are one number that is known."""
    return node.value.number is not None


def _first(place: Place, end: End, logarithm: bool, depth: int) -> bool:
    return attains(place.inputs[0], end, logarithm, depth)


for _primitive in _SHAPES | _ELEMENTS | primitives("convert_element_type", "cummax", "cummin"):
    _reached.of[_primitive] = _first


@_reached("select_n")
def _select(place: Place, end: End, logarithm: bool, depth: int) -> bool:
    which, *cases = place.inputs
    return is_constant(which) and attains(cases[int(end_of(which, "low"))], end, logarithm, depth)


@_reached("max", "min")
def _extreme(place: Place, end: End, logarithm: bool, depth: int) -> bool:
    side: End = "low" if place.step.equation.primitive in primitives("max") else "high"
    for constant, other in (place.inputs, place.inputs[::-1]):
        if is_constant(constant):
            if end != side:
                return attains(other, end, logarithm, depth) and end_of(other, end) == end_of(place.outputs[0], end)
            beyond = (
                end_of(other, end) < end_of(constant, end)
                if end == "low"
                else end_of(other, end) > end_of(constant, end)
            )
            return beyond or attains(other, end, logarithm, depth)
    return False


@_reached("clamp")
def _clamp(place: Place, end: End, logarithm: bool, depth: int) -> bool:
    low, operand, high = place.inputs
    if end == "low":
        return is_constant(low) and end_of(operand, "low") < end_of(low, "low")
    return is_constant(high) and end_of(operand, "high") > end_of(high, "high")


@_reached("abs", "square", "integer_pow")
def _even(place: Place, end: End, logarithm: bool, depth: int) -> bool:
    base = place.inputs[0]
    if place.step.equation.params.get("y", 2) % 2 or place.step.equation.params.get("y", 2) < 0:
        return False
    return _of_even(base, end, logarithm, depth)


def _of_even(base: Node, end: End, logarithm: bool, depth: int) -> bool:
    low, high = end_of(base, "low"), end_of(base, "high")
    if end == "low":
        if low < 0 < high:
            return not logarithm and _free(base, depth)
        return (low == 0 and attains(base, "low", logarithm, depth)) or (
            high == 0 and attains(base, "high", logarithm, depth)
        )
    largest: End = "high" if abs(high) >= abs(low) else "low"
    return attains(base, largest, logarithm, depth)


@_reached("mul")
def _mul(place: Place, end: End, logarithm: bool, depth: int) -> bool:
    one, two = place.inputs
    if alike(resolved(one).value, resolved(two).value):
        return _of_even(one, end, logarithm, depth)
    for constant, other in ((one, two), (two, one)):
        if is_constant(constant):
            scale = end_of(constant, "low")
            return scale != 0 and attains(other, end if scale > 0 else _other(end), logarithm, depth)
    if end == "low" and min(end_of(one, "low"), end_of(two, "low")) == 0:
        return any(end_of(each, "low") == 0 and attains(each, "low", logarithm, depth) for each in (one, two))
    return False


@_reached("div")
def _div(place: Place, end: End, logarithm: bool, depth: int) -> bool:
    over, under = place.inputs
    if is_constant(under):
        return end_of(under, "low") != 0 and attains(
            over, end if end_of(under, "low") > 0 else _other(end), logarithm, depth
        )
    return end == "low" and logarithm and is_softmax(place)


def is_softmax(place: Place) -> bool:
    """Whether an operation is the division of exponentials by their sum."""
    if place.step.equation.primitive not in primitives("div"):
        return False
    over, under = (plain(node) for node in place.inputs)
    sums = under.place is not None and under.place.step.equation.primitive in primitives("reduce_sum")
    made = over.place is not None and over.place.step.equation.primitive in primitives("exp")
    return made and sums and under.place is not None and plain(under.place.inputs[0]) is over


@_reached("neg")
def _neg(place: Place, end: End, logarithm: bool, depth: int) -> bool:
    return attains(place.inputs[0], _other(end), logarithm, depth)


@_reached("add")
def _add(place: Place, end: End, logarithm: bool, depth: int) -> bool:
    if any(is_constant(each) for each in place.inputs):
        return all(attains(each, end, logarithm, depth) for each in place.inputs)
    # Two squares are zero at once only if what is squared is free to be.
    return end == "low" and all(end_of(each, "low") == 0 and _is_free_square(each, depth) for each in place.inputs)


@_reached("sub")
def _sub(place: Place, end: End, logarithm: bool, depth: int) -> bool:
    one, two = place.inputs
    if not (is_constant(one) or is_constant(two)):
        return False
    return attains(one, end, logarithm, depth) and attains(two, _other(end), logarithm, depth)


@_reached("one_minus_square")
def _one_minus_square(place: Place, end: End, logarithm: bool, depth: int) -> bool:
    return _of_even(place.inputs[0], _other(end), logarithm, depth)


@_reached("reduce_sum")
def _sum(place: Place, end: End, logarithm: bool, depth: int) -> bool:
    return not logarithm and attains(place.inputs[0], end, False, depth)


@_reached("dot_general")
def _dot(place: Place, end: End, logarithm: bool, depth: int) -> bool:
    return end == "low" and is_square_product(place.outputs[0]) and _free(place.inputs[0], depth)


@_reached("tanh", "logistic", "sin", "cos", "erf")
def _saturating(place: Place, end: End, logarithm: bool, depth: int) -> bool:
    limits = place.inputs[0].value.fact.range
    if place.step.equation.primitive in primitives("logistic") and not logarithm:
        return False  # Only by rounding, far out.
    return math.isinf(limits.low if end == "low" else limits.high)


def is_square_product(node: Node) -> bool:
    """Whether a value is the sum of the squares of another one, by a product with itself."""
    place = plain(node).place
    if place is None or place.step.equation.primitive not in primitives("dot_general"):
        return False
    one, two = place.inputs[:2]
    (left, right), (left_batch, right_batch) = place.step.equation.params["dimension_numbers"]
    same = tuple(left) == tuple(right) and tuple(left_batch) == tuple(right_batch)
    return plain(one) is plain(two) and same and len(left) + len(left_batch) == len(one.value.shape)


_PARTS = primitives("concatenate", "stack", "pad", "dynamic_update_slice", "scatter", "scatter-add", "select_n")
_LINEAR = primitives("add", "sub", "neg", "mul", "div", "dot_general", "reduce_sum")


_ACTIVATIONS = primitives("custom_jvp_call", "max", "tanh")


def _free(node: Node, depth: int) -> bool:
    """Whether nothing about a value tells that its elements are not all zero at once."""
    node = resolved(node)
    if node.place is None or depth == 0:
        return len(node.sources) != 1 and not is_constant(node)
    primitive = node.place.step.equation.primitive
    if primitive in _SHAPES | _ELEMENTS | _CONVERSIONS:
        return _free(node.place.inputs[0], depth - 1)
    if primitive in _PARTS:
        return all(_is_linear(each, depth - 1) or each.value.number == 0 for each in node.place.inputs)
    if primitive in primitives("dot_general"):
        return not any(map(_is_hidden, node.place.inputs))
    if primitive in primitives("sub"):
        return not _are_others(*map(plain, node.place.inputs))
    return not _is_of_size_one(node.place)


def _is_hidden(node: Node) -> bool:
    """Say whether a value comes out of an activation, or is of size one: it is all zero at once by bad luck alone."""
    place = plain(node).place
    return place is not None and (place.step.equation.primitive in _ACTIVATIONS or _is_of_size_one(place))


def _is_of_size_one(place: Place) -> bool:
    """Say whether an operation divides a value by what is computed from it."""
    if place.step.equation.primitive not in primitives("div"):
        return False
    over, under = (plain(each) for each in place.inputs)
    return over in upstream([under], smoothly=False)


def _are_others(one: Node, other: Node) -> bool:
    """Say whether two values are elements of one array at different constant places, as of `jnp.triu_indices`."""
    first, second = one.place, other.place
    if first is None or second is None or any(each.step.equation.primitive not in _READS for each in (first, second)):
        return False
    if plain(first.inputs[0]) is not plain(second.inputs[0]):
        return False
    indices = [_index(each.inputs[1]) for each in (first, second)]
    return indices[0] is not indices[1] and all(map(_is_given, indices))


def _is_given(node: Node) -> bool:
    """Say whether a value is computed from constants alone."""
    ends = [each for each in upstream([node], smoothly=False) if not each.sources]
    given = (each.literal is not None or is_constant(each) or each.value.constant is not None for each in ends)
    return all(known or each.place is not None for known, each in zip(given, ends, strict=True))


def _index(node: Node) -> Node:
    """An index, before those below zero are counted from the end."""
    node = plain(node)
    is_chosen = node.place is not None and node.place.step.equation.primitive in primitives("select_n")
    return plain(node.place.inputs[1]) if node.place is not None and is_chosen else node


def _is_free_square(node: Node, depth: int) -> bool:
    node = resolved(node)
    if node.place is None or depth == 0:
        return False
    primitive, inputs = node.place.step.equation.primitive, node.place.inputs
    if primitive in _SHAPES | _ELEMENTS | _CONVERSIONS | primitives("reduce_sum"):
        return _is_free_square(inputs[0], depth - 1)
    if primitive in primitives("add"):
        return all(_is_free_square(each, depth - 1) for each in inputs)
    if primitive in primitives("mul"):
        scaled = [each for each in inputs if not is_constant(each)]
        if len(scaled) == 1:
            return _is_free_square(scaled[0], depth - 1)
        return alike(resolved(inputs[0]).value, resolved(inputs[1]).value) and _is_linear(inputs[0], depth - 1)
    return primitive in primitives("square", "integer_pow", "abs") and _is_linear(inputs[0], depth - 1)


def _is_linear(node: Node, depth: int) -> bool:
    """Whether a value is a linear function of what goes into the program, so that it is zero where that is."""
    node = resolved(node)
    if node.place is None:
        return node.literal is None and not is_constant(node)
    if depth == 0:
        return False
    primitive, inputs = node.place.step.equation.primitive, node.place.inputs
    if primitive in _SHAPES | _ELEMENTS | _CONVERSIONS:
        return _is_linear(inputs[0], depth - 1)
    if primitive in primitives("mul", "div", "dot_general"):
        return any(_is_linear(each, depth - 1) for each in inputs)
    return primitive in _LINEAR and all(_is_linear(each, depth - 1) for each in inputs)
