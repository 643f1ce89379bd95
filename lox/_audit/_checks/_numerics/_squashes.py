"""Softmax, sigmoid and what takes logits as they do, with the logits that each one takes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Literal

from lox._audit._audited import Audited
from lox._audit._checks._numerics._exponentials import (
    SCALING,
    exponents_of_softmax,
    exponents_of_sum,
    made_by,
    without_constants,
)
from lox._audit._checks._numerics._integers import is_float
from lox._audit._location import Location, call
from lox._audit._origins import FLOWS, Origins
from lox._audit._program import Step, Value
from lox._audit._rules import primitives
from lox._compat import _tracebacks as tracebacks

Name = Literal["softmax", "sigmoid", "log_softmax", "log_sigmoid", "categorical", "gumbel"]

_SIGNS = FLOWS | primitives("abs", "neg")


@dataclasses.dataclass(frozen=True, eq=False)
class Squash:
    """A function of logits.

    Attributes:
        name: The function.
        step: The last operation of it that was followed.
        location: Where it is.
        logits: What it takes, before any maximum is subtracted.
        axes: The axes of the logits that a softmax normalizes over; of what takes each logit by itself, none.
        is_shifted: Whether the maximum itself is subtracted, so that logits that are all -inf become NaN.
    """

    name: Name
    step: Step
    location: Location
    logits: Value
    axes: tuple[int, ...] = ()
    is_shifted: bool = False


def squashes(audited: Audited) -> dict[Step, Squash]:
    """The functions of logits in a program, by their step."""
    return {found.step: found for found in _squashes(audited)}


def _squashes(audited: Audited) -> Iterator[Squash]:
    origins = audited.origins
    for step, location in audited.of("logistic"):
        yield Squash("sigmoid", step, location, step.inputs[0])
    for step, location in audited.of("div"):
        exponents = exponents_of_softmax(step, origins)
        if exponents is not None:
            yield _normalized("softmax", step, location, step.inputs[1], exponents, origins)
        elif (logits := _logits_of_quotient(step, origins)) is not None:
            yield Squash("sigmoid", step, location, logits)
    found: dict[Step, Squash] = {}
    for step, location in audited.of("log"):
        exponents = exponents_of_sum(_total(step.inputs[0], origins), origins)
        if exponents is not None:
            found[step] = _normalized("log_softmax", step, location, step.inputs[0], exponents, origins)
    yield from found.values()
    for step, location in audited.of("exp"):
        normalized = _logarithm_of_softmax(step, found, origins)
        if normalized is not None:
            yield dataclasses.replace(normalized, name="softmax", step=step, location=location)
    for step, location in audited.of("log1p"):
        powers = made_by(origins.of(step.inputs[0], FLOWS), primitives("exp"))
        if powers is not None:
            logits = origins.of(powers.inputs[0], _SIGNS)
            minus = made_by(logits, primitives("sub"))
            yield Squash("log_sigmoid", step, location, logits if minus is None else _without_zero(minus))
    for step, location in audited.of("argmax"):
        added = made_by(origins.of(step.inputs[0], FLOWS), primitives("add"))
        if added is None:
            continue
        is_noise = [is_gumbel(each, origins) for each in added.inputs]
        if not tracebacks.TAKING_LOGITS.isdisjoint(call(step.equation)[1:]):
            yield Squash("categorical", step, location, added.inputs[1], tuple(step.equation.params["axes"]))
        elif sum(is_noise) == 1:
            logits = added.inputs[is_noise.index(False)]
            yield Squash("gumbel", step, location, logits, tuple(step.equation.params["axes"]))


def is_gumbel(value: Value, origins: Origins) -> bool:
    """Say whether a value is the negated logarithm of a negated logarithm, which is noise that chooses by logits."""
    for _ in range(2):
        minus = made_by(origins.of(value, FLOWS), primitives("neg"))
        logarithm = (
            made_by(origins.of(minus.inputs[0], FLOWS), primitives("log", "log1p")) if minus is not None else None
        )
        if logarithm is None:
            return False
        value = logarithm.inputs[0]
    return True


def _logits_of_quotient(step: Step, origins: Origins) -> Value | None:
    """The x of 1 / (1 + exp(-x)), if a step is that."""
    total = made_by(origins.of(step.inputs[1], FLOWS), primitives("add")) if step.inputs[0].number == 1 else None
    others = [each for each in total.inputs if each.number != 1] if total is not None else []
    powers = made_by(origins.of(others[0], FLOWS), primitives("exp")) if len(others) == 1 else None
    minus = made_by(origins.of(powers.inputs[0], FLOWS), primitives("neg")) if powers is not None else None
    return None if minus is None else minus.inputs[0]


def _normalized(name: Name, step: Step, location: Location, over: Value, exponents: Value, origins: Origins) -> Squash:
    total = made_by(_total(over, origins), primitives("reduce_sum"))
    minus = made_by(origins.of(exponents, FLOWS), primitives("sub"))
    logits, is_shifted = exponents, False
    if minus is not None:
        largest, is_guarded = _largest(minus.inputs[1], origins)
        if largest is not None and origins.of(largest.inputs[0], FLOWS) is origins.of(minus.inputs[0], FLOWS):
            logits, is_shifted = minus.inputs[0], not is_guarded
    alike = total is not None and total.inputs[0].shape == logits.shape
    axes = tuple(total.equation.params["axes"]) if total is not None and alike else ()
    return Squash(name, step, location, logits, axes, is_shifted)


def _logarithm_of_softmax(step: Step, found: dict[Step, Squash], origins: Origins) -> Squash | None:
    """The logarithm of a sum, if a step is the exponential of the same logits from which that was subtracted."""
    minus = made_by(origins.of(step.inputs[0], FLOWS), primitives("sub"))
    if minus is None:
        return None
    logits, total = (origins.of(each, FLOWS) for each in minus.inputs)
    added = made_by(total, primitives("add"))  # The maximum, which jax.nn.logsumexp adds again.
    for part in (total, *(added.inputs if added is not None else ())):
        squash = found.get(origins.of(part, FLOWS).maker)  # type: ignore[arg-type]
        if squash is None or not squash.axes:
            continue
        shifted = made_by(logits, primitives("sub")) if part is total else None
        before = logits if shifted is None else origins.of(shifted.inputs[0], FLOWS)
        if before is origins.of(squash.logits, FLOWS):
            return squash
    return None


def _total(value: Value, origins: Origins) -> Value:
    """The sum that a value is, before constants are added or it is scaled."""
    return without_constants(origins.of(value, _SIGNS), origins, SCALING)


def _largest(value: Value, origins: Origins) -> tuple[Step | None, bool]:
    """The maximum that a value is, and whether something else is taken where that is infinite."""
    is_guarded = False
    while True:
        maker = origins.of(value, FLOWS).maker
        if maker is None or maker.equation.primitive in primitives("reduce_max"):
            return maker, is_guarded
        if maker.equation.primitive not in primitives("max", "select_n"):
            return None, is_guarded
        arrays = [each for each in maker.inputs if each.fact.range.low < each.fact.range.high and is_float(each)]
        if not arrays:
            return None, is_guarded
        is_guarded |= any(each.fact.range.low > -math.inf for each in maker.inputs if each not in arrays)
        value = arrays[-1]


def _without_zero(minus: Step) -> Value:
    """What zero is subtracted from, as log(1 + exp(x)) is computed as log(exp(x) + exp(0))."""
    value, zero = minus.inputs
    return value if zero.number == 0 else minus.outputs[0]
