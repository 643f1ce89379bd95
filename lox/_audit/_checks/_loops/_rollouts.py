"""Ends of episodes that one loop puts out, and later computations that read them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import jax.numpy as jnp

from lox._audit._attained import plain
from lox._audit._audited import Audited
from lox._audit._bodies import Body, Carried, after, bodies
from lox._audit._checks._loops._ended import causes, chosen
from lox._audit._checks._loops._episodes import RETURNS
from lox._audit._checks._loops._memories import MEMORY
from lox._audit._dependence import Node, upstream
from lox._audit._ends import is_boolean
from lox._audit._findings import Finding
from lox._audit._origins import FLOWS
from lox._audit._program import Value


class PutOut(NamedTuple):
    """A value that a loop puts out in each iteration.

    Attributes:
        body: The body of the loop.
        node: The value in the body.
        value: The array outside that has one of these for each iteration.
    """

    body: Body
    node: Node
    value: Value

    @property
    def name(self) -> str:
        return self.node.value.written or self.value.called


def put_out(audited: Audited) -> dict[Value, PutOut]:
    """The values that the loops of a program put out, by the array of them all."""
    found = {}
    for body in audited.once(bodies):
        count = len(body.loop.carry)
        results = zip(body.graph.outputs[count:], body.loop.step.outputs[count:], strict=True)
        found.update({value: PutOut(body, plain(node), value) for node, value in results})
    return found


def reset_too_early(audited: Audited) -> Iterator[Finding]:
    """LOX221: a memory is reset before it reads an observation, where the episode ends after that observation."""
    made = audited.once(put_out)
    for body in audited.once(bodies):
        scanned = {node: made.get(audited.origins.of(value, FLOWS)) for value, node in body.scanned}
        known = {node: each for node, each in scanned.items() if each is not None and each.body is not body}
        if body.loop.step.equation.params.get("reverse", False) or not any(is_boolean(node.value) for node in known):
            continue
        for memory in body.changing:
            found = next(_resets(body, memory, known), None)
            if found is not None:
                flag, read = found
                yield MEMORY.at(
                    body.location,
                    f"A loop resets {memory.name} where {flag.name} is set, and then reads {read.name} of that step. "
                    f"The loop that put both out computes {flag.name} from {read.name}: that observation is the last "
                    "of its episode, and what the memory has of the episode is lost before it.",
                )


def _resets(body: Body, memory: Carried, known: Mapping[Node, PutOut]) -> Iterator[tuple[PutOut, PutOut]]:
    """The flags that reset a memory as it comes from the step before, with an observation that it then reads."""
    for place in body.places("select_n", "mul"):
        case = chosen(place.outputs[0])
        flag = None if case is None else known.get(case.flag)
        if case is None or flag is None or plain(case.unset) is not memory.inside:
            continue
        onward = after(place.outputs)
        for node, read in known.items():
            is_read = memory.new in onward & after([node]) and read.body is flag.body
            if is_read and _is_before(read, flag):
                yield flag, read


def _is_before(read: PutOut, flag: PutOut) -> bool:
    """Say whether a value is what an iteration gets from the one before, and a flag is computed from it."""
    carried = {each.inside for each in read.body.changing if each.is_of(jnp.floating)}
    return read.node in carried and flag.node not in carried and flag.node in after([read.node])


def bootstrapped_after_reset(audited: Audited) -> Iterator[Finding]:
    """LOX220: a value of the state after a reset is made zero by a flag of only some of the resets."""
    made = audited.once(put_out)
    for state in made.values():
        case = chosen(state.node)
        narrow = causes(case.flag) - {plain(case.flag)} if case is not None else set()
        beside = [each for each in made.values() if each.body is state.body]
        flags = [each for each in beside if each.node in narrow and is_boolean(each.node.value)]
        if case is None or not flags:
            continue
        whole = [each for each in beside if each.node in (plain(case.flag), plain(case.unset))]
        yield from _bootstraps(audited, state, flags, whole)


def _bootstraps(audited: Audited, state: PutOut, flags: list[PutOut], whole: list[PutOut]) -> Iterator[Finding]:
    """Values that are computed from a state after a reset, and made zero where one of some flags is set.

    Those that also depend on one of `whole`, by which a reset or the state before it is known, are left out.
    """
    outside = {
        node.value: node
        for place in audited.dependence.places
        if place.step is state.body.loop.step
        for node in place.outputs
    }
    for place in audited.dependence.places:
        masked = chosen(place.outputs[0]) if place.step.equation.primitive.name in ("select_n", "mul") else None
        flag = next((each for each in flags if masked and plain(outside[each.value]) is masked.flag), None)
        if masked is None or flag is None or not (masked.set is None or masked.set.value.number == 0):
            continue
        needed = upstream([masked.unset], smoothly=False)
        if outside[state.value] in needed and needed.isdisjoint(outside[each.value] for each in whole):
            yield RETURNS.at(
                place.location,
                f"{state.name} is the state after a reset, and {masked.unset.value.called}, which is computed from it, "
                f"is only left out where {flag.name} is set. At the other resets it belongs to the next episode.",
                severity="warning",
            )


CHECKS = (reset_too_early, bootstrapped_after_reset)
