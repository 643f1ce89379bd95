"""Orders of elements that are taken for their ranks."""

from __future__ import annotations

from collections.abc import Iterator

from lox._audit._audited import Audited
from lox._audit._checks._numerics._exponentials import made_by
from lox._audit._checks._numerics._integers import is_float, is_integer
from lox._audit._findings import Finding, Kind
from lox._audit._location import is_users
from lox._audit._origins import FLOWS
from lox._audit._program import Step, Value, is_call
from lox._audit._rules import primitives

RANKS = Kind(
    "LOX830",
    "warning",
    "An argsort whose indices are taken for ranks",
    "Take the argsort of the argsort: jnp.argsort(jnp.argsort(x)) has the rank of each element at its place, while "
    "jnp.argsort(x) has the places of the elements in order.",
)

_SORTS = primitives("sort")
_ARITHMETIC = primitives("mul", "div", "sub", "add", "neg", "log", "exp")
_BITS = primitives("random_bits")
_DRAWING = primitives(
    "neg", "log", "log1p", "sub", "mul", "add", "max", "or", "shift_right_logical", "bitcast_convert_type"
)
_MOST = 60


def ranks(audited: Audited) -> Iterator[Finding]:
    """LOX830: the indices of an argsort of numbers become floats, and are computed with."""
    if not audited.has("sort"):
        return
    orders = dict(_orders(audited))
    for result, (operand, step) in orders.items():
        location = audited.lines[step]
        if not is_users(location.of_user.file) or _is_permutation(audited, operand, orders):
            continue
        if any(_is_computed_with(audited, each) for each in _floats(audited, result)):
            yield RANKS.at(
                location,
                f"The places of the elements of {operand.called} in order become floats that are computed with: they "
                "are not its ranks.",
            )


def _orders(audited: Audited) -> Iterator[tuple[Value, tuple[Value, Step]]]:
    """The indices that sort arrays, with these and the step."""
    for step, _ in audited.steps:
        if step.equation.primitive in _SORTS and _sorts_places(step):
            yield step.outputs[1], (step.inputs[0], step)
        elif is_call(step) and len(step.outputs) == 1 and step.equation.params.get("name") == "argsort":
            yield step.outputs[0], (step.inputs[0], step)


def _sorts_places(step: Step) -> bool:
    return (
        len(step.inputs) == 2
        and step.equation.params["num_keys"] == 1
        and bool(made_by(step.inputs[1], primitives("iota")))
    )


def _is_permutation(audited: Audited, operand: Value, orders: dict[Value, tuple[Value, Step]]) -> bool:
    """Say whether what is sorted is an order itself, or drawn, so that its order is as good as its ranks."""
    value = operand
    for _ in range(_MOST):
        if value in orders:
            return True
        if value.maker is None or value.maker.equation.primitive not in FLOWS | primitives("neg"):
            break
        value = value.maker.inputs[0]
    if is_integer(value) and value.maker is None:
        return True
    return audited.origins.leads_to(operand, _BITS, _DRAWING, FLOWS)


def _floats(audited: Audited, value: Value) -> Iterator[Value]:
    """The floats that integers become, with nothing but their layout changed."""
    left = [value]
    for _ in range(_MOST):
        if not left:
            return
        for user in audited.users.of(left.pop()):
            if user.equation.primitive not in FLOWS:
                continue
            for each in user.outputs:
                if is_float(each):
                    yield each
                else:
                    left.append(each)


def _is_computed_with(audited: Audited, value: Value) -> bool:
    return any(user.equation.primitive in _ARITHMETIC for user in audited.users.of(value))


KINDS = (RANKS,)
CHECKS = (ranks,)
