"""Exponentials that become infinite, or logarithms of what became zero, where a function of JAX would not."""

from __future__ import annotations

import math
from collections.abc import Iterator, Set
from typing import Any

import jax

from lox._audit._audited import Audited
from lox._audit._findings import Finding, Held, Kind
from lox._audit._origins import FLOWS, Origins
from lox._audit._program import Step, Value, alike, is_call
from lox._audit._rules import primitives

SOFTMAX = Kind(
    "LOX810",
    "warning",
    "A softmax that overflows",
    "Use jax.nn.softmax, which subtracts the largest one before.",
    "Exponentials that are normalized cannot overflow.",
    "Each normalized exponential was followed back to whether a maximum is subtracted or its interval is bounded.",
)
LOGSUMEXP = Kind(
    "LOX811",
    "warning",
    "A logarithm of exponentials that overflow, or that are all zero",
    "Use jax.nn.logsumexp for a sum, jax.nn.softplus for log(1 + exp(x)), and jax.nn.log_softmax for the logarithm "
    "of a softmax.",
    "Exponentials whose logarithm is taken cannot overflow.",
    "Each logarithm of a sum of exponentials was followed back to whether a maximum is subtracted or its interval is "
    "bounded.",
)
LOG_OF_SOFTMAX = Kind(
    "LOX812",
    "warning",
    "The logarithm of a softmax, which may be zero",
    "Use jax.nn.log_softmax of the logits.",
)

_EXP, _SUM, _DIV = (primitives(name) for name in ("exp", "reduce_sum", "div"))
_LOG = primitives("log", "log2")
_LOGARITHMS = primitives("log", "log2", "log1p")
_NEGATED = FLOWS | primitives("neg")
SCALING = primitives("add", "mul", "div", "max")
_ELEMENTWISE = FLOWS | primitives("mul", "div", "neg", "select_n", "add", "min", "max", "slice", "concatenate", "pad")
PARTS = primitives("gather", "slice", "dynamic_slice")
_TAKEN_ALONG = FLOWS | primitives("mul", "neg", "add", "sub", "dot_general")
_COMPARED = primitives("lt", "le", "gt", "ge")
_SHIFTS = primitives("sub", "reduce_max", "reduce_min")
_SCALED = primitives("mul", "div")
_MOST = 300
"""At how many values is looked."""


def normalized(audited: Audited) -> Iterator[Finding | Held]:
    """LOX810: exponentials of numbers without a bound are divided by their sum."""
    origins = audited.origins
    for step, location in audited.steps:
        exponents = exponents_of_softmax(step, origins)
        if exponents is None:
            continue
        if _overflows(exponents, origins):
            yield SOFTMAX.at(location, f"exp(x) / sum(exp(x)) is NaN where x {_from(exponents)}.")
        else:
            yield SOFTMAX.fine(location)


def logarithms(audited: Audited) -> Iterator[Finding | Held]:
    """LOX811: the logarithm of a sum of exponentials of numbers without a bound."""
    origins = audited.origins
    choosing = audited.once(chosen_from)
    for step, location in audited.steps:
        written = _exponents_of_logarithm(step, origins)
        if written is None:
            continue
        name, exponents = written
        if step.outputs[0] in choosing:
            yield LOGSUMEXP.fine(location)
        elif _overflows(exponents, origins):
            yield LOGSUMEXP.at(location, f"{name} is infinite where x {_from(exponents)}.")
        elif _is_of_nothing_else(step, origins) and _is_minus_square(exponents, origins):
            least = f"{_least(exponents):.4g}"
            yield LOGSUMEXP.at(location, f"{name} is -inf, and its derivative NaN, where each x is below {least}.")
        else:
            yield LOGSUMEXP.fine(location)


def logarithm_of_softmax(audited: Audited) -> Iterator[Finding | Held]:
    """LOX812: the logarithm of a softmax, with nothing added."""
    origins = audited.origins
    choosing = audited.once(chosen_from)
    for step, location in audited.steps:
        if step.equation.primitive in _LOG and step.outputs[0] in audited.live and step.outputs[0] not in choosing:
            inside = origins.of(step.inputs[0], FLOWS | PARTS).maker
            if inside is not None and _is_of_softmax(inside, origins):
                yield LOG_OF_SOFTMAX.at(
                    location,
                    "log(softmax(x)) is -inf, and its derivative NaN, where x is so far below the largest that its "
                    "exponential is zero.",
                )


def _is_of_softmax(step: Step, origins: Origins) -> bool:
    """Say whether a step makes a softmax, or divides by or with one."""
    if exponents_of_softmax(step, origins) is not None:
        return True
    sides = [origins.of(each, FLOWS | PARTS).maker for each in step.inputs] if step.equation.primitive in _DIV else []
    return any(side is not None and exponents_of_softmax(side, origins) is not None for side in sides)


