"""A program as an audit sees it: blocks of steps, and the values that go from one to another."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from lox._audit._facts import Fact


@dataclasses.dataclass(eq=False)
class Value:
    """A value of a program.

    Attributes:
        aval: Its type.
        fact: What is known of it.
        name: Its name, if it is an argument or has another one that the user would recognize.
        maker: The step that it comes out of.
        uses: How many steps and results it goes into.
    """

    aval: Any
    fact: Fact
    name: str = ""
    maker: Step | None = None
    uses: int = 0


@dataclasses.dataclass(eq=False)
class Step:
    """An equation of a program.

    Attributes:
        equation: The equation.
        inputs: What goes in.
        outputs: What comes out.
        blocks: What it runs, if it is a call, a loop or a branch.
    """

    equation: Any
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...] = ()
    blocks: tuple[Block, ...] = ()


@dataclasses.dataclass(eq=False)
class Block:
    """A program, or what a step runs.

    Attributes:
        kind: What it is, such as ``"scan[100]"``.
        inputs: What goes in.
        steps: Its steps, in order.
        outputs: What comes out.
    """

    kind: str
    inputs: tuple[Value, ...]
    steps: tuple[Step, ...]
    outputs: tuple[Value, ...]

    def all_steps(self) -> Iterator[Step]:
        """The steps of this block and of all inside of it."""
        for step in self.steps:
            yield step
            for block in step.blocks:
                yield from block.all_steps()
