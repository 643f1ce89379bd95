"""What depends on what in a program, through the calls, loops and branches in it, and whether differentiably."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax.extend as jex
import jax.numpy as jnp

from lox import _compat
from lox._audit._location import NOWHERE, Location
from lox._audit._program import Block, Step, Value
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
    """An operation where it is met."""

    step: Step
    location: Location
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...] = ()


@dataclasses.dataclass(eq=False)
class Dependence:
    """What depends on what in a program, without the operations inside of calls and branches being apart."""

    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]
    places: list[Place]

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
        primitive, blocks = step.equation.primitive, step.blocks
        place = Place(step, lines.get(step, NOWHERE), operands)
        if len(self.places) < _MOST and blocks:
            if primitive in primitives("scan"):
                place.outputs = tuple(self._scan(step, operands, lines))
            elif primitive in primitives("while"):
                place.outputs = tuple(self._while(step, operands, lines))
            elif primitive in primitives("cond"):
                place.outputs = tuple(self._cond(step, operands, lines))
            elif primitive in _CALLS and len(blocks) == 1 and len(blocks[0].inputs) == len(operands):
                inputs = [_passed(value, node) for value, node in zip(blocks[0].inputs, operands, strict=True)]
                results = self._enter(blocks[0], inputs, lines)
                return [_passed(value, node) for value, node in zip(step.outputs, results, strict=True)]
        place.outputs = place.outputs or tuple(Node(value, place) for value in step.outputs)
        self.places.append(place)
        if blocks and any(node.place is not place for node in place.outputs):
            return place.outputs
        for index, result in enumerate(place.outputs):
            for number, operand in enumerate(operands):
                apart = primitive in _ONE_BY_ONE and number != index
                result.on(operand, primitive not in CONSTANT and not apart)
        return place.outputs

    # scan: (consts, carry, xs) -> (carry, ys)
    def _scan(self, step: Step, operands: tuple[Node, ...], lines: dict[Step, Location]) -> Iterator[Node]:
        consts, carries = _compat.scan_counts(step.equation.params)
        (body,) = step.blocks
        inputs = [_passed(value, node) for value, node in zip(body.inputs, operands, strict=True)]
        results = self._enter(body, inputs, lines)
        for index, value in enumerate(step.outputs):
            result = _passed(value, results[index])
            if index < carries:
                inputs[consts + index].on(results[index])
                result.on(operands[consts + index])
            yield result

    # while: (cond consts, body consts, carry) -> carry
    def _while(self, step: Step, operands: tuple[Node, ...], lines: dict[Step, Location]) -> Iterator[Node]:
        params = step.equation.params
        operands = operands[params["cond_nconsts"] :]
        body, consts = step.blocks[-1], params["body_nconsts"]
        inputs = [_passed(value, node) for value, node in zip(body.inputs, operands, strict=True)]
        results = self._enter(body, inputs, lines)
        for index, value in enumerate(step.outputs):
            inputs[consts + index].on(results[index])
            result = _passed(value, results[index])
            result.on(operands[consts + index])
            yield result

    # cond: (index, operands) -> results
    def _cond(self, step: Step, operands: tuple[Node, ...], lines: dict[Step, Location]) -> Iterator[Node]:
        results = []
        for branch in step.blocks:
            inputs = [_passed(value, node) for value, node in zip(branch.inputs, operands[1:], strict=True)]
            results.append(self._enter(branch, inputs, lines))
        for index, value in enumerate(step.outputs):
            result = Node(value)
            for branch_results in results:
                result.on(branch_results[index])
            result.on(operands[0], False)
            yield result


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
    """Whether a value is made of real or complex numbers, which alone have derivatives."""
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
