"""Proposals that are accepted by chance: on which scale the number is that is drawn for it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from lox._audit._audited import Audited
from lox._audit._facts import Interval
from lox._audit._findings import Finding, Held, Kind
from lox._audit._location import is_users, transformations
from lox._audit._origins import FLOWS
from lox._audit._program import Step, Value, is_call
from lox._audit._rules import primitives
from lox._audit._worklist import Worklist

ACCEPTED = Kind(
    "LOX710",
    "warning",
    "A proposal is accepted by a number that is drawn on another scale than the ratio",
    "Compare a difference of log densities with the logarithm of a uniform number: "
    "jnp.log(jax.random.uniform(key)) < log_ratio, or -jax.random.exponential(key) < log_ratio.",
    "Proposals are accepted by a number on the scale of the ratio.",
    "The range of what is drawn was compared with what it is compared to.",
)

_GREATER, _LESS = primitives("gt", "ge"), primitives("lt", "le")
_DRAWING = primitives("neg", "log", "log1p", "sub", "mul", "add", "max", "or", "shift_right_logical", "div")
_THROUGH = FLOWS | primitives("bitcast_convert_type")
_BITS = primitives("random_bits")
_ASKED = FLOWS | primitives("and", "or")
_CHOOSING = primitives("select_n")
_MOST, _TERMS, _SHORT = 200, 16, 8


def accepted(audited: Audited) -> Iterator[Finding | Held]:
    """LOX710: a difference of a function at a proposal and at where it is from is compared with what is never below it.

    A difference of log densities is compared with the logarithm of a uniform number, which is negative; one of
    energies with its negative.
    """
    if not audited.has("random_bits") or not audited.has("select_n"):
        return
    for step, location in audited.of("gt", "ge", "lt", "le"):
        if not is_users(location.of_user.file) or {"jvp", "transpose"} & set(transformations(step.equation)):
            continue
        for ratio, drawn in (step.inputs, step.inputs[::-1]):
            limits = _limits(drawn)
            is_sided = limits.low >= 0 or limits.high <= 0
            if not is_sided or drawn.number is not None or not _is_drawn(audited, drawn):
                continue
            is_less = (step.equation.primitive in _LESS) is (ratio is step.inputs[0])
            takes = _takes_proposal(audited, step)
            if takes is None or not _is_difference(audited, ratio):
                continue
            if limits.low >= 0 and is_less is not takes or limits.high <= 0 and is_less is takes:
                what = "never negative" if limits.low >= 0 else "never positive"
                yield ACCEPTED.at(
                    location,
                    f"{ratio.called} is the difference of one function at a proposal and at where it is from, and is "
                    f"compared with a number that is drawn and {what}: a proposal is not accepted by the ratio of the "
                    "two densities.",
                )
            else:
                yield ACCEPTED.fine(location)


def _limits(value: Value) -> Interval:
    """The range of a value; of a logarithm of uniform numbers below one, what is not positive."""
    limits = value.fact.range
    value, maker = _plain(value)
    if maker is None or limits.low >= 0 or limits.high <= 0:
        return limits
    if maker.equation.primitive in primitives("neg"):
        below = _limits(maker.inputs[0])
        return Interval(-below.high, -below.low)
    if maker.equation.primitive in primitives("log"):
        _, uniform = _plain(maker.inputs[0])
        is_uniform = uniform is not None and uniform.equation.params.get("name") == "_uniform"
        if uniform is not None and is_uniform and (uniform.inputs[-1].number or math.inf) <= 1:
            return Interval(-math.inf, 0)
    return limits


def _is_drawn(audited: Audited, value: Value) -> bool:
    return audited.origins.leads_to(value, _BITS, _DRAWING, _THROUGH)


def _takes_proposal(audited: Audited, step: Step) -> bool | None:
    """Whether jnp.where takes a proposal if a comparison is true, or False if it is false; None if it takes none."""
    for asked, other, taken in audited.once(_choices):
        left = [asked]
        for _ in range(_TERMS):
            maker = left.pop().maker if left else None
            if maker is step:
                if _depends(audited, taken, other):
                    return True
                if _depends(audited, other, taken):
                    return False
            left += maker.inputs if maker is not None and maker.equation.primitive in _ASKED else ()
    return None


def _choices(audited: Audited) -> list[tuple[Value, Value, Value]]:
    """By what each jnp.where of a program chooses, and what it takes where that is false, and true."""
    found: list[tuple[Value, Value, Value]] = []
    for step, _ in audited.steps:
        if step.equation.primitive in _CHOOSING and len(step.inputs) == 3:
            asked, other, taken = step.inputs
            found.append((asked, other, taken))
        elif is_call(step) and len(step.blocks[0].steps) < _SHORT:
            outside = dict(zip(step.blocks[0].inputs, step.inputs, strict=True))
            for inner in step.blocks[0].steps:
                given = [outside[plain] for each in inner.inputs if (plain := _plain(each)[0]) in outside]
                if inner.equation.primitive in _CHOOSING and len(given) == len(inner.inputs) == 3:
                    found.append((given[0], given[1], given[2]))
    return found


def _depends(audited: Audited, value: Value, on: Value) -> bool:
    on = audited.origins.of(on, FLOWS)
    before = Worklist([audited.origins.of(value, FLOWS)], _MOST)
    for each in before:
        if each is on:
            return value is not on
        before.add(audited.origins.of(source, FLOWS) for source in (each.maker.inputs if each.maker else ()))
    return False


def _is_difference(audited: Audited, value: Value) -> bool:
    """Say whether two results of the same function are in a value, with opposite signs."""
    signs: dict[Any, dict[Value, int]] = {}
    found, left = dict[Value, int](), [(value, 1)]
    for _ in range(_TERMS):
        if not left:
            break
        each, sign = left.pop()
        each, maker = _plain(each)
        found[each] = sign
        if maker is None:
            continue
        primitive = maker.equation.primitive
        if primitive in primitives("add", "sub"):
            signs_of = (1, -1 if primitive in primitives("sub") else 1)
            left += [(part, sign * own) for part, own in zip(maker.inputs, signs_of, strict=True)]
            known = signs.setdefault(_written(audited, maker), {})  # As a sum is what a function may return.
            known[each] = sign
        elif primitive in primitives("neg", "min"):
            turned = -sign if primitive in primitives("neg") else sign
            left += [(part, turned) for part in maker.inputs if part.number is None]
        elif primitive in primitives("mul", "div"):
            factors = [part for part in maker.inputs if part.number is None]
            number = math.prod(part.number for part in maker.inputs if part.number is not None)
            signs.setdefault(_written(audited, maker), {})[each] = sign
            factors = factors[:1] if primitive in primitives("div") else factors
            left += [(part, sign if number > 0 else -sign) for part in factors]
        else:
            signs.setdefault(_written(audited, maker), {})[each] = sign
    if any({*each.values()} == {1, -1} for each in signs.values()):
        return True
    kept = [each for each in found if each.maker is None]  # What is carried of the place that a proposal is from.
    cases = ({_plain(each)[0] for each in choice[1:]} for choice in audited.once(_choices))
    return any(sorted(found.get(each, 0) for each in both) == [-1, 1] and not both.isdisjoint(kept) for both in cases)


def _plain(value: Value) -> tuple[Value, Step | None]:
    while value.maker is not None and value.maker.equation.primitive in FLOWS:
        value = value.maker.inputs[0]
    return value, value.maker


def _written(audited: Audited, maker: Step) -> Any:
    """The line and the operation of a step, which are the same in each call of a function."""
    location = audited.lines[maker]
    return (*maker.blocks, is_call(maker), maker.equation.primitive, location.file, location.line, location.column)


KINDS = (ACCEPTED,)
CHECKS = (accepted,)
