"""Loops that train and drop each new state of the optimizer."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from lox._audit._audited import Audited
from lox._audit._checks._results._bindings import path_of
from lox._audit._checks._results._dropped import Part, computed_by
from lox._audit._checks._results._replaced import OLD
from lox._audit._findings import Finding
from lox._audit._location import frames
from lox._audit._loops import loop_of, reached
from lox._audit._program import Step, Value
from lox._audit._sources import Source, sources


def optimizers(audited: Audited) -> Iterator[Finding]:
    """LOX431: `updates, _ = optimizer.update(grads, state, ...)` in a loop that reads the same state each time."""
    if not audited.differentiates:
        return
    parts: list[Part] = [(source, node) for source in sources(audited) for node in _updates(source)]
    for (source, node), steps in computed_by(audited, parts).items():
        if _reads_again(audited, steps) and isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            state = ast.unparse(node.value.args[1])
            yield OLD.at(
                source.at(node),
                f"Each iteration of a loop computes a new one of '{state}' here and drops it: the optimizer starts "
                "anew each time.",
            )


def _updates(source: Source) -> Iterator[ast.Assign]:
    """The assignments that drop what a call of `update` returns beside the updates."""
    for node in source.executed:
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call) or len(node.targets) != 1:
            continue
        (target,), call = node.targets, node.value
        is_update = isinstance(call.func, ast.Attribute) and call.func.attr == "update" and len(call.args) > 1
        if is_update and path_of(call.args[1]) and isinstance(target, ast.Tuple) and len(target.elts) == 2:
            dropped = target.elts[1]
            if isinstance(dropped, ast.Name) and dropped.id.startswith("_"):
                yield node


def _reads_again(audited: Audited, steps: Sequence[Step]) -> bool:
    """Say whether the updates of a loop, of Python's or of JAX's, read the same arrays, and depend on those before."""
    own = {value for step in steps for value in step.outputs}
    read = [(value, step) for step in steps for value in step.inputs if value.shape and value not in own]
    if any(value in loop and own & fed for value, _ in read for loop, fed in audited.once(_unchanged)):
        return True
    seen: dict[object, Step] = {}
    for value, step in read:
        first = seen.setdefault((value, step.equation.primitive, frames(step.equation)), step)
        if first is not step:
            after = reached(audited.program, first.outputs)
            return any(each in after for each, _ in read)
    return False


def _unchanged(audited: Audited) -> list[tuple[set[Value], set[Value]]]:
    """For each loop: the inputs of its body that are the same in all iterations, and what its new carry is made of."""
    found = []
    for step, _ in audited.of("scan", "while"):
        loop = loop_of(step)
        changed = {inside for _, inside, new in loop.carry if inside is not new} | {inside for _, inside in loop.xs}
        made, left = set[Value](), [new for _, inside, new in loop.carry if inside is not new]
        while left:
            value = left.pop()
            if value not in made:
                made.add(value)
                left += value.maker.inputs if value.maker is not None else ()
        found.append(({value for value in loop.body.inputs if value not in changed}, made))
    return found


CHECKS = (optimizers,)
