"""Loops that divide by zero while their counter is zero."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from lox._audit._audited import Audited
from lox._audit._findings import Finding, Held, Kind
from lox._audit._forward import Forward
from lox._audit._location import is_users, transformations
from lox._audit._loops import Scan, is_called, scans
from lox._audit._needs import read
from lox._audit._origins import PASSING
from lox._audit._program import Block, Step, Value
from lox._audit._rules import primitives
from lox._audit._worklist import Worklist

DIVIDED = Kind(
    "LOX213",
    "warning",
    "A loop divides by zero in its first iteration",
    "Count from 1 in what is divided by, such as m / (1 - b1 ** (i + 1)) of a step i that counts from 0, or let the "
    "loop begin at 1.",
    "Loops that count from zero do not divide by zero.",
    "The body of each loop was evaluated with what it counts and carries in its first iteration.",
)

_BROKEN = math.inf
"""Instead of a number: infinite or NaN, since something was divided by zero."""

Number = float | None
_PASSING = PASSING | primitives("convert_element_type")
_DIVISIONS = primitives("div", "rsqrt", "pow", "integer_pow")
_CLEARING = primitives("select_n", "is_finite", "ne", "max", "min", "clamp", "tanh", "logistic", "exp")
"""Operations that may remove or limit an infinite value or a NaN."""
_MOST = 20
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "pow": np.power,
    "max": np.maximum,
    "min": np.minimum,
    "neg": np.negative,
    "abs": np.abs,
    "sqrt": np.sqrt,
    "exp": np.exp,
    "square": np.square,
    "rsqrt": lambda number: number**-0.5,
}
_COMPUTED = {primitive: function for name, function in _FUNCTIONS.items() for primitive in primitives(name)}
_KEEP = {
    **dict.fromkeys(primitives("add", "sub", "mul"), (0, 1)),
    **dict.fromkeys(primitives("div", "neg", "sqrt", "abs", "square"), (0,)),
}
"""The operands that make a result infinite or NaN if they are so themselves."""


def divided(audited: Audited) -> Iterator[Finding | Held]:
    """LOX213: in the first iteration, what a loop carries on becomes infinite or NaN by a division by zero."""
    for scan, location in scans(audited):
        is_users_loop = is_called(scan.step, "scan", "fori_loop") and "transpose" not in transformations(
            scan.step.equation
        )
        if not is_users_loop or not scan.step.equation.params["length"]:
            continue
        first = _First()
        results = first.of(scan.body, _at_first(audited, scan))
        used = read(scan.body)
        broken = [inside for (_, inside, _), number in zip(scan.carry, results, strict=False) if number == _BROKEN]
        made = [step for step in first.made if is_users(audited.lines[step].of_user.file)]
        if made and not used.isdisjoint(broken):
            name = next(each for each in broken if each in used).called
            yield DIVIDED.at(
                audited.lines[made[0]],
                f"In its first iteration, a loop that counts from 0 divides by zero here, and {name} of its carry "
                "becomes infinite or NaN.",
            )
        elif (step := next((each for each in made if _is_put_out(audited, each)), None)) is not None:
            yield DIVIDED.at(
                audited.lines[step],
                "In its first iteration, a loop that counts from 0 divides by zero here: what is computed from that is "
                "infinite or NaN.",
            )
        elif any(step.equation.primitive in primitives("div") for step in scan.body.steps):
            yield DIVIDED.fine(location)


def _is_put_out(audited: Audited, step: Step) -> bool:
    """Say whether a quotient of no constant is used, and goes into nothing soon that leaves it out or limits it."""
    over, (result,) = step.inputs[0], step.outputs
    is_quotient = step.equation.primitive in primitives("div") and over.number is None
    if not is_quotient or result not in audited.live:
        return False
    made = Worklist([result], _MOST)
    for value in made:
        for user in audited.users.of(value):
            is_divisor = user.equation.primitive in primitives("div") and value is user.inputs[1]
            if user.equation.primitive in _CLEARING or is_divisor:
                return False
            made.add(each for each in user.outputs if each.shape == value.shape)
    return True


def _at_first(audited: Audited, scan: Scan) -> list[Number]:
    """The numbers that the body gets in the first iteration, or with the first element of what is scanned."""
    is_reversed = scan.step.equation.params["reverse"]
    known = {inside: _first(audited, outside) for outside, inside in scan.xs}
    known.update((inside, outside.number) for outside, inside in scan.consts)
    known.update((inside, outside.number) for outside, inside, _ in scan.carry if not is_reversed)
    return [_finite(known.get(inside)) for inside in scan.body.inputs]


def _first(audited: Audited, value: Value) -> Number:
    """The first element of an array that counts."""
    found = audited.origins.of(value, primitives("convert_element_type"))
    if found.number is not None or found.maker is None:
        constant = found.constant
        return float(constant[0]) if found.number is None and np.ndim(constant) == 1 and len(constant) else found.number
    maker = found.maker
    if maker.equation.primitive in primitives("iota"):
        return 0.0 if len(found.shape) == 1 else None
    if maker.equation.primitive in primitives("add", "sub", "mul"):
        return _computed(maker, [_first(audited, each) for each in maker.inputs])
    return None


def _finite(number: Number) -> Number:
    return number if number is not None and math.isfinite(number) else None


def _computed(step: Step, numbers: Sequence[Number]) -> Number:
    function = _COMPUTED.get(step.equation.primitive)
    if step.equation.primitive in primitives("integer_pow"):
        function, numbers = np.power, (*numbers, float(step.equation.params["y"]))
    if function is None or None in numbers:
        return None
    with np.errstate(all="ignore"):
        return float(function(*map(np.float64, numbers)))


class _First(Forward[Number]):
    """The numbers in an iteration.

    Attributes:
        made: The steps that divide by zero.
    """

    def __init__(self) -> None:
        self.made: list[Step] = []
        # What calls itself twice is called often.
        self._seen: dict[tuple[Block, tuple[Number, ...]], list[Number]] = {}

    def of(self, block: Block, numbers: Sequence[Number]) -> list[Number]:
        """The outputs of a block."""
        key = (block, tuple(numbers))
        if key not in self._seen:
            known: dict[Value, Number] = dict(zip(block.inputs, numbers, strict=True))
            for step in block.steps:
                given = [known[value] if value in known else _finite(value.number) for value in step.inputs]
                known.update(zip(step.outputs, self.through(step, given), strict=True))
            self._seen[key] = [known[value] if value in known else _finite(value.number) for value in block.outputs]
        return self._seen[key]

    def join(self, facts: Sequence[Number]) -> Number:
        return facts[0] if all(fact == facts[0] for fact in facts) else None

    def decide(self, by: Number, fact: Number) -> Number:
        return None

    def transfer(self, step: Step, facts: Sequence[Number]) -> list[Number]:
        return [self._number(step, getattr(var.aval, "dtype", None), facts) for var in step.equation.outvars]

    def inside(self, step: Step, place: int, facts: Sequence[Number]) -> list[Number]:
        return self.of(step.blocks[place], facts)

    def _number(self, step: Step, dtype: Any, facts: Sequence[Number]) -> Number:
        primitive = step.equation.primitive
        if primitive in _PASSING:
            return facts[0]
        if primitive in primitives("select_n"):
            return facts[1 + int(facts[0])] if facts[0] in (0, 1) else None
        if any(facts[place] == _BROKEN for place in _KEEP.get(primitive, ())):
            return _BROKEN
        if _BROKEN in facts:
            return None
        number = _computed(step, facts)
        if dtype is None or not jnp.issubdtype(dtype, jnp.inexact):
            return _finite(number)
        is_by_zero = primitive in primitives("div") and facts[1] == 0 and (facts[0] is None or facts[0] == 0)
        if is_by_zero or (number is not None and not math.isfinite(number) and primitive in _DIVISIONS):
            self.made.append(step)
            return _BROKEN
        return 0.0 if primitive in primitives("mul") and 0 in facts else _finite(number)


KINDS = (DIVIDED,)
CHECKS = (divided,)
