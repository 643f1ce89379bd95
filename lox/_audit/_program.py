"""A program as an audit sees it: blocks of steps, and the values that go from one to another."""

from __future__ import annotations

import dataclasses
from typing import Any

from lox import _compat
from lox._audit._facts import Fact
from lox._audit._rules import primitives

NAMELESS = "a value"


@dataclasses.dataclass(eq=False, slots=True)
class Value:
    """A value of a program.

    Attributes:
        aval: Its type.
        fact: What is known of it.
        name: Its name, if it is an argument or has another one that the user would recognize.
        maker: The step that it comes out of.
        uses: How many steps and results it goes into.
        written: The variable that it is assigned to, or the source text of its expression, or nothing.
        laid_out: The value that this one is with other axes, where nobody wrote so.
        constant: The array that it is, if the program has it from outside.
    """

    aval: Any
    fact: Fact
    name: str = ""
    maker: Step | None = None
    uses: int = 0
    written: str = ""
    laid_out: Value | None = None
    constant: Any = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape; of what is no array, `()`."""
        return tuple(getattr(self.aval, "shape", ()))

    @property
    def axes(self) -> str:
        """The sizes of its axes with their labels, as in ``"32 time, 64"``."""
        labelled = zip(self.shape, self.fact.labels, strict=True)
        return ", ".join(f"{size} {label}" if label else str(size) for size, label in labelled)

    @property
    def called(self) -> str:
        """Its name in the source, or that of the value that it is with other axes."""
        named = self if self.laid_out is None else self.laid_out
        return named.name or named.written or NAMELESS

    @property
    def text(self) -> str:
        """Its name and its axes, as a report says them."""
        return f"{self.called} of shape ({self.axes})"

    @property
    def text_as_written(self) -> str:
        """Its name, and its axes before implicit broadcasting gave it others."""
        return self.text if self.laid_out is None else self.laid_out.text


@dataclasses.dataclass(eq=False, slots=True)
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


def is_call(step: Step) -> bool:
    """Whether a step does nothing but what is inside, once."""
    if len(step.blocks) != 1 or step.equation.primitive in primitives("cond", "scan", "while"):
        return False
    (block,) = step.blocks
    return len(block.inputs) == len(step.inputs) and len(block.outputs) == len(step.outputs)


def alike(one: Value, other: Value) -> bool:
    """Whether two values are one, or are computed by the same operation of the same values."""
    made, again = one.maker, other.maker
    if one is other or made is None or again is None or made.blocks or len(made.outputs) > 1:
        return one is other
    if made.equation.primitive is not again.equation.primitive or made.equation.params != again.equation.params:
        return False
    return all(a is b or _is_same_number(a, b) for a, b in zip(made.inputs, again.inputs, strict=True))


def _is_same_number(one: Value, other: Value) -> bool:
    known = one.fact.range
    return one.shape == other.shape == () and known == other.fact.range and known.low == known.high


def live(program: Block) -> set[Value]:
    """The values that have a part in what comes out of a program, or in what it does besides."""
    found = set(program.outputs)

    def visit(block: Block) -> None:
        for step in reversed(block.steps):
            if not step.equation.effects and found.isdisjoint(step.outputs):
                continue
            found.update(step.inputs)
            for inner in step.blocks:
                alike = len(step.blocks) == 1 and len(inner.outputs) == len(step.outputs)
                pairs = zip(inner.outputs, step.outputs if alike else inner.outputs, strict=True)
                found.update(own for own, outside in pairs if not alike or outside in found)
                visit(inner)
                while alike and (carried := _next(step, inner, found)):
                    found.update(carried)
                    visit(inner)

    visit(program)
    return found


def _next(step: Step, body: Block, found: set[Value]) -> set[Value]:
    """What an iteration of a scan makes for the next one, which has a part in what comes out, and is not yet found."""
    if step.equation.primitive not in primitives("scan"):
        return set()
    consts, carry = _compat.scan_counts(step.equation.params)
    carried = zip(body.inputs[consts : consts + carry], body.outputs, strict=False)
    return {after for before, after in carried if before in found and after not in found}
