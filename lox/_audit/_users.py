"""What is made of a value, through calls."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator

from lox._audit._location import Location
from lox._audit._program import Step, Value


class Users:
    """The steps that take the values of a program; of a call, those inside it."""

    def __init__(self, steps: Iterable[tuple[Step, Location]]) -> None:
        self._steps: dict[Value, list[Step]] = collections.defaultdict(list)
        self._passed: dict[Value, list[Value]] = collections.defaultdict(list)
        for step, _ in steps:
            regions = [region for region in step.regions if region.kind == "call"]
            for region in regions:
                for outside, inside, _ in region.inputs:
                    self._passed[outside].append(inside)
                for outside, inside, _ in region.outputs:
                    self._passed[inside].append(outside)
            for value in () if regions else step.inputs:
                self._steps[value].append(step)

    def of(self, value: Value) -> Iterator[Step]:
        """The steps that take a value, under whichever name."""
        for each in self.names(value):
            yield from self._steps.get(each, ())

    def names(self, value: Value) -> set[Value]:
        """What a value is outside and inside the calls that it goes into and comes out of."""
        found, left = {value}, [value]
        while left:
            new = set(self._passed.get(left.pop(), ())) - found
            found |= new
            left += new
        return found
