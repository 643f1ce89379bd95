"""Loops that train, whose results are thrown away, and whose beginnings are returned."""

from __future__ import annotations

from collections.abc import Iterator

from lox._audit._audited import Audited
from lox._audit._checks._results._replaced import OLD
from lox._audit._findings import Finding, Held
from lox._audit._location import transformations
from lox._audit._loops import is_called, loop_of, reached
from lox._audit._program import Block, Crossed, Step, Value, blocks_in, steps_in
from lox._audit._rules import primitives

_LOOPS = primitives("scan", "while")


def thrown(audited: Audited) -> Iterator[Finding | Held]:
    """LOX431: a loop trains what it carries, and what it began with is returned or used in place of the last."""
    for block in blocks_in(audited.program):
        for step in block.steps:
            if step.equation.primitive not in _LOOPS or not is_called(step, "scan", "while_loop", "fori_loop"):
                continue
            is_differentiated = {"jvp", "transpose"} & {*transformations(step.equation)}
            is_used = not audited.live.isdisjoint(step.outputs)
            trained = _trained(audited, step) if is_used and not is_differentiated else {}
            returned = {audited.origins.of(value, frozenset()) for value in audited.once(_ends)[block]}
            starts = {inside: audited.origins.of(start, frozenset()) for inside, start in trained.items()}
            used = [inside for inside, start in starts.items() if _is_used_after(audited, block, step, start)]
            if trained and (returned.issuperset(starts.values()) or used):
                name = next(iter(used or trained)).name or trained[next(iter(used or trained))].called
                yield OLD.at(
                    audited.lines[step],
                    f"A loop trains {name} by its gradient. Nothing reads what it ends with, and what it began with is "
                    f"{'used after it' if used else 'returned'}.",
                )


def _is_used_after(audited: Audited, block: Block, loop: Step, start: Value) -> bool:
    """Say whether what a loop began with is read after it, by what neither trains it again nor differentiates."""
    later = block.steps[block.steps.index(loop) + 1 :]
    inside = {each for step in later for each in steps_in(step)}
    readers = [each for each in audited.users.of(start) if each in inside and not audited.live.isdisjoint(each.outputs)]
    again = (carried.outside for each in readers if each.equation.primitive in _LOOPS for carried in _carried(each))
    differentiated = any({"jvp", "transpose"} & {*transformations(each.equation)} for each in readers)
    is_array = bool(start.shape)
    return is_array and bool(readers) and not differentiated and not audited.users.names(start) & {*again}


def _carried(loop: Step) -> Iterator[Crossed]:
    return (each for region in loop.regions for each in region.carried)


def _trained(audited: Audited, step: Step) -> dict[Value, Value]:
    """Values that a loop changes by gradients and whose results nothing reads: in the body, and before the loop."""
    loop = loop_of(step)
    gradients = reached(loop.body, (value for each in loop.body.steps if _is_gradient(each) for value in each.outputs))
    carry = zip(loop.carry, step.outputs, strict=False)
    changed = [(outside, inside, new, end) for (outside, inside, new), end in carry if inside is not new]
    trained = [each for each in changed if each[2] in gradients]
    is_simulated = any(value.shape and value.shape == new.shape for value in loop.ys for _, _, new, _ in trained)
    if not loop.xs or is_simulated or any(end in audited.live for _, _, _, end in trained):
        return {}  # Without data, it may be the forces of a simulation that are derivatives.
    return {inside: outside for outside, inside, new, _ in trained if new in reached(loop.body, {inside})}


def _is_gradient(step: Step) -> bool:
    """Say whether a step is of the backward pass of a derivative, or calls one that is."""
    return any("transpose" in transformations(each.equation) for each in steps_in(step))


def _ends(audited: Audited) -> dict[Block, tuple[Value, ...]]:
    """The outputs of each block, with what a loop carries on unchanged.

    A loop that scans something may try it from the same beginning each time.
    """
    found = {block: block.outputs for block in blocks_in(audited.program)}
    for step, _ in audited.of("scan", "while"):
        loop = loop_of(step)
        if not loop.xs:
            found[loop.body] = (*loop.body.outputs, *(inside for _, inside in loop.unchanged))
    return found


CHECKS = (thrown,)
