"""What goes into a loop, and what of it is read."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

from lox import _compat
from lox._audit._audited import Audited
from lox._audit._location import Location, call, is_users, locate
from lox._audit._program import Block, Step, Value, is_call
from lox._audit._rules import primitives

_BRANCHED_OR_REPEATED = primitives("cond", "scan", "while")


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


def scans(audited: Audited) -> Iterator[tuple[Scan, Location]]:
    """All scans of a program; `fori_loop` and `map` are such where the number of iterations is known."""
    for step, location in audited.steps:
        if step.equation.primitive in primitives("scan"):
            yield scan_of(step), location


def scan_of(step: Step) -> Scan:
    """A step that is a scan, as one."""
    (body,) = step.blocks
    consts, carry = _compat.scan_counts(step.equation.params)
    both = tuple(zip(step.inputs, body.inputs, strict=True))
    carried = zip(both[consts : consts + carry], body.outputs, strict=False)
    return Scan(
        step,
        body,
        both[:consts],
        tuple((outside, inside, new) for (outside, inside), new in carried),
        both[consts + carry :],
        body.outputs[carry:],
    )


def is_called(step: Step, *names: str) -> bool:
    """Whether the user wrote a call of one of these functions of JAX that a step comes from, such as ``"scan"``."""
    return is_users(locate(step.equation).file) and not set(names).isdisjoint(call(step.equation)[1:])


def read(block: Block, results: Iterable[Value] | None = None) -> set[Value]:
    """The values of a block that have a part in these results of it, or in all, or in what it does besides."""
    known: dict[tuple[Block, frozenset[Value]], set[Value]] = {}  # What calls itself twice is called very often.

    def inside(block: Block, results: frozenset[Value]) -> set[Value]:
        if (block, results) in known:
            return known[block, results]
        found = set(results)
        for step in reversed(block.steps):
            if not step.equation.effects and found.isdisjoint(step.outputs):
                continue
            if len(step.blocks) == 1 and len(step.blocks[0].inputs) == len(step.inputs):
                (inner,) = step.blocks
                wanted = inner.outputs
                if is_call(step):
                    pairs = zip(inner.outputs, step.outputs, strict=True)
                    wanted = tuple(own for own, outside in pairs if outside in found)
                of_inner = inside(inner, frozenset(wanted))
                found.update(value for value, own in zip(step.inputs, inner.inputs, strict=True) if own in of_inner)
            else:
                found.update(step.inputs)
        known[block, results] = found
        return found

    return inside(block, frozenset(block.outputs if results is None else results))


def reached(block: Block, start: Iterable[Value]) -> set[Value]:
    """The values of a block that depend on some of it, these included."""
    found = set(start)
    for step in block.steps:
        if found.isdisjoint(step.inputs):
            continue
        inner = step.blocks[0] if len(step.blocks) == 1 else None
        if inner is None or len(inner.inputs) != len(step.inputs) or step.equation.primitive in _BRANCHED_OR_REPEATED:
            found.update(step.outputs)
        else:
            inside = reached(inner, [own for v, own in zip(step.inputs, inner.inputs, strict=True) if v in found])
            found.update(out for out, own in zip(step.outputs, inner.outputs, strict=True) if own in inside)
    return found


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
