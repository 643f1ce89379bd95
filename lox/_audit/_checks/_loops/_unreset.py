"""Memories over several episodes whose ends the program knows, and does not reset them at."""

from __future__ import annotations

from collections.abc import Iterator

import jax.numpy as jnp

from lox._audit._audited import Audited
from lox._audit._bodies import Body, Carried, after, bodies
from lox._audit._checks._loops._memories import MEMORY
from lox._audit._dependence import upstream
from lox._audit._ends import is_boolean, last_name, says_end
from lox._audit._findings import Finding
from lox._audit._origins import FLOWS
from lox._audit._program import Value
from lox._audit._rules import primitives

_SQUASHES = primitives("tanh", "logistic")


def unreset(audited: Audited) -> Iterator[Finding]:
    """LOX221: a recurrent network goes over several episodes, and their ends cut only what another loop carries."""
    ends = [value for value in audited.program.inputs if value.name and says_end(value.name, is_boolean(value))]
    if not ends:
        return
    every = audited.once(bodies)
    scanned = {body: {audited.origins.of(value, FLOWS) for value, _ in body.scanned} for body in every}
    for body in every:
        memory = next((each for each in body.changing if _is_memory(body, each)), None)
        if memory is None or _gets_flags(body) or not scanned[body] & {*audited.program.inputs}:
            continue
        length = body.loop.step.equation.params.get("length")
        for flags in ends:
            others = [other for other in every if flags in scanned[other] and other is not body]
            if flags.shape[:1] == (length,) and others and flags not in _read(body, audited):
                yield MEMORY.at(
                    body.location,
                    f"A loop carries {memory.name} of a recurrent network over {length} steps, and does not get "
                    f"{flags.name}, at which another loop ends its sums: it remembers one episode in the next.",
                )
                break


def _is_memory(body: Body, carried: Carried) -> bool:
    """Say whether what is carried goes through a layer of a network, and starts as zeros."""
    if not carried.is_of(jnp.floating) or carried.outside.number != 0 or not carried.value.shape:
        return False
    own = after([carried.inside])
    squashed = {
        node for place in body.graph.places if place.step.equation.primitive in _SQUASHES for node in place.outputs
    }
    multiplied = {node for place in body.places("dot_general") if own & {*place.inputs} for node in place.outputs}
    return carried.new in after(multiplied & own) and carried.new in after(squashed & own)


def _gets_flags(body: Body) -> bool:
    """Say whether a body scans flags, or what is called by the name of one."""
    named = [
        name for outside, node in body.scanned for name in (outside.name, outside.written, node.value.name) if name
    ]
    return any(is_boolean(node.value) for _, node in body.scanned) or any(says_end(last_name(n), True) for n in named)


def _read(body: Body, audited: Audited) -> set[Value]:
    """The arguments of the program that go into a loop."""
    steps = [place for place in audited.dependence.places if place.step is body.loop.step]
    return {node.value for place in steps for node in upstream(place.inputs, smoothly=False)}


CHECKS = (unreset,)
