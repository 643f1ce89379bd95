"""The bodies of loops with their calls inlined, and what they carry."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import jax.numpy as jnp

from lox._audit._attained import plain, resolved
from lox._audit._audited import Audited
from lox._audit._dependence import Dependence, Node, Place, downstream
from lox._audit._location import Location, transformations
from lox._audit._loops import Scan, is_called, loop_of
from lox._audit._program import Value
from lox._audit._rules import primitives


class Carried(NamedTuple):
    """A value that a loop carries.

    Attributes:
        outside: What it is before the loop.
        inside: What an iteration gets.
        new: What an iteration returns; what it gets, if it never changes.
    """

    outside: Value
    inside: Node
    new: Node

    @property
    def value(self) -> Value:
        """The value that an iteration gets."""
        return self.inside.value

    @property
    def name(self) -> str:
        """Its name in the body."""
        return self.value.name or self.new.value.written or self.value.called

    def is_of(self, kind: Any) -> bool:
        """Say whether its elements are of a kind, such as `jnp.floating`."""
        dtype = getattr(self.value.aval, "dtype", None)
        return dtype is not None and jnp.issubdtype(dtype, kind)


@dataclasses.dataclass(frozen=True, eq=False)
class Body:
    """The body of a loop, without the operations inside calls being apart.

    Attributes:
        loop: The loop.
        location: Its line.
        graph: What depends on what in the body.
        changing: What it carries that may change.
        kept: What it carries and never changes.
        scanned: What it scans: outside, and the slice.
    """

    loop: Scan
    location: Location
    graph: Dependence
    changing: tuple[Carried, ...]
    kept: tuple[Carried, ...]
    scanned: tuple[tuple[Value, Node], ...]

    @classmethod
    def of(cls, audited: Audited, loop: Scan, location: Location) -> Body:
        """That of a loop."""
        graph = Dependence.of(loop.body, audited.lines)
        nodes = dict(zip(loop.body.inputs, graph.inputs, strict=True))
        pairs = zip(loop.carry, graph.outputs, strict=False)
        carried = [Carried(outside, nodes[inside], new) for (outside, inside, _), new in pairs]
        unchanged = [Carried(outside, nodes[inside], nodes[inside]) for outside, inside in loop.unchanged]
        is_kept = [resolved(each.new) is each.inside for each in carried]
        return cls(
            loop,
            location,
            graph,
            tuple(each for each, kept in zip(carried, is_kept, strict=True) if not kept),
            (*unchanged, *(each for each, kept in zip(carried, is_kept, strict=True) if kept)),
            tuple((outside, nodes[inside]) for outside, inside in loop.xs),
        )

    def places(self, *names: str) -> Iterator[Place]:
        """The operations of primitives of these names, each where it is met."""
        wanted = primitives(*names)
        return (place for place in self.graph.places if place.step.equation.primitive in wanted)

    @property
    def random(self) -> set[Node]:
        """The values that depend on random bits drawn in the body."""
        return after(node for place in self.places("random_bits", "threefry2x32") for node in place.outputs)

    @property
    def counters(self) -> Iterator[Carried]:
        """The integers to which each iteration adds a number, also where the sum begins anew at a limit."""
        added = {id(plain(node)): place for place in self.places("add") for node in place.inputs if _is_counted(place)}
        for each in self.changing:
            place = added.get(id(each.inside))
            is_count = not each.value.shape and each.is_of(jnp.integer)
            if is_count and place is not None and each.new in after(place.outputs):
                yield each


def bodies(audited: Audited) -> list[Body]:
    """The bodies of loops that the user wrote, and whose results are used."""
    return [
        Body.of(audited, loop_of(step), location)
        for step, location in audited.of("scan", "while")
        if is_called(step, "scan", "while_loop", "fori_loop")
        and "transpose" not in transformations(step.equation)
        and not audited.live.isdisjoint(step.outputs)
    ]


def after(start: Iterable[Node]) -> set[Node]:
    """Some values, and all that depend on them."""
    return downstream(start, smoothly=False)


def made_by(node: Node, *names: str) -> Place | None:
    """The operation that a value comes out of, if it is one of these, before changes of its shape and of its type."""
    place = plain(node).place
    return place if place is not None and place.step.equation.primitive in primitives(*names) else None


def unscaled(node: Node) -> Node:
    """A value before it was multiplied by numbers."""
    while (place := made_by(node, "mul")) is not None:
        others = [each for each in place.inputs if each.value.number is None]
        if len(others) != 1:
            break
        (node,) = others
    return node


def _is_counted(place: Place) -> bool:
    return any(node.value.number is not None for node in place.inputs)
