"""What depends on what in a program, through the calls, loops and branches in it, and whether differentiably."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax.extend as jex
import jax.numpy as jnp

from lox import _compat
from lox._audit._location import NOWHERE, Location
from lox._audit._program import Block, Region, Step, Value
from lox._audit._rules import primitives

_MOST = 50_000
"""How many operations are looked at; what calls contain beyond is taken as one operation."""

CONSTANT = primitives("sign", "floor", "ceil", "round", "stop_gradient")
"""What takes numbers to numbers and has no derivative but zero."""

_CALLS = {*primitives("jit", "remat", "call", "closed_call"), _compat.shard_map_p, _compat.custom_vmap_p}
"""What only runs its program. That of a custom rule is not what is differentiated."""

_ONE_BY_ONE = primitives("sort", "optimization_barrier")
"""What differentiates each output by the input in its place alone."""


@dataclasses.dataclass(eq=False)
class Node:
    """A value where it is met: what a function that is called twice computes is there twice.

    Attributes:
        value: The value.
        place: The operation that it comes out of; without one, it is one of its sources.
        literal: The number that it is, if it is written in the program.
        sources: What it depends on, and whether differentiably.
        feeds: What depends on it, and whether differentiably.
    """

    value: Value
    place: Place | None = None
    literal: Any = None
    sources: list[tuple[Node, bool]] = dataclasses.field(default_factory=list)
    feeds: list[tuple[Node, bool]] = dataclasses.field(default_factory=list)

    def on(self, source: Node, smoothly: bool = True) -> None:
        """Notes that it depends on another one."""
        smoothly = smoothly and is_inexact(source.value) and is_inexact(self.value)
        self.sources.append((source, smoothly))
        source.feeds.append((self, smoothly))


@dataclasses.dataclass(eq=False)
class Place:
    """An operation where it is met.

    Attributes:
        step: The operation.
        location: Its line.
        inputs: Its operands.
        outputs: Its results.
        around: The calls, loops and branches that it is in, the outermost first.
    """

    step: Step
    location: Location
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...] = ()
    around: tuple[Step, ...] = ()


@dataclasses.dataclass(eq=False)
class Dependence:
    """What depends on what in a program, without the operations inside calls and branches being apart."""

    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    places: list[Place]
    _around: tuple[Step, ...] = ()

    @classmethod
    def of(cls, program: Block, lines: dict[Step, Location]) -> Dependence:
        """That of a program of whose steps these are the lines."""
        built = cls(tuple(map(Node, program.inputs)), (), [])
        built.outputs = tuple(built._enter(program, built.inputs, lines))
        return built

    def _enter(self, block: Block, inputs: Sequence[Node], lines: dict[Step, Location]) -> list[Node]:
        known: dict[Value, Node] = dict(zip(block.inputs, inputs, strict=True))
        for step in block.steps:
            operands = tuple(_read(known, *pair) for pair in zip(step.inputs, step.equation.invars, strict=True))
            results = self._through(step, operands, lines)
            known.update(zip(step.outputs, results, strict=True))
        return [known.setdefault(value, Node(value)) for value in block.outputs]

    def _through(self, step: Step, operands: tuple[Node, ...], lines: dict[Step, Location]) -> Sequence[Node]:
        primitive = step.equation.primitive
        place = Place(step, lines.get(step, NOWHERE), operands, around=self._around)
        kind = step.ports[0].kind if step.ports and len(self.places) < _MOST else "apart"
        if kind == "call" and primitive in _CALLS:
            (region,) = step.regions
            return [
                _passed(value, node)
                for value, node in zip(step.outputs, self._run(region, operands, lines), strict=True)
            ]
        if kind in ("branch", "condition", "body"):
            place.outputs = self._joined(step, operands, lines)
            self.places.append(place)
            return place.outputs
        place.outputs = tuple(Node(value, place) for value in step.outputs)
        self.places.append(place)
        for index, result in enumerate(place.outputs):
            for number, operand in enumerate(operands):
                apart = primitive in _ONE_BY_ONE and number != index
                result.on(operand, primitive not in CONSTANT and not apart)
        return place.outputs

    def _run(self, region: Region, operands: Sequence[Node], lines: dict[Step, Location]) -> list[Node]:
        """The outputs of a region. What the body of a loop gives on is what it gets in the next iteration."""
        ports, block = region.ports, region.block
        inputs = [_passed(value, operands[port.place]) for port, value in zip(ports.inputs, block.inputs, strict=True)]
        self._around += (region.step,)
        results = self._enter(block, inputs, lines)
        self._around = self._around[:-1]
        for place, result in zip(ports.carried, results, strict=False):
            inputs[place].on(result)
        return results

    def _joined(self, step: Step, operands: tuple[Node, ...], lines: dict[Step, Location]) -> tuple[Node, ...]:
        """The results of branches or of a loop."""
        found = tuple(map(Node, step.outputs))
        for region in step.regions:
            if region.kind == "condition":
                continue
            for port, result in zip(region.ports.outputs, self._run(region, operands, lines), strict=True):
                found[port.place].on(result)
            for place, port in zip(region.ports.carried, region.ports.outputs, strict=False):  # Of no iteration.
                found[port.place].on(operands[region.ports.inputs[place].place])
        for result in found if step.regions[0].kind == "branch" else ():
            result.on(operands[0], False)
        return found


def _read(known: dict[Value, Node], value: Value, atom: Any) -> Node:
    if value not in known:
        known[value] = Node(value, literal=atom.val if isinstance(atom, jex.core.Literal) else None)
    return known[value]


def _passed(value: Value, node: Node) -> Node:
    """A value that is another one, or a part of it, under another name."""
    result = Node(value, literal=node.literal)
    result.on(node)
    return result


def is_inexact(value: Value) -> bool:
    """Say whether a value is made of real or complex numbers, which alone have derivatives."""
    return hasattr(value.aval, "dtype") and jnp.issubdtype(value.aval.dtype, jnp.inexact)


def _reach(start: Iterable[Node], edges: Callable[[Node], list[tuple[Node, bool]]], smoothly: bool) -> set[Node]:
    seen = set(start)
    left = list(seen)
    while left:
        for node, smooth in edges(left.pop()):
            if node not in seen and (smooth or not smoothly):
                seen.add(node)
                left.append(node)
    return seen


def downstream(start: Iterable[Node], *, smoothly: bool = True) -> set[Node]:
    """What depends on these, differentiably or at all."""
    return _reach(start, lambda node: node.feeds, smoothly)


def upstream(start: Iterable[Node], *, smoothly: bool = True) -> set[Node]:
    """What these depend on, differentiably or at all."""
    return _reach(start, lambda node: node.sources, smoothly)