def exponents_of_softmax(step: Step, origins: Origins) -> Value | None:
    """What is exponentiated, if a step divides exponentials by their sum."""
    if step.equation.primitive not in _DIV:
        return None
    one, total = (origins.of(value, FLOWS) for value in step.inputs)
    if not made_by(total, _SUM):
        total = without_constants(total, origins, primitives("add", "max"))
    exponents, others = _exponents(one, origins), exponents_of_sum(total, origins)
    return exponents if exponents is others else None


def _exponents_of_logarithm(step: Step, origins: Origins) -> tuple[str, Value] | None:
    """How the logarithm of a sum of exponentials is written, if a step is one, and what is exponentiated."""
    one_more = step.equation.primitive in primitives("log1p")
    if step.equation.primitive not in _LOG and not one_more:
        return None
    inside = origins.of(step.inputs[0], FLOWS)
    added = inside if one_more else without_constants(inside, origins, primitives("add"))
    exponents = _exponents(added, origins) if one_more or added is not inside else None
    if exponents is not None:
        return "log(1 + exp(x))", exponents
    exponents = exponents_of_sum(without_constants(inside, origins, SCALING), origins)
    return None if exponents is None else ("log(sum(exp(x)))", exponents)


def _exponents(value: Value, origins: Origins) -> Value | None:
    """What is exponentiated, if a value is exponentials."""
    exp = made_by(value, _EXP)
    return None if exp is None else origins.of(exp.inputs[0])


def exponents_of_sum(value: Value, origins: Origins) -> Value | None:
    """What is exponentiated, if a value is a sum of exponentials."""
    total = made_by(value, _SUM)
    return None if total is None else _exponents(origins.of(total.inputs[0], FLOWS), origins)


def without_constants(value: Value, origins: Origins, through: Set[Any]) -> Value:
    """The value before these operations with constants."""
    while (maker := made_by(value, through)) is not None:
        arrays = [each for each in maker.inputs if each.fact.range.low < each.fact.range.high]
        if len(arrays) != 1 or (maker.equation.primitive in _DIV and arrays[0] is not maker.inputs[0]):
            return value
        value = origins.of(arrays[0], FLOWS)
    return value


def made_by(value: Value, among: Set[Any]) -> Step | None:
    """The step that a value comes out of, if it is of one of these primitives."""
    return value.maker if value.maker is not None and value.maker.equation.primitive in among else None


def _overflows(exponents: Value, origins: Origins) -> bool:
    """Whether nothing bounds what is exponentiated: neither its range, nor that something was subtracted from it."""
    if _most(exponents, origins) < _largest(exponents):
        return False
    seen: set[Value] = set()
    waiting = [exponents]
    while waiting and len(seen) < 100:
        value = origins.of(waiting.pop(), FLOWS)
        if value in seen or value.maker is None:
            continue
        seen.add(value)
        if value.maker.equation.primitive in _SHIFTS or value.maker.blocks:
            return False
        if value.maker.equation.primitive in _ELEMENTWISE:
            waiting += value.maker.inputs
    return True


def _is_of_nothing_else(step: Step, origins: Origins) -> bool:
    """Whether a step is log(sum(exp(x))), perhaps of a scaled sum, with nothing added to the sum."""
    inside = without_constants(origins.of(step.inputs[0], FLOWS), origins, primitives("mul", "div"))
    return step.equation.primitive in _LOG and made_by(inside, _SUM) is not None


def _is_minus_square(exponents: Value, origins: Origins) -> bool:
    """Whether exponents have terms such as -(y**2) without a lower bound, and no other term is computed from these."""
    least = _least(exponents)
    if exponents.fact.range.low >= least:
        return False
    terms = [*_terms(exponents, origins)]
    squares = {
        value for value, sign in terms if sign < 0 and _is_square(value.maker) and value.fact.range.high > -least
    }
    others = [value for value, _ in terms if value not in squares]
    return bool(squares) and not any(_depends(each, squares, origins) for each in others)


