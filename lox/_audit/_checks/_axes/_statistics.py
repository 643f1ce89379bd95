"""Sums, means and deviations of an array that meet the array again, as in what normalizes it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from lox._audit._audited import Audited
from lox._audit._checks._axes._meaning import is_made_for
from lox._audit._findings import Finding, Held, Kind
from lox._audit._origins import LAID_OUT, Origins, axes_before
from lox._audit._program import Step, Value
from lox._audit._rules import primitives

TURNED = Kind(
    "LOX107",
    "warning",
    "What is left of an array after a reduction meets another axis of it",
    "Keep the axis that is reduced: x / x.sum(axis=1, keepdims=True); if it is meant, write x / x.sum(axis=1)[None].",
    "Reductions of an array meet the axes that they are of.",
)
MIXED = Kind(
    "LOX108",
    "warning",
    "An array is centered over one axis and scaled over another",
    "Take the mean and the deviation over the same axis, such as x.mean(axis=0) and x.std(axis=0).",
    "Means and deviations are over the same axes.",
)

_REDUCTIONS = primitives("reduce_sum", "reduce_max", "reduce_min", "reduce_prod")
_SAME = primitives("copy", "convert_element_type", "reduce_precision", "stop_gradient", "sharding_constraint", "name")
_ELEMENTWISE = _SAME | primitives(
    *("add", "sub", "mul", "div", "max", "min", "pow", "integer_pow", "square", "sqrt", "rsqrt", "cbrt", "abs", "neg"),
    *("exp", "exp2", "log", "log1p", "expm1", "tanh", "logistic", "select_n", "clamp"),
)
_CENTERED = primitives("sub")
_SCALED = primitives("div")

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
    """

    arrays: tuple[Value, ...]
    over: frozenset[int]
    axes: tuple[int | None, ...]
    is_deviation: bool


class Statistics:
    """Finds out which values are statistics of others."""

    def __init__(self, audited: Audited) -> None:
        self._origins = Origins(audited.steps)
        self._known: dict[Value, Statistic | None] = {}

    def of(self, value: Value, deep: int = _DEEP) -> Statistic | None:
        """What a value is a statistic of; None if it is none."""
        value = self._origins.of(value, _SAME)
        if value not in self._known:
            self._known[value] = self._made(value, value.maker, deep) if value.maker and deep else None
        return self._known[value]

    def _made(self, value: Value, maker: Step, deep: int) -> Statistic | None:
        primitive, params = maker.equation.primitive, maker.equation.params
        if primitive in _REDUCTIONS:
            (array,), over = maker.inputs, frozenset(params["axes"])
            arrays, centered_over = self.elements(array, deep - 1)
            kept = tuple(axis for axis in range(len(array.shape)) if axis not in over)
            return Statistic(arrays, over, kept, over in centered_over)
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

    def elements(self, value: Value, deep: int = _DEEP) -> tuple[tuple[Value, ...], set[frozenset[int]]]:
        """An array with what it is made of element by element, and over which axes it was centered on the way."""
        found, centered = [self._origins.of(value, _SAME)], set()
        for left in range(deep, 0, -1):
            maker = found[-1].maker
            if maker is None or maker.equation.primitive not in _ELEMENTWISE:
                break
            operands = self._arrays(maker)
            statistics = [self.of(other, left - 1) for other in operands[1:] if other is not operands[0]]
            if not operands or None in statistics:
                break
            if maker.equation.primitive in _CENTERED:
                centered |= {statistic.over for statistic in statistics if statistic}
            found.append(operands[0])
        return tuple(found), centered

    def _arrays(self, step: Step) -> list[Value]:
        """The operands of a step on elements that are arrays, and no scalar for all elements."""
        operands = [self._origins.of(value, _SAME) for value in step.inputs]
        return [value for value in operands if self._origins.of(value).shape]


def statistics(audited: Audited) -> Iterator[Finding | Held]:
    """LOX107 and LOX108: an array meets its own sum, mean or deviation, and these are of other axes."""
    known = Statistics(audited)
    for step, location in audited.of("sub", "div"):
        array, other = step.inputs
        statistic = known.of(other) if array.shape and other.shape else None
        if statistic is None or set(known.elements(array)[0]).isdisjoint(statistic.arrays):
            continue
        turned = [(at, axis) for at, axis in enumerate(statistic.axes) if axis is not None and axis != at]
        if turned and is_made_for(other, step):
            at, axis = turned[0]
            yield TURNED.at(
                location,
                f"{_text(array)} meets its own reduction over {_axes(array, statistic.over)}, of which axis {axis} is "
                f"left: that meets axis {at}.",
            )
        elif not turned:
            yield TURNED.fine(location)
        if step.equation.primitive in _SCALED and statistic.is_deviation:
            yield from _scaled(step, statistic, known, audited)


def _scaled(step: Step, deviation: Statistic, known: Statistics, audited: Audited) -> Iterator[Finding | Held]:
    array, location = step.inputs[0], audited.lines[step]
    _, centered = known.elements(array)
    for over in centered:
        if over <= deviation.over or deviation.over <= over:
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
    return f"{value.name or 'An array'} of shape ({value.axes})"


KINDS = (TURNED, MIXED)
CHECKS = (statistics,)
