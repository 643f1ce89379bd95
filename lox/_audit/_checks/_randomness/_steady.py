"""Values that are the same each time a block runs, as the indices are that a loop in it counts again."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

from lox._audit._program import Block, Region, Step, Value


class Steady:
    """The values that are the same each time a block runs.

    Args:
        block: The block.
        inputs: Those of its inputs that are the same each time. Of what a loop carries or goes over, the same means
            that the values of its iterations are the same in their order.
    """

    def __init__(self, block: Block, inputs: Set[Value]) -> None:
        self._others = {*block.inputs} - inputs
        self._within: dict[Region, Steady] = {}
        for step in block.steps:
            if step.regions:
                self._others.update(self._changed(step))
            elif step.equation.effects or not self._others.isdisjoint(step.inputs):
                self._others.update(step.outputs)

    def has(self, what: Any) -> bool:
        """Say whether it is the same: a number, a value of the block, or a step of it with what is inside that."""
        if not isinstance(what, tuple):
            return isinstance(what, int) or what not in self._others
        step, inner = what
        return len(step.regions) == 1 and step.regions[0].kind != "apart" and self._inside(step.regions[0]).has(inner)

    def _changed(self, step: Step) -> Set[Value]:
        """The results of what a step runs that are not the same each time."""
        if [region.kind for region in step.regions] != ["call"]:
            return {*step.outputs}
        (region,) = step.regions
        return {outside for outside, inside, _ in region.outputs if not self._inside(region).has(inside)}

    def _inside(self, region: Region) -> Steady:
        if region not in self._within:
            steady = {inside for outside, inside, _ in region.inputs if outside not in self._others}
            while True:
                found = Steady(region.block, steady)
                carried = zip(region.carried, region.block.outputs, strict=False)
                changed = {each.inside for each, after in carried if not found.has(after)} & steady
                if not changed:
                    break
                steady -= changed
            self._within[region] = found
        return self._within[region]
