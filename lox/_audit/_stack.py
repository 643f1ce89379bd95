"""The transformations around each part of a program, and what crosses their boundaries."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from lox import _compat
from lox._audit._flow import describe
from lox._audit._location import NOWHERE, Location, locate, transformations
from lox._audit._program import Block, Step, Value
from lox._audit._rules import primitives

Shown = Callable[[Step], bool]


@dataclasses.dataclass(frozen=True)
class Level:
    """A part of a program.

    Attributes:
        depth: How many parts it is in.
        kind: What runs it, such as ``"scan[32 time]"``.
        transformed: The transformations of JAX that its operations went through, such as ``("vmap", "jvp")``.
        operations: How many it has itself.
        location: Where it comes from.
    """

    depth: int
    kind: str
    transformed: tuple[str, ...]
    operations: int
    location: Location


@dataclasses.dataclass(frozen=True)
class Crossing:
    """A value on both sides of a boundary.

    Attributes:
        kind: What runs what is inside.
        outside: The type with labels outside.
        inside: The same inside.
        role: What it is there: "in", "carry", "each" (of what is scanned), "out" or "stacked".
        location: Where the boundary is.
    """

    kind: str
    outside: str
    inside: str
    role: str
    location: Location


def levels(block: Block, shown: Shown = lambda step: True) -> Iterator[Level]:
    """A program and what the steps that are shown run, outermost first; what several steps run is there once."""
    return _levels(block, 0, NOWHERE, set(), shown)


def _levels(block: Block, depth: int, location: Location, seen: set[Block], shown: Shown) -> Iterator[Level]:
    if block in seen:
        return
    seen.add(block)
    found = dict.fromkeys(name for step in block.steps for name in transformations(step.equation))
    yield Level(depth, block.kind, tuple(found), len(block.steps), location)
    for step in block.steps:
        for inner in step.blocks if shown(step) else ():
            yield from _levels(inner, depth + 1, locate(step.equation, location), seen, shown)


def crossings(block: Block, shown: Shown = lambda step: True) -> Iterator[Crossing]:
    """The inputs and outputs of each loop, branch and call that is shown, once each, outermost first."""
    return _crossings(block, NOWHERE, set(), shown)


def _crossings(block: Block, around: Location, seen: set[Block], shown: Shown) -> Iterator[Crossing]:
    if block in seen:
        return
    seen.add(block)
    for step in block.steps:
        where = locate(step.equation, around)
        for inner in step.blocks if shown(step) else ():
            for outside, inside, role in _pairs(step, inner):
                yield Crossing(inner.kind, describe(outside), describe(inside), role, where)
            yield from _crossings(inner, where, seen, shown)


def _pairs(step: Step, inner: Block) -> Iterator[tuple[Value, Value, str]]:
    primitive, params = step.equation.primitive, step.equation.params
    taken, roles, results = step.inputs, ["in"] * len(step.inputs), ["out"] * len(step.outputs)
    if primitive in primitives("scan"):
        consts, carry = _compat.scan_counts(params)
        rest = len(step.inputs) - consts - carry
        roles = ["in"] * consts + ["carry"] * carry + ["each"] * rest
        results = ["carry"] * carry + ["stacked"] * (len(step.outputs) - carry)
    elif primitive in primitives("cond"):
        taken, roles = taken[1:], roles[1:]
    elif primitive in primitives("while"):
        first, second = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
        kept = taken[:first] if inner.kind.endswith("condition") else taken[first:second]
        taken, roles = (*kept, *taken[second:]), ["in"] * len(kept) + ["carry"] * (len(taken) - second)
        results = [] if inner.kind.endswith("condition") else ["carry"] * len(step.outputs)
    if len(taken) == len(inner.inputs):
        yield from zip(taken, inner.inputs, roles, strict=True)
    if len(results) == len(inner.outputs):
        yield from zip(step.outputs, inner.outputs, results, strict=True)
