"""The ranges of what a branch gets, given which way its condition went: after `x > 0`, x is positive."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from lox._audit._facts import Fact, Interval
from lox._audit._program import Step, Value
from lox._audit._ranges import range_of
from lox._audit._rules import primitives

_COMPARISONS = {primitive: name for name in ("lt", "le", "gt", "ge", "eq", "ne") for primitive in primitives(name)}
_OPPOSITE = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt", "eq": "ne", "ne": "eq"}
_TURNED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq", "ne": "ne"}
_SAME = primitives("reshape", "squeeze", "broadcast_in_dim", "copy", "stop_gradient")
_DEEP = 20
"""Through how many operations it is looked."""


@dataclasses.dataclass(frozen=True)
class _Bound:
    """A comparison that holds of a value.

    Attributes:
        value: The value.
        relation: Which one, such as ``"gt"``.
        limits: The range of what it is compared with.
    """

    value: Value
    relation: str
    limits: Interval

    @property
    def range(self) -> Interval:
        """The range of the value."""
        low, high = self.value.fact.range.low, self.value.fact.range.high
        least, most = self.limits.low, self.limits.high
        if self.relation == "ne":
            is_least, is_most = low == self.limits.number, high == self.limits.number
            return Interval(
                _next(low, self.value, 1) if is_least else low, _next(high, self.value, -1) if is_most else high
            )
        if self.relation in ("gt", "ge", "eq"):
            low = max(low, _next(least, self.value, 1) if self.relation == "gt" else least)
        if self.relation in ("lt", "le", "eq"):
            high = min(high, _next(most, self.value, -1) if self.relation == "lt" else most)
        return Interval(low, high) if low <= high else self.value.fact.range


def narrowed(step: Step, branch: int, facts: Sequence[Fact]) -> list[Fact]:
    """What is known of the inputs of one of the two branches of a condition, where the condition tells more of them."""
    bounds = list(_implied(step.inputs[0], bool(branch), _DEEP)) if len(step.ports) == 2 else []
    known = {bound.value: bound.range for bound in bounds}
    if not known:
        return list(facts)
    operands = (step.inputs[port.place] for port in step.ports[branch].inputs)
    return [
        dataclasses.replace(fact, range=_within(operand, known, _DEEP))
        for operand, fact in zip(operands, facts, strict=True)
    ]


def _implied(condition: Value, truth: bool, depth: int) -> Iterator[_Bound]:
    """The comparisons that hold where a condition has this truth."""
    maker = condition.maker
    if maker is None or not depth:
        return
    primitive = maker.equation.primitive
    if (
        primitive in primitives("convert_element_type")
        and maker.inputs[0].aval.dtype == jnp.bool_
        or primitive in _SAME
    ):
        yield from _implied(maker.inputs[0], truth, depth - 1)
    elif primitive in primitives("not"):
        yield from _implied(maker.inputs[0], not truth, depth - 1)
    elif primitive in (primitives("and") if truth else primitives("or")):
        for each in maker.inputs:
            yield from _implied(each, truth, depth - 1)
    elif primitive in _COMPARISONS:
        relation = _COMPARISONS[primitive] if truth else _OPPOSITE[_COMPARISONS[primitive]]
        one, other = maker.inputs
        yield from _before(_Bound(one, relation, other.fact.range), depth - 1)
        yield from _before(_Bound(other, _TURNED[relation], one.fact.range), depth - 1)


def _before(bound: _Bound, depth: int) -> Iterator[_Bound]:
    """A comparison, and what it says of the value that its own is made of."""
    yield bound
    maker = bound.value.maker
    if maker is None or not depth:
        return
    primitive, number = maker.equation.primitive, maker.inputs[-1].number
    if primitive in _SAME or _is_exact(maker):
        yield from _before(dataclasses.replace(bound, value=maker.inputs[0]), depth - 1)
    elif primitive in primitives("add", "sub") and number is not None:
        moved = -number if primitive in primitives("add") else number
        limits = Interval(bound.limits.low + moved, bound.limits.high + moved)
        yield from _before(dataclasses.replace(bound, value=maker.inputs[0], limits=limits), depth - 1)


def _is_exact(step: Step) -> bool:
    """Say whether a step makes numbers of a type of numbers of another type that are the same ones."""
    if step.equation.primitive not in primitives("convert_element_type"):
        return False
    old, new = step.inputs[0].aval.dtype, step.outputs[0].aval.dtype
    return bool(jnp.issubdtype(new, jnp.floating)) and bool(jnp.issubdtype(old, jnp.number))


def _within(value: Value, known: dict[Value, Interval], depth: int) -> Interval:
    """The range of a value, given those of some."""
    if value in known:
        return known[value]
    maker = value.maker
    if maker is None or not depth or maker.blocks or len(maker.outputs) != 1:
        return value.fact.range
    ranges = [_within(each, known, depth - 1) for each in maker.inputs]
    if ranges == [each.fact.range for each in maker.inputs]:
        return value.fact.range
    inputs = (
        dataclasses.replace(each, fact=Fact(each.fact.labels, found))
        for each, found in zip(maker.inputs, ranges, strict=True)
    )
    (found,) = range_of(dataclasses.replace(maker, inputs=tuple(inputs)))
    return found


def _next(number: float, value: Value, towards: int) -> float:
    """The number of the type of a value that comes after another one."""
    dtype: Any = value.aval.dtype
    if jnp.issubdtype(dtype, jnp.integer):
        return number + towards
    if not jnp.issubdtype(dtype, jnp.floating) or np.isinf(number):
        return number
    return float(np.nextafter(np.asarray(number, dtype), np.asarray(towards * np.inf, dtype)))
