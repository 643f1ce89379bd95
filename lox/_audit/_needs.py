"""What is needed for what: the way of the data through a program, backward."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lox._audit._program import Block, Region, Step, Value


def live(program: Block) -> set[Value]:
    """The values, also inside steps, that have a part in what comes out of a program, or in what it does besides."""
    needs = _Needs()
    needs.of(program, frozenset(program.outputs))
    return needs.found


def read(block: Block, results: Iterable[Value] | None = None) -> set[Value]:
    """The values of a block that have a part in these results of it, or in all, or in what it does besides."""
    return _Needs().of(block, frozenset(block.outputs if results is None else results))


class _Needs:
    """What results need, through calls, branches and loops.

    Attributes:
        found: All values that were found, of whichever block.
    """

    def __init__(self) -> None:
        self.found: set[Value] = set()
        self._known: dict[tuple[Block, frozenset[Value]], set[Value]] = {}  # What calls itself twice is called often.

    def of(self, block: Block, results: frozenset[Value]) -> set[Value]:
        """The values of a block that these results of it need, or its effects."""
        if (block, results) not in self._known:
            needed = set(results)
            for step in reversed(block.steps):
                if step.equation.effects or not needed.isdisjoint(step.outputs):
                    needed.update(self._operands(step, needed))
            self._known[block, results] = needed
            self.found |= needed
        return self._known[block, results]

    def _operands(self, step: Step, needed: set[Value]) -> Iterable[Value]:
        """The operands of a step that are needed when these results are."""
        regions = step.regions
        if not regions or regions[0].kind == "apart":
            for region in regions:
                self.of(region.block, frozenset(region.block.outputs))
            return step.inputs
        results = [{crossed.inside for crossed in region.outputs if crossed.outside in needed} for region in regions]
        if regions[0].kind == "condition":
            results[0].update(regions[0].block.outputs)
        while True:
            inner = [self.of(region.block, frozenset(own)) for region, own in zip(regions, results, strict=True)]
            more = self._given_on(regions, inner) - results[-1]
            if not more:
                break
            results[-1] |= more
        pairs = zip(regions, inner, strict=True)
        operands = {crossed.outside for region, own in pairs for crossed in region.inputs if crossed.inside in own}
        return operands | {*step.inputs[:1]} if regions[0].kind == "branch" else operands

    def _given_on(self, regions: Sequence[Region], inner: Sequence[set[Value]]) -> set[Value]:
        """What the body of a loop has to give on, since the next iteration or the condition needs it."""
        body = regions[-1]
        if body.kind != "body":
            return set()
        both = zip(regions, inner, strict=True)
        places = {place for region, own in both for place, each in enumerate(region.carried) if each.inside in own}
        return {body.block.outputs[place] for place in places}
