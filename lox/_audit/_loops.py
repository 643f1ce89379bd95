"""What goes into a loop, and which part of it is read."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

from lox._audit._audited import Audited
from lox._audit._forward import Forward
from lox._audit._location import Location, call, is_users, locate
from lox._audit._program import Block, Step, Value
from lox._audit._rules import primitives


@dataclasses.dataclass(frozen=True)
class Scan:
    """A scan.

    Attributes:
        step: The step.
        body: What each iteration runs.
        consts: What all iterations get, outside and in the body.
        carry: What goes from one iteration to the next: outside, in the body, and as the body returns it.
        xs: What is scanned: outside, and the slice in the body.
        ys: What an iteration puts out.
    """

    step: Step
    body: Block
    consts: tuple[tuple[Value, Value], ...]
    carry: tuple[tuple[Value, Value, Value], ...]
    xs: tuple[tuple[Value, Value], ...]
    ys: tuple[Value, ...]

    @property
    def unchanged(self) -> Iterator[tuple[Value, Value]]:
        """What is carried and never changes, outside and in the body: JAX makes it a constant, which keeps its name."""
        return ((outside, inside) for outside, inside in self.consts if inside.name)


def scans(audited: Audited) -> Iterator[tuple[Scan, Location]]:
    """All scans of a program; `fori_loop` and `map` are such where the number of iterations is known."""
    for step, location in audited.steps:
        if step.equation.primitive in primitives("scan"):
            yield loop_of(step), location


def loop_of(step: Step) -> Scan:
    """A scan, or a while loop as one that scans nothing."""
    region = step.regions[-1]
    sides: dict[str, list[tuple[Value, Value]]] = {"in": [], "carry": [], "each": []}
    for outside, inside, role in region.inputs:
        sides[role].append((outside, inside))
    body, carry = region.block, sides["carry"]
    return Scan(
        step,
        body,
        tuple(sides["in"]),
        tuple((*pair, new) for pair, new in zip(carry, body.outputs, strict=False)),
        tuple(sides["each"]),
        body.outputs[len(carry) :],
    )


def is_called(step: Step, *names: str) -> bool:
    """Whether the user wrote a call of one of these functions of JAX that a step comes from, such as ``"scan"``."""
    return is_users(locate(step.equation).file) and not set(names).isdisjoint(call(step.equation)[1:])


def reached(block: Block, start: Iterable[Value]) -> set[Value]:
    """The values of a block that depend on some of it, these included."""
    return _Reach().of(block, frozenset(start))


class _Reach(Forward[bool]):
    """What depends on some of the values of a block."""

    def __init__(self) -> None:
        self._known: dict[tuple[Block, frozenset[Value]], set[Value]] = {}

    def of(self, block: Block, start: frozenset[Value]) -> set[Value]:
        """The values of a block that depend on some of it, these included."""
        if (block, start) not in self._known:
            found = set(start)
            for step in block.steps:
                results = self.through(step, [value in found for value in step.inputs])
                found.update(value for value, is_reached in zip(step.outputs, results, strict=True) if is_reached)
            self._known[block, start] = found
        return self._known[block, start]

    def join(self, facts: Sequence[bool]) -> bool:
        return any(facts)

    def decide(self, by: bool, fact: bool) -> bool:
        return by or fact

    def transfer(self, step: Step, facts: Sequence[bool]) -> list[bool]:
        return [any(facts)] * len(step.equation.outvars)

    def inside(self, step: Step, place: int, facts: Sequence[bool]) -> list[bool]:
        block = step.blocks[place]
        found = self.of(block, frozenset(value for value, fact in zip(block.inputs, facts, strict=True) if fact))
        return [value in found for value in block.outputs]


def origins(values: Iterable[Value]) -> set[Value]:
    """These values, and all in the same block that they were computed from."""
    found: set[Value] = set()
    left = list(values)
    while left:
        value = left.pop()
        if value not in found:
            found.add(value)
            left.extend(value.maker.inputs if value.maker else ())
    return found
