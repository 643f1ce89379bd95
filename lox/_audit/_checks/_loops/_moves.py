"""Loops that carry a number for each state, and sum it with the weights of moves between states."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from lox._audit._audited import Audited
from lox._audit._checks._numerics._classes import squash_of
from lox._audit._checks._numerics._exponentials import made_by
from lox._audit._checks._numerics._masks import CONVERTED, laid_out
from lox._audit._checks._numerics._squashes import squashes
from lox._audit._facts import Interval
from lox._audit._findings import Finding, Kind
from lox._audit._location import Location, is_users, transformations
from lox._audit._loops import Scan, reached, scans
from lox._audit._origins import FLOWS
from lox._audit._program import Step, Value
from lox._audit._rules import primitives

REPEATED = Kind(
    "LOX226",
    "warning",
    "A loop sums what it carries over an axis along which it is only repeated",
    "Sum over the axis of what is carried: jax.nn.logsumexp(alpha[:, None] + moves, axis=0) for moves of shape (from, "
    "to).",
)
MOVES = Kind(
    "LOX228",
    "warning",
    "Probabilities of moves are normalized over where a move begins",
    "Normalize over where moves end: axis=1 for a matrix of shape (from, to), over whose axis 0 the probabilities of "
    "states are summed.",
)

_TERMS = 8
_SAME = Interval(0.999, 1.001)


class Meeting(NamedTuple):
    """A reduction of what a loop carries together with a matrix that is the same in all iterations.

    Attributes:
        step: The reduction.
        carried: What an iteration gets.
        along: Its axis that is reduced; None if it is repeated along the axis that is.
        matrix: The matrix, outside the loop.
        axis: Its axis that is reduced.
    """

    step: Step
    carried: Value
    along: int | None
    matrix: Value
    axis: int


def repeated(audited: Audited) -> Iterator[Finding]:
    """LOX226: what a loop carries is repeated along a second axis of a square matrix, and that axis is reduced."""
    for scan, meeting, location in _meetings(audited):
        matrix = meeting.matrix
        if meeting.along is None and len(matrix.shape) == 2 and matrix.shape[0] == matrix.shape[1] > 1:
            if any(
                new in reached(scan.body, meeting.step.outputs)
                for _, inside, new in scan.carry
                if inside is meeting.carried
            ):
                yield REPEATED.at(
                    location,
                    f"{meeting.carried.called} of the carry is the same along the axis that is reduced here, which is "
                    f"axis {meeting.axis} of {matrix.called} of shape {matrix.shape}: each element goes on by itself.",
                )


def moves(audited: Audited) -> Iterator[Finding]:
    """LOX228: probabilities of states are summed over the axis over which those of moves are normalized."""
    known, origins = audited.once(squashes), audited.origins
    for scan, meeting, location in _meetings(audited) if known else ():
        if meeting.along is None or scan.step.equation.params.get("reverse"):
            continue
        squash, axis = squash_of(meeting.matrix, meeting.axis, known, origins)
        start = next(outside for outside, inside, _ in scan.carry if inside is meeting.carried)
        if squash is not None and squash.axes == (axis,) and _is_distribution(audited, start, meeting.along):
            yield MOVES.at(
                squash.location,
                f"The {squash.name} of shape {squash.logits.shape} adds up to one over axis {axis}, over which line "
                f"{location.line} sums it with the probabilities of states: those do not add up to one afterwards.",
            )


def _meetings(audited: Audited) -> Iterator[tuple[Scan, Meeting, Location]]:
    """The reductions in the bodies of loops of what is carried with a matrix, where each is and in which loop."""
    for scan, _ in scans(audited):
        outside = {inside: outer for outer, inside in scan.consts}
        carried = {inside for _, inside, _ in scan.carry if inside.shape}
        steps = [each for each in scan.body.steps if not {"jvp", "transpose"} & set(transformations(each.equation))]
        for step in steps if carried and outside else ():
            location = audited.lines[step]
            if is_users(location.of_user.file):
                yield from ((scan, each, location) for each in _met(audited, step, carried, outside))


def _met(audited: Audited, step: Step, carried: set[Value], outside: dict[Value, Value]) -> Iterator[Meeting]:
    origins = audited.origins
    if step.equation.primitive in primitives("dot_general"):
        (contracted, _) = step.equation.params["dimension_numbers"]
        axes = tuple(each[0] for each in contracted) if len(contracted[0]) == 1 else ()
        pairs = [tuple(zip(step.inputs[:2], axes, strict=True))] if axes else []
    elif step.equation.primitive in primitives("reduce_max", "reduce_sum") and len(step.equation.params["axes"]) == 1:
        by = primitives("add") if step.equation.primitive in primitives("reduce_max") else primitives("mul")
        made = made_by(origins.of(step.inputs[0], FLOWS), by)
        (axis,) = step.equation.params["axes"]
        is_alike = made is not None and made.outputs[0].shape == step.inputs[0].shape
        pairs = [tuple((each, axis) for each in made.inputs)] if made is not None and is_alike else []
    else:
        return
    for pair in pairs:
        for (one, place), (other, axis) in (pair, pair[::-1]):
            value, along = laid_out(one, place, origins, CONVERTED)
            matrix, across = laid_out(other, axis, origins, CONVERTED)
            if value in carried and matrix in outside and across is not None:
                before, axis_before = laid_out(outside[matrix], across, origins, CONVERTED)
                if axis_before is not None:
                    yield Meeting(step, value, along, before, axis_before)


def _is_distribution(audited: Audited, value: Value, axis: int) -> bool:
    """Say whether a value is made of probabilities, or of their logarithms, that add up to one along an axis."""
    known, left = audited.once(squashes), [(value, axis)]
    for _ in range(_TERMS):
        if not left:
            break
        value, axis = left.pop()
        size = value.shape[axis] if axis < len(value.shape) else 0
        if (
            value.number is not None
            and size > 1
            and any(each * size in _SAME for each in (value.number, math.exp(min(value.number, 0))))
        ):
            return True
        squash, along = squash_of(value, axis, known, audited.origins)
        if squash is not None and squash.axes == (along,):
            return True
        value, place = laid_out(value, axis, audited.origins, CONVERTED)
        maker = made_by(value, primitives("add", "mul"))
        if maker is not None and place is not None:
            left += [(each, place) for each in maker.inputs if each.shape[place : place + 1] == (size,)]
    return False


KINDS = (REPEATED, MOVES)
CHECKS = (repeated, moves)
