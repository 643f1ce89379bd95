"""Sums, means and deviations of an array that meet the array again, as in what normalizes it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from lox._audit._audited import Audited
from lox._audit._checks._axes._meaning import is_made_for
from lox._audit._findings import Finding, Held, Kind
from lox._audit._location import Location
from lox._audit._origins import LAID_OUT, axes_before
from lox._audit._program import NAMELESS, Step, Value, alike
from lox._audit._rules import primitives

TURNED = Kind(
    "LOX107",
    "warning",
    "A reduced array is broadcast against another axis",
    "Keep the axis that is reduced: x / x.sum(axis=1, keepdims=True); if it is meant, write x / x.sum(axis=1)[None].",
    "Reductions of an array meet the axes that they are of.",
    "Each difference or quotient of an array and its own reduction was traced back to the axes of the reduction.",
)
MIXED = Kind(
    "LOX108",
    "warning",
    "An array is centered over one axis and scaled over another",
    "Take the mean and the deviation over the same axis, such as x.mean(axis=0) and x.std(axis=0).",
    "Means and deviations are over the same axes.",
    "The axes of each mean that is subtracted were compared with those of the deviation that divides.",
)

_REDUCTIONS = primitives("reduce_sum", "reduce_max", "reduce_min", "reduce_prod")
_SAME = primitives(
    "copy", "convert_element_type", "reduce_precision", "stop_gradient", "sharding_constraint", "reshard", "name"
)
_ELEMENTWISE = _SAME | primitives(
    *("add", "sub", "mul", "div", "max", "min", "pow", "integer_pow", "square", "sqrt", "rsqrt", "cbrt", "abs", "neg"),
    *("exp", "exp2", "log", "log1p", "expm1", "tanh", "logistic", "select_n", "clamp"),
)
_CENTERED = primitives("sub")
_SCALED = primitives("div")
_SIZES = primitives("square", "integer_pow", "mul", "abs")

_DEEP = 40
"""Through how many operations it is looked."""


@dataclasses.dataclass(frozen=True)
class Statistic:
    """A reduction of an array, or what is made of it element by element.

    Attributes:
        arrays: The array, and what it is made of element by element.
        over: The axes of the array that it goes over.
        axes: Which axis of the array each axis is, or None.
        is_deviation: Whether it tells how far the elements are from each other.
        is_size: Whether it sums squares or sizes of the elements, as a norm does.
    """

    arrays: tuple[Value, ...]
    over: frozenset[int]
    axes: tuple[int | None, ...]
    is_deviation: bool
    is_size: bool = False


class Statistics:
    """Finds out which values are statistics of others."""

    def __init__(self, audited: Audited) -> None:
        self._origins = audited.origins
        self._known: dict[Value, Statistic | None] = {}
        self._elements: dict[Value, tuple[Value, ...]] = {}

    def of(self, value: Value, deep: int = _DEEP) -> Statistic | None:
        """What a value is a statistic of; None if it is none."""
        value = self._origins.of(value, _SAME)
        if value not in self._known:
            self._known[value] = self._made(value.maker, deep) if value.maker and deep else None
        return self._known[value]

    def elements(self, value: Value, deep: int = _DEEP) -> tuple[Value, ...]:
        """An array with what it is made of element by element, and of statistics of that, the last one first."""
        value = self._origins.of(value, _SAME)
        if value not in self._elements:
            self._elements[value] = value, *(self._before(value.maker, deep) if value.maker and deep else ())
        return self._elements[value]

    def centering(self, value: Value) -> tuple[Value, frozenset[int]] | None:
        """What an array was before a statistic of it was last subtracted, and the axes of that."""
        for each in self.elements(value):
            if each.maker is not None and each.maker.equation.primitive in _CENTERED:
                before, other = each.maker.inputs
                statistic = self.of(other)
                if statistic is not None and self._is_of(statistic, before):
                    return self._origins.of(before, _SAME), statistic.over
        return None

    def is_symmetric(self, value: Value) -> bool:
        """Say whether the rows of a matrix are its columns."""
        maker = value.maker
        if maker is None or len(maker.inputs) != 2 or len(value.shape) != 2:
            return False
        one, other = (self._origins.of(each, _SAME) for each in maker.inputs)
        if maker.equation.primitive in primitives("dot_general"):
            (left, right), _ = maker.equation.params["dimension_numbers"]
            same = tuple(left) == tuple(right)
            return one is other if same else self._is_transposed(one, other) or self._is_transposed(other, one)
        if maker.equation.primitive not in primitives("add", "mul", "max", "min"):
            return False
        return self._is_transposed(one, other) or self._is_transposed(other, one)

    def _is_transposed(self, one: Value, other: Value) -> bool:
        maker = one.maker
        return (
            maker is not None
            and maker.equation.primitive in primitives("transpose")
            and self._origins.of(maker.inputs[0], _SAME) is other
        )

    def _made(self, maker: Step, deep: int) -> Statistic | None:
        primitive, params = maker.equation.primitive, maker.equation.params
        if primitive in _REDUCTIONS:
            (array,), over = maker.inputs, frozenset(params["axes"])
            kept = tuple(axis for axis in range(len(array.shape)) if axis not in over)
            spread = self._is_spread(array, over, deep - 1)
            return Statistic(self.elements(array, deep - 1), over, kept, spread, self._sized(array) is not None)
        if primitive in LAID_OUT:
            inner = self.of(maker.inputs[0], deep - 1)
            places = axes_before(maker) if inner else None
            if inner is None or places is None:
                return None
            return dataclasses.replace(inner, axes=tuple(None if at is None else inner.axes[at] for at in places))
        if primitive not in _ELEMENTWISE:
            return None
        found = [self.of(operand, deep - 1) for operand in self._arrays(maker)]
        first = found[0] if found else None
        for other in found[1:]:
            if first is None or other is None or (other.over, other.axes) != (first.over, first.axes):
                return None
        if first is not None and len(found) > 1 and primitive in _CENTERED:
            return dataclasses.replace(first, is_deviation=True)
        return first

    def _before(self, maker: Step, deep: int) -> tuple[Value, ...]:
        """What the result of an operation is made of element by element."""
        operands = self._arrays(maker) if maker.equation.primitive in _ELEMENTWISE else []
        for other in operands[1:]:
            statistic = None if other is operands[0] else self.of(other, deep - 1)
            if other is not operands[0] and (statistic is None or not self._is_of(statistic, operands[0], deep - 1)):
                return ()
        return self.elements(operands[0], deep - 1) if operands else ()

    def _is_of(self, statistic: Statistic, array: Value, deep: int = _DEEP) -> bool:
        return not set(statistic.arrays).isdisjoint(self.elements(array, deep))

    def _is_spread(self, squares: Value, over: frozenset[int], deep: int) -> bool:
        """Say whether what is reduced is the squares, or sizes, of what differs from a statistic over the same axes."""
        sized = self._sized(squares)
        differs = None if sized is None else self._origins.of(sized, _SAME).maker
        if differs is None or differs.equation.primitive not in _CENTERED:
            return False
        statistic = self.of(differs.inputs[1], deep)
        return statistic is not None and statistic.over == over and self._is_of(statistic, differs.inputs[0], deep)

    def _sized(self, value: Value) -> Value | None:
        """The array that a value has the squares or absolute values of."""
        maker = self._origins.of(value, _SAME).maker
        if maker is None or maker.equation.primitive not in _SIZES or not alike(maker.inputs[0], maker.inputs[-1]):
            return None
        return maker.inputs[0]

    def _arrays(self, step: Step) -> list[Value]:
        """The operands of a step on elements that are arrays, and no scalar for all elements."""
        operands = [self._origins.of(value, _SAME) for value in step.inputs]
        return [value for value in operands if self._origins.of(value).shape]


def statistics(audited: Audited) -> Iterator[Finding | Held]:
    """LOX107 and LOX108: an array meets its own sum, mean or deviation, and these are of other axes."""
    known = Statistics(audited)
    for step, array, other, location in _meetings(audited):
        statistic = known.of(other) if array.shape and other.shape else None
        if step.equation.primitive not in _CENTERED | _SCALED and (statistic is None or not statistic.is_size):
            continue
        if statistic is None or set(known.elements(array)).isdisjoint(statistic.arrays):
            continue
        turned = [(at, axis) for at, axis in enumerate(statistic.axes) if axis is not None and axis != at]
        if not turned:
            yield TURNED.fine(location)
        elif is_made_for(other, step) and not any(map(known.is_symmetric, statistic.arrays)):
            at, axis = turned[0]
            yield TURNED.at(
                location,
                f"{_text(array)} meets its own reduction over {_axes(array, statistic.over)}, of which axis {axis} is "
                f"left: that meets axis {at}.",
            )
        if step.equation.primitive in _SCALED and statistic.is_deviation:
            yield from _scaled(array, statistic, known, location)


def _meetings(audited: Audited) -> Iterator[tuple[Step, Value, Value, Location]]:
    """The differences and quotients of arrays, and their products with what is the inverse of a root."""
    for step, location in audited.of("sub", "div"):
        yield step, step.inputs[0], step.inputs[1], location
    for step, location in audited.of("mul"):
        for array, other in (step.inputs, step.inputs[::-1]):
            maker = audited.origins.of(other, _SAME | LAID_OUT).maker
            if maker is not None and maker.equation.primitive in primitives("rsqrt"):
                yield step, array, other, location


def _scaled(array: Value, deviation: Statistic, known: Statistics, location: Location) -> Iterator[Finding | Held]:
    centering = known.centering(array)
    if centering is None:
        return
    before, over = centering
    elements = known.elements(array)
    centered = elements[: elements.index(before)]
    # Who takes the deviation of what is centered already does one after the other.
    if over <= deviation.over or deviation.over <= over or not set(centered).isdisjoint(deviation.arrays):
        yield MIXED.fine(location)
    else:
        yield MIXED.at(
            location,
            f"{_text(array)} is centered over {_axes(array, over)}, and divided by its deviation over "
            f"{_axes(array, deviation.over)}.",
        )


def _axes(array: Value, over: frozenset[int]) -> str:
    named = (f"{at} ({array.fact.labels[at]})" if array.fact.labels[at] else str(at) for at in sorted(over))
    return f"ax{'e' if len(over) > 1 else 'i'}s {' and '.join(named)}"


def _text(value: Value) -> str:
    return f"{'An array' if value.called == NAMELESS else value.called} of shape ({value.axes})"


KINDS = (TURNED, MIXED)
CHECKS = (statistics,)
