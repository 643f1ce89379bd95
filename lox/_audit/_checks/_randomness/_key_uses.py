"""What is known of random keys: where each comes from, what uses it, and what goes into the blocks that a step runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from lox._audit._program import Block, Step, Value
from lox._audit._rules import primitives

LOOPS = primitives("scan", "while")


@dataclasses.dataclass(frozen=True, eq=False)
class Origin:
    """Where a key of a block comes from.

    Attributes:
        place: The input of the block that it is of, or None.
        index: Which of the keys of that input it is.
        parent: The key that something was folded into to make it, or None.
        data: What was folded in.
        constant: Whether it is made of a constant.
    """

    place: int | None = None
    index: int = 0
    parent: int | None = None
    data: Any = None
    constant: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class Use:
    """A step that draws from keys or splits them, itself or in what it runs.

    Attributes:
        step: The step.
        groups: The keys by what is drawn or split at once.
        told: Whether it was said of them that each iteration of a loop that the step runs uses the same ones.
    """

    step: Step
    groups: tuple[frozenset[int], ...]
    told: bool = False

    @property
    def keys(self) -> frozenset[int]:
        """The numbers of the keys."""
        return frozenset().union(*self.groups)


@dataclasses.dataclass(frozen=True, eq=False)
class Reuse:
    """A key that two steps of a block use; the second one in the next iteration if `loop` runs the block."""

    block: Block
    first: Use
    second: Use
    name: str
    loop: str = ""


@dataclasses.dataclass(frozen=True, eq=False)
class Repetition:
    """A key that each iteration of a loop uses, and the step that runs the loop."""

    loop: str
    step: Step
    use: Use
    name: str


@dataclasses.dataclass(frozen=True, eq=False)
class Sharing:
    """A step that uses an array of keys of which some are the same.

    Attributes:
        step: The step.
        lanes: How many keys it has.
        again: The place of the one that is there before, or None where all are the same.
        before: Where that is.
    """

    step: Step
    lanes: int
    again: int | None = None
    before: int = 0


def paired(step: Step, block: Block) -> Iterator[tuple[Value, str]]:
    """What each input of a block that a step runs is outside, and its role: "in", "carry" or "each".

    Nothing where that is not known.
    """
    region = next(region for region in step.regions if region.block is block)
    for outside, _, role in region.inputs:
        yield outside, role
