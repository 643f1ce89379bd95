"""The transformations around each part of a program, and what crosses their boundaries."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from lox._audit._flow import describe
from lox._audit._location import NOWHERE, Location, locate, transformations
from lox._audit._program import Block, Step

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
        for region in step.regions if shown(step) else ():
            for outside, inside, role in (*region.inputs, *region.outputs):
                yield Crossing(region.block.kind, describe(outside), describe(inside), role, where)
            yield from _crossings(region.block, where, seen, shown)
