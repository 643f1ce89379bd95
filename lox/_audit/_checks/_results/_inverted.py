"""Moving averages whose rate is on the wrong side."""

from __future__ import annotations

from collections.abc import Iterator

from lox._audit._audited import Audited
from lox._audit._findings import Finding, Held, Kind
from lox._audit._loops import loop_of
from lox._audit._origins import FLOWS
from lox._audit._program import Step, Value
from lox._audit._rules import primitives

INVERTED = Kind(
    "LOX436",
    "warning",
    "A moving average keeps almost nothing of what it averages",
    "Give the small rate to the new value: rate * new + (1 - rate) * average. optax.incremental_update takes the new "
    "value first.",
    "Moving averages keep most of what they average.",
    "The weights of the old and the new value in each moving average of a loop or a training step were compared.",
)

_FORGOTTEN = 0.05
"""An average that keeps less than this of the old value is none."""


def inverted(audited: Audited) -> Iterator[Finding | Held]:
    """LOX436: of what is carried, less than a twentieth goes into its new value, and a new value is the rest."""
    told: set[tuple[str, int]] = set()
    for old, weight, step in (*_of_loops(audited), *_of_training(audited)):
        location = audited.lines[step]
        here = (location.of_user.file, location.of_user.line)
        if weight > _FORGOTTEN:
            yield INVERTED.fine(location)
        elif here not in told:
            told.add(here)
            yield INVERTED.at(
                location,
                f"A moving average of '{old.called}' keeps {weight:.3g} of it in each step, and takes {1 - weight:.3g} "
                "of the new value.",
            )


def _of_loops(audited: Audited) -> Iterator[tuple[Value, float, Step]]:
    """The moving averages that loops carry: the old value, its weight, and the step that makes the new value."""
    for loop, _ in audited.of("scan", "while"):
        for _, old, new in loop_of(loop).carry:
            for weight, value, step in _average(audited, new):
                if value is old:
                    yield old, weight, step


def _of_training(audited: Audited) -> Iterator[tuple[Value, float, Step]]:
    """The same for arguments of a step of training, which returns an average of each and of what it computes."""
    if audited.differentiates:
        arguments = set(audited.program.inputs)
        for new in audited.program.outputs:
            found = [each for each in _average(audited, new) if each[1] in arguments]
            if len(found) == 1:  # Of two arguments, either may be the old one.
                yield found[0][1], found[0][0], found[0][2]


def _average(audited: Audited, new: Value) -> Iterator[tuple[float, Value, Step]]:
    """The two parts of a weighted average, with its weight, the value and the step that adds them; else nothing."""
    step = audited.origins.of(new, FLOWS).maker
    if step is None or step.equation.primitive not in primitives("add") or step not in audited.lines:
        return
    parts = [_scaled(audited, value) for value in step.inputs]
    weights = [weight for weight, _ in parts if weight is not None and 0 < weight < 1]
    if len(weights) == 2 and abs(sum(weights) - 1) < 1e-6:
        yield from ((weight, value, step) for weight, (_, value) in zip(weights, parts, strict=True))


def _scaled(audited: Audited, value: Value) -> tuple[float | None, Value]:
    """A number and the value that it is multiplied by."""
    made = audited.origins.of(value, FLOWS).maker
    if made is not None and made.equation.primitive in primitives("mul"):
        for each, number in (made.inputs, made.inputs[::-1]):
            if number.number is not None:
                return number.number, audited.origins.of(each, FLOWS)
    return None, value


KINDS = (INVERTED,)
CHECKS = (inverted,)
