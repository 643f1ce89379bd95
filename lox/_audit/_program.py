"""A program as an audit sees it: blocks of steps, and the values that go from one to another."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

from lox._audit._facts import Fact
from lox._audit._regions import Kind, Ports, Role

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
    def number(self) -> float | None:
        """The number that all its elements are known to be, or None."""
        return self.fact.range.number

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
        ports: How what it runs is wired, if it is a call, a loop or a branch.
        blocks: What it runs.
        regions: The same, with what goes in and comes out.
    """

    equation: Any
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...] = ()
    ports: tuple[Ports, ...] = ()
    blocks: tuple[Block, ...] = ()
    regions: tuple[Region, ...] = ()

    def runs(self, blocks: tuple[Block, ...]) -> None:
        """Sets what it runs."""
        self.blocks = blocks
        self.regions = tuple(Region(self, block, ports) for block, ports in zip(blocks, self.ports, strict=True))


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


class Crossed(NamedTuple):
    """A value on both sides of the boundary of a region.

    Attributes:
        outside: The operand or the result of the step.
        inside: The input or the output of the region.
        role: What it is to the region.
    """

    outside: Value
    inside: Value
    role: Role


class Region(NamedTuple):
    """What a step runs, with the values that go in and come out.

    Attributes:
        step: The step.
        block: What is run.
        ports: How the two are wired.
    """

    step: Step
    block: Block
    ports: Ports

    @property
    def kind(self) -> Kind:
        """What it is."""
        return self.ports.kind

    @property
    def inputs(self) -> Iterator[Crossed]:
        """What goes in; of what is apart, nothing."""
        for port, inside in zip(self.ports.inputs, self.block.inputs, strict=False):
            yield Crossed(self.step.inputs[port.place], inside, port.role)

    @property
    def outputs(self) -> Iterator[Crossed]:
        """What comes out; of a condition, or of what is apart, nothing."""
        for port, inside in zip(self.ports.outputs, self.block.outputs, strict=False):
            yield Crossed(self.step.outputs[port.place], inside, port.role)

    @property
    def carried(self) -> list[Crossed]:
        """What comes in from the iteration before: that of a body is what its first outputs give on."""
        return [crossed for crossed in self.inputs if crossed.role == "carry"]


def blocks_in(program: Block) -> list[Block]:
    """A program and all that it runs, each once."""
    found, left = {program: None}, [program]
    while left:
        inner = [each for step in left.pop().steps for each in step.blocks if each not in found]
        found.update(dict.fromkeys(inner))
        left += inner
    return list(found)


def steps_in(step: Step) -> Iterator[Step]:
    """A step and all that it runs."""
    yield step
    for inner in step.blocks:
        for block in blocks_in(inner):
            yield from block.steps


def is_call(step: Step) -> bool:
    """Say whether a step does nothing but what is inside, once."""
    return bool(step.ports) and step.ports[0].kind == "call"


def alike(one: Value, other: Value) -> bool:
    """Say whether two values are one, or are computed by the same operation of the same values."""
    made, again = one.maker, other.maker
    if one is other or made is None or again is None or made.blocks or len(made.outputs) > 1:
        return one is other
    if made.equation.primitive is not again.equation.primitive or made.equation.params != again.equation.params:
        return False
    return all(a is b or _is_same_number(a, b) for a, b in zip(made.inputs, again.inputs, strict=True))


def _is_same_number(one: Value, other: Value) -> bool:
    return one.shape == other.shape == () and one.number is not None and one.number == other.number
