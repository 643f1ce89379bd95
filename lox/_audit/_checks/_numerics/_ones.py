"""Sums of probabilities over the axis over which they are normalized."""

from __future__ import annotations

from collections.abc import Iterator

from lox._audit._audited import Audited
from lox._audit._checks._numerics._masks import laid_out
from lox._audit._checks._numerics._squashes import squashes
from lox._audit._findings import Finding, Held, Kind
from lox._audit._location import called, is_users, transformations
from lox._audit._origins import FLOWS
from lox._audit._program import Step
from lox._audit._rules import primitives
from lox._audit._worklist import Worklist

ONE = Kind(
    "LOX826",
    "warning",
    "A sum of a softmax over its own axis, which is always one",
    "Give the softmax the other axis: a softmax over axis 1 of (points, parts) gives the parts of each point, whose "
    "sums over axis 0 say how much each part has.",
    "Probabilities are summed over other axes than they are normalized over.",
    "The axis of each softmax was compared with the axes over which its result is summed.",
)

_SCALED = FLOWS | primitives("mul", "div", "add", "sub", "max")
_COMPARED = primitives("eq", "ne", "lt", "le", "gt", "ge")
_MOST = 20


def sums(audited: Audited) -> Iterator[Finding | Held]:
    """LOX826: a softmax is summed, or averaged, over the axis along which it adds up to one."""
    known, origins = audited.once(squashes), audited.origins
    for step, location in audited.of("reduce_sum") if known else ():
        passes = {"jvp", "transpose"} & set(transformations(step.equation))
        if passes or called(step.equation) == "einsum" or not is_users(location.of_user.file):
            continue
        value, axes = step.inputs[0], step.equation.params["axes"]
        places = [laid_out(value, axis, origins) for axis in axes]
        weights = origins.of(places[0][0], FLOWS) if places else value
        squash = known.get(weights.maker)  # type: ignore[arg-type]
        if squash is None or squash.name != "softmax" or weights.shape != value.shape:
            continue
        if squash.axes != tuple(axis for _, axis in places) or squash.logits.shape != weights.shape:
            yield ONE.fine(squash.location)
        elif len(weights.shape) > len(axes) and is_users(squash.location.of_user.file) and _is_of_use(audited, step):
            yield ONE.at(
                squash.location,
                f"This softmax of shape {weights.shape} adds up to one over axis {squash.axes[0]}, over which line "
                f"{location.of_user.line} sums it.",
            )


def _is_of_use(audited: Audited, step: Step) -> bool:
    """Say whether a sum is more than what something is divided by, as a mean with weights is by their sum."""
    made, results = Worklist(step.outputs[:1], _MOST), set(audited.program.outputs)
    for value in made:
        for user in audited.users.of(value):
            is_divisor = user.equation.primitive in primitives("div") and user.inputs[1] is value
            if is_divisor or user.equation.primitive in _COMPARED or user.outputs[0] not in audited.live:
                continue
            arrays = [each for each in user.inputs if each.number is None]
            is_scaled = user.equation.primitive in _SCALED - FLOWS
            if user.equation.primitive not in _SCALED or len(arrays) > 1 or (is_scaled and user.outputs[0] in results):
                return True
            made.add(user.outputs)
    return False


KINDS = (ONE,)
CHECKS = (sums,)
