"""What a value of the body of a loop is made of: a number where it is one, and the sources that it depends on."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from lox._audit._ends import goes_on, is_boolean
from lox._audit._program import Step, Value
from lox._audit._rules import Rules, primitives


class Part(NamedTuple):
    """What is known of a value of a body. A set is an integer with a bit for each source.

    Attributes:
        number: The number that all its elements are, or None.
        may: The sources that it may depend on.
        sure: Those of them that nothing is known to leave out in some iterations.
        kept: Those of which it is a sum with something, up to constant factors, as a total or parameters are.
        added: Those of which it is a sum with something, as they are.
        gated: Those that were multiplied by what a nonlinear function gave.
        direct: Those that went through no network, and are not compared for being equal to something.
        moved: Those whose elements stand one place before where they were, as in a stack of frames.
        mixed: Those that went through a product of matrices.
        squashed: Those that went through a nonlinear function of such a product.
        is_mask: Whether it is made of booleans.
        is_gate: Whether a nonlinear function gave it.
        is_end: Whether it is a flag of ends, with other axes or of another dtype.
        copy_of: The value that it is a product of with one.
    """

    number: float | None = None
    may: int = 0
    sure: int = 0
    kept: int = 0
    added: int = 0
    gated: int = 0
    direct: int = 0
    moved: int = 0
    mixed: int = 0
    squashed: int = 0
    is_mask: bool = False
    is_gate: bool = False
    is_end: bool = False
    copy_of: Value | None = None


NOTHING = Part()


def source(bit: int) -> Part:
    """Facts about a source itself."""
    return Part(None, bit, bit, bit, bit, direct=bit)


def of_number(value: Value) -> Part:
    """What is known of a value that comes from outside all that is followed."""
    if value.number is not None and math.isfinite(value.number):
        return Part(value.number, is_mask=is_boolean(value))
    return NOTHING._replace(is_mask=is_boolean(value) or (bool(value.shape) and goes_on(value)))


def together(parts: Iterable[Part]) -> Part:
    """What depends on several values."""
    may = sure = gated = direct = mixed = squashed = 0
    for part in parts:
        may, sure, gated, direct = may | part.may, sure | part.sure, gated | part.gated, direct | part.direct
        mixed, squashed = mixed | part.mixed, squashed | part.squashed
    return Part(None, may, sure, gated=gated, direct=direct, mixed=mixed, squashed=squashed)


def _other(step: Step, parts: Sequence[Part]) -> Part:
    found = together(parts)
    return found._replace(direct=0) if step.equation.primitive in primitives("rem") else found


def one_of(asked: Part, cases: Sequence[Part]) -> Part:
    """One of several values, of which it is not known which."""
    number = cases[0].number if all(case.number == cases[0].number for case in cases) else None
    if number is not None:
        return Part(number)
    return together([asked, *cases])._replace(
        sure=functools.reduce(operator.and_, (case.sure for case in cases)),
        direct=functools.reduce(operator.or_, (case.direct for case in cases)),
        kept=functools.reduce(operator.or_, (case.kept for case in cases)),
        added=functools.reduce(operator.or_, (case.added for case in cases)),
        moved=functools.reduce(operator.or_, (case.moved for case in cases)),
        is_mask=all(case.is_mask for case in cases),
    )


Rule = Callable[[Step, Sequence[Part]], Part]
_rule = Rules[Rule]()


def has_rule(primitive: Any) -> bool:
    """Say whether it is known what a primitive makes of what it gets."""
    return _rule[primitive] is not None


def made(step: Step, parts: Sequence[Part]) -> Part:
    """What comes out of a step that runs nothing else."""
    return (_rule[step.equation.primitive] or _other)(step, parts)


@_rule("broadcast_in_dim", "reshape", "squeeze", "transpose", "convert_element_type", "copy", "rev")
@_rule("stop_gradient", "name", "optimization_barrier", "reduce_precision", "sharding_constraint", "reshard")
@_rule("reduce_or", "reduce_and", "reduce_max", "reduce_min", "unstack", "split")
def _as_it_is(step: Step, parts: Sequence[Part]) -> Part:
    return parts[0]


@_rule("slice")
def _sliced(step: Step, parts: Sequence[Part]) -> Part:
    (part,) = parts
    shapes = zip(step.inputs[0].shape, step.outputs[0].shape, strict=True)
    cut = [axis for axis, (old, new) in enumerate(shapes) if old != new]
    if len(cut) == 1 and step.equation.params["start_indices"][cut[0]] > 0 and not part.moved:
        return part._replace(moved=part.added)
    return part


@_rule("dynamic_slice", "gather")
def _taken(step: Step, parts: Sequence[Part]) -> Part:
    first, *places = parts
    if first.number is not None:
        return first
    return together(parts)._replace(kept=first.kept, added=first.added, is_mask=first.is_mask, is_end=first.is_end)


@_rule("scatter", "scatter_add", "scatter_mul", "scatter_min", "scatter_max", "dynamic_update_slice")
def _put(step: Step, parts: Sequence[Part]) -> Part:
    return together(parts)._replace(kept=parts[0].kept, added=parts[0].added, moved=parts[0].moved)


@_rule("select_n")
def _select(step: Step, parts: Sequence[Part]) -> Part:
    asked, *cases = parts
    if asked.number is not None:
        return cases[int(asked.number)]
    return one_of(asked, cases)


@_rule("clamp")
def _clamp(step: Step, parts: Sequence[Part]) -> Part:
    return parts[1] if parts[1].number is None else NOTHING


@_rule("concatenate", "stack")
def _joined(step: Step, parts: Sequence[Part]) -> Part:
    number = parts[0].number
    if number is not None and all(part.number == number for part in parts):
        return parts[0]
    moved = functools.reduce(operator.or_, (part.moved for part in parts))
    return together(parts)._replace(moved=moved)


@_rule("dot_general")
def _dot(step: Step, parts: Sequence[Part]) -> Part:
    if 0 in (parts[0].number, parts[1].number):
        return Part(0.0)
    found = together(parts)
    return found._replace(direct=0, mixed=found.may)


@_rule("mul")
def _mul(step: Step, parts: Sequence[Part]) -> Part:
    one, other = parts
    if one.number == 0 or other.number == 0:
        return Part(0.0)
    if one.number is not None and other.number is not None:
        return Part(one.number * other.number, one.may | other.may, is_mask=one.is_mask or other.is_mask)
    found = together(parts)
    left = one.sure if not other.is_mask or other.number is not None else 0
    right = other.sure if not one.is_mask or one.number is not None else 0
    kept = (one.kept if _is_same_in_all(other) else 0) | (other.kept if _is_same_in_all(one) else 0)
    is_mask = one.is_mask and other.is_mask or _is_scaled_mask(one, other) or _is_scaled_mask(other, one)
    added = (one.added if other.number == 1 else 0) | (other.added if one.number == 1 else 0)
    copied = next((step.inputs[1 - place] for place, part in enumerate(parts) if part.number == 1), None)
    gated = found.gated | (one.may if other.is_gate else 0) | (other.may if one.is_gate else 0)
    return found._replace(sure=left | right, kept=kept, added=added, gated=gated, is_mask=is_mask, copy_of=copied)


def _is_same_in_all(part: Part) -> bool:
    """Say whether a value is the same in all iterations."""
    return part.number is not None or not part.may


def _is_scaled_mask(one: Part, other: Part) -> bool:
    return one.is_mask and _is_same_in_all(other)


@_rule("tanh", "logistic", "erf", "max")
def _squash(step: Step, parts: Sequence[Part]) -> Part:
    if len(parts) == 2 and None not in (parts[0].number, parts[1].number):
        return _arithmetic(step, parts)
    found = together(parts)
    squashed = found.squashed | found.mixed
    if len(parts) == 1:
        return found._replace(squashed=squashed, direct=0, is_gate=True)
    kept, added = parts[0].kept | parts[1].kept, parts[0].added | parts[1].added
    return found._replace(squashed=squashed, kept=kept, added=added)


_NUMBERS: dict[str, Callable[..., float]] = {
    "add": operator.add,
    "sub": operator.sub,
    "neg": operator.neg,
    "max": max,
    "min": min,
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "div": lambda a, b: a / b if b else math.nan,
}
COMPUTED = {primitive: function for name, function in _NUMBERS.items() for primitive in primitives(name)}
"""What some primitives make of numbers."""


@_rule("add", "sub", "neg", "min", "eq", "ne", "lt", "le", "gt", "ge", "div")
def _arithmetic(step: Step, parts: Sequence[Part]) -> Part:
    numbers = [part.number for part in parts]
    found = together(parts)
    if step.equation.primitive in primitives("sub") and parts[1].copy_of is step.inputs[0]:
        return Part(0.0)
    is_mask = all(part.is_mask or part.number is not None for part in parts)
    if None not in numbers:
        result = float(COMPUTED[step.equation.primitive](*numbers))
        if not math.isnan(result):
            return Part(result, found.may, is_mask=is_mask)
    if step.equation.primitive in primitives("eq", "ne", "lt", "le", "gt", "ge"):
        is_equality = step.equation.primitive in primitives("eq", "ne")
        return found._replace(is_mask=True, direct=0 if is_equality else found.direct)
    kept, added = parts[0].kept, parts[0].added
    if step.equation.primitive in primitives("add", "min"):
        kept, added = kept | parts[1].kept, added | parts[1].added
    if step.equation.primitive in primitives("div"):
        kept, added = kept if _is_same_in_all(parts[1]) else 0, added if parts[1].number == 1 else 0
    is_gate = any(part.is_gate for part in parts)
    return found._replace(kept=kept, added=added, is_mask=is_mask, is_gate=is_gate)


@_rule("add_any")
def _added(step: Step, parts: Sequence[Part]) -> Part:
    return together(parts)._replace(kept=parts[0].kept | parts[1].kept, added=parts[0].added | parts[1].added)


@_rule("and")
def _and(step: Step, parts: Sequence[Part]) -> Part:
    return _logic(step, parts, 0.0)


@_rule("or")
def _or(step: Step, parts: Sequence[Part]) -> Part:
    return _logic(step, parts, 1.0)


def _logic(step: Step, parts: Sequence[Part], decides: float) -> Part:
    numbers = [part.number for part in parts]
    may = parts[0].may | parts[1].may
    if not is_boolean(step.outputs[0]):
        return together(parts)
    if decides in numbers:
        return Part(decides, may, is_mask=True)
    if None not in numbers:
        return Part(1.0 - decides, may, is_mask=True)
    left = [part for part in parts if part.number is None]
    return together(left)._replace(is_mask=True)


@_rule("not")
def _not(step: Step, parts: Sequence[Part]) -> Part:
    if parts[0].number is None or not is_boolean(step.outputs[0]):
        return parts[0]._replace(number=None, is_end=False)
    return parts[0]._replace(number=1.0 - parts[0].number, is_end=False)