def _terms(value: Value, origins: Origins) -> Iterator[tuple[Value, int]]:
    """The terms of a sum, each with its sign; numbers that multiply them are left out."""
    waiting = [(value, 1)]
    for _ in range(_MOST):
        if not waiting:
            return
        value, sign = waiting.pop()
        value = origins.of(value, FLOWS)
        maker = value.maker
        primitive = maker.equation.primitive if maker is not None else None
        unknown = [each for each in maker.inputs if each.number is None] if maker is not None else []
        if maker is not None and primitive in primitives("add", "reduce_sum"):
            waiting += [(each, sign) for each in maker.inputs]
        elif maker is not None and primitive in primitives("sub", "neg"):
            *first, last = maker.inputs
            waiting += [*((each, sign) for each in first), (last, -sign)]
        elif maker is not None and primitive in _SCALED and len(unknown) == 1 and unknown[0].shape == value.shape:
            numbers = [each.number or 0 for each in maker.inputs if each is not unknown[0]]
            waiting.append((unknown[0], -sign if numbers[0] < 0 else sign))
        else:
            yield value, sign
    yield from waiting


def _is_square(maker: Step | None) -> bool:
    if maker is None:
        return False
    if maker.equation.primitive in primitives("mul"):
        return alike(*maker.inputs)
    return maker.equation.primitive in primitives("square", "integer_pow") and maker.equation.params.get("y", 2) == 2


def _depends(value: Value, on: Set[Value], origins: Origins) -> bool:
    """Whether a value may depend on others: True as well where it comes out of a loop, or of too many operations."""
    waiting, seen = [value], set[Value]()
    while waiting:
        value = origins.of(waiting.pop(), FLOWS, loops=True)
        if value in on or value in origins.inputs or len(seen) > _MOST:
            return True
        if value not in seen and value.maker is not None:
            if value.maker.blocks:
                return True
            seen.add(value)
            waiting += value.maker.inputs
    return False


def _most(value: Value, origins: Origins) -> float:
    """The greatest number that a value may be, also where it is chosen by a comparison, as -|x| is by x's sign."""
    choice, known = made_by(value, primitives("select_n")), value.fact.range.high
    asked = made_by(origins.of(choice.inputs[0], FLOWS), _COMPARED) if choice is not None else None
    if choice is None or asked is None or len(choice.inputs) != 3:
        return known
    one, other = (origins.of(side, FLOWS) for side in asked.inputs)
    greater, less = (other, one) if asked.equation.primitive in primitives("lt", "le") else (one, other)
    otherwise, then = (origins.of(case, FLOWS) for case in choice.inputs[1:])
    mosts = _most_beside(otherwise, less, greater, origins), _most_beside(then, greater, less, origins)
    return min(known, max(mosts))


def _most_beside(value: Value, greater: Value, less: Value, origins: Origins) -> float:
    """The greatest number that a value may be where one number is greater than another."""
    known, negated = value.fact.range.high, made_by(value, primitives("neg"))
    if value is less:
        return min(known, greater.fact.range.high)
    if negated is not None and origins.of(negated.inputs[0], FLOWS) is greater:
        return min(known, -less.fact.range.low)
    return known


def _largest(exponents: Value) -> float:
    """The number above which the exponential is infinite."""
    return math.log(float(jax.dtypes.finfo(exponents.aval.dtype).max))


def _least(exponents: Value) -> float:
    """The number below which the exponential is zero."""
    return math.log(float(jax.dtypes.finfo(exponents.aval.dtype).smallest_subnormal))


def _from(exponents: Value) -> str:
    return f"of {exponents.aval.dtype} is above {_largest(exponents):.4g}"


def chosen_from(audited: Audited) -> set[Value]:
    """The values of which an operation chooses elements: where they are infinite, others may be chosen."""
    chosen: set[Value] = set()
    outside: dict[Value, Value] = {}
    for step, _ in audited.steps:
        if is_call(step):
            outside.update(zip(step.blocks[0].outputs, step.outputs, strict=True))
    for step, _ in (*reversed(audited.steps), *reversed(audited.steps)):  # What several calls run is there once.
        chosen.update(value for value in step.outputs if _outermost(value, outside) in chosen)
        if step.equation.primitive in primitives("select_n"):
            if not all(made_by(audited.origins.of(case, _NEGATED), _LOGARITHMS) for case in step.inputs[1:]):
                chosen.update(step.inputs[1:])
        elif step.equation.primitive in primitives("argmax") or (
            step.equation.primitive in _TAKEN_ALONG and step.outputs[0] in chosen
        ):
            chosen.update(step.inputs)
        for block in step.blocks:
            of = zip(block.inputs, step.inputs, strict=False) if len(step.blocks) == 1 else ()
            chosen.update(outer for inner, outer in of if inner in chosen)
    return chosen


def _outermost(value: Value, outside: dict[Value, Value]) -> Value:
    while value in outside:
        value = outside[value]
    return value


KINDS = (SOFTMAX, LOGSUMEXP, LOG_OF_SOFTMAX)
CHECKS = (normalized, logarithms, logarithm_of_softmax)
