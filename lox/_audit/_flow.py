"""The data flow of a program as rows of text: folded by line of source, call and loop."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Literal, get_args

from lox._audit._location import NOWHERE, Location, locate, located
from lox._audit._program import Block, Step, Value
from lox._effect import log_p, received
from lox._events import events

Detail = Literal["calls", "lines", "equations"]
DETAILS: tuple[str, ...] = get_args(Detail)


@dataclasses.dataclass(frozen=True)
class Row:
    """A line of the data flow.

    Attributes:
        depth: How many calls, loops and branches it is in.
        what: What happens: the line of source, or the operations.
        values: What comes out, one text each.
        sources: The names of what goes in: of arguments and of rows.
        name: What other rows call it.
        notes: What else is to be said, such as that a value is dropped.
        location: Where it comes from.
    """

    depth: int
    what: str
    values: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    name: str = ""
    notes: tuple[str, ...] = ()
    location: Location = NOWHERE


def describe(value: Value) -> str:
    """The type of a value with the labels of its axes, and its range, as in ``float32[32 time, 64] in [0, 1]``."""
    aval = value.aval
    if not hasattr(aval, "shape") or not hasattr(aval, "dtype"):
        return str(aval)
    known = str(value.fact.range) if aval.dtype.name != "bool" else ""
    return f"{aval.dtype.name}[{value.axes}]{f' in {known}' if known else ''}"


def has_lines_of_its_own(step: Step) -> bool:
    """A step runs code that is written on another line than itself, or that logs, unlike functions of JAX."""
    here = locate(step.equation)
    inner = (found for block in step.blocks for found in located(block, here))
    return any(each.equation.primitive is log_p or location != here for each, location in inner)


def rows(block: Block, detail: Detail) -> list[Row]:
    """The data flow of a program.

    Args:
        block: The program.
        detail: Whether there is a row for each call, loop, branch and log; for each line of source as well; or for
            each equation.
    """
    return list(_Rows(detail).of_block(block, 0))


class _Rows:
    def __init__(self, detail: Detail):
        self.detail = detail
        self.names: dict[Value, tuple[str, ...]] = {}
        self.numbers = itertools.count(1)
        self.shown: set[Block] = set()

    def of_block(self, block: Block, depth: int) -> Iterator[Row]:
        for value in block.inputs:
            self.names[value] = (value.name,) if value.name else ()
            if value.name or not depth:
                notes = () if value.uses else ("never used",)
                yield Row(depth, value.name, (describe(value),), name=value.name, notes=notes)
        alone = itertools.count(1)

        def group(step: Step) -> tuple[bool, Location, int]:
            """A key that is equal for neighbouring steps that share a row."""
            opens = self._opens(step)
            single = opens or self.detail == "equations" or step.equation.primitive is log_p
            return opens, locate(step.equation), next(alone) if single else 0

        for (opens, location, _), steps in itertools.groupby(block.steps, group):
            yield from self._of_steps(list(steps), depth, opens, location)

    def _opens(self, step: Step) -> bool:
        """True if the report shows the steps inside this step."""
        return bool(step.blocks) if self.detail == "equations" else has_lines_of_its_own(step)

    def _of_steps(self, steps: list[Step], depth: int, opens: bool, location: Location) -> Iterator[Row]:
        first = steps[0]
        made = {value for step in steps for value in step.outputs}
        taken = [value for step in steps for value in step.inputs]
        sources = tuple(dict.fromkeys(name for value in taken for name in self.names.get(value, ())))
        if first.equation.primitive is log_p:
            nodes, _ = received(first.inputs, first.equation.params)
            for event in events(nodes):
                values = tuple(f"{key}: {describe(value)}" for key, value in event.values.items())
                yield Row(depth, "lox.log", values, sources, location=location)
            return
        uses_here = Counter(taken)
        results = [value for step in steps for value in step.outputs if value.uses > uses_here[value]]
        if self.detail == "calls" and not opens:
            self.names.update(dict.fromkeys(made, sources))
            return
        name = f"#{next(self.numbers)}"
        self.names.update(dict.fromkeys(made, (name,)))
        what = location.code if self.detail == "lines" else ""
        if opens:
            what = first.blocks[0].kind if len(first.blocks) == 1 else first.equation.primitive.name
        what = what or ", ".join(dict.fromkeys(step.equation.primitive.name for step in steps))
        blocks = [block for block in first.blocks if block not in self.shown] if opens else []
        self.shown.update(blocks)
        notes = (*(() if results else ("dropped",)), *(("as above",) if opens and not blocks else ()))
        yield Row(depth, what, tuple(map(describe, results)), sources, name, notes, location)
        several = len(first.blocks) > 1
        for block in blocks:
            if several:
                yield Row(depth + 1, block.kind)
            yield from self.of_block(block, depth + 1 + several)
