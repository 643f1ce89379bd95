"""Facts that go through a program from its inputs to its results: one abstract interpreter for all of them."""

from __future__ import annotations

import abc
import itertools
from collections.abc import Sequence
from typing import Generic, TypeVar

from lox._audit._program import Step
from lox._audit._regions import Ports, Role

F = TypeVar("F")


class Forward(abc.ABC, Generic[F]):
    """A domain of facts, and how operations change them. Calls, branches and loops are followed here.

    Of a loop, facts are those that hold in each iteration: it is looked at until they do not change any more. What is
    looked at meanwhile is not final, see `is_searching`.
    """

    is_searching = False
    """Whether the facts of a loop are not final yet."""

    most_iterations: int | None = None
    """How many iterations are looked at until facts are taken as they are, in a domain that has no end."""

    @abc.abstractmethod
    def join(self, facts: Sequence[F]) -> F:
        """The fact about a value that is one of several."""

    @abc.abstractmethod
    def transfer(self, step: Step, facts: Sequence[F]) -> Sequence[F]:
        """Facts of the results of a step that is no call, branch or loop."""

    @abc.abstractmethod
    def inside(self, step: Step, place: int, facts: Sequence[F]) -> Sequence[F]:
        """Facts of the outputs of a region of a step, from those of its inputs."""

    def widen(self, old: F, new: F, times: int) -> F:
        """A fact of what a loop carries, from two iterations: one that ends where facts would change without end."""
        return new

    def enter(self, step: Step, fact: F, role: Role) -> F:
        """A fact inside a region about what is outside, where they differ: a scan takes one element of each."""
        return fact

    def leave(self, step: Step, fact: F, role: Role) -> F:
        """A fact about a result of a step, of what is the output of a region."""
        return fact

    def decide(self, by: F, fact: F) -> F:
        """A fact about a result, of what says which branch makes it."""
        return fact

    def until(self, again: F, fact: F) -> F:
        """A fact about what a while loop carries, of what says whether there is another iteration."""
        return self.decide(again, fact)

    def through(self, step: Step, facts: Sequence[F]) -> Sequence[F]:
        """Facts of the results of a step."""
        ports = step.ports
        if not ports or ports[0].kind == "apart":
            return self.transfer(step, facts)
        if ports[-1].kind == "body":
            return self._loop(step, ports, facts)
        ways = [self.inside(step, place, self._enter(step, each, facts)) for place, each in enumerate(ports)]
        results = [self.join(way) for way in zip(*ways, strict=True)]
        if ports[0].kind == "branch":
            results = [self.decide(facts[0], result) for result in results]
        return results

    def _enter(self, step: Step, ports: Ports, facts: Sequence[F]) -> list[F]:
        return [self.enter(step, facts[port.place], port.role) for port in ports.inputs]

    def _loop(self, step: Step, ports: Sequence[Ports], facts: Sequence[F]) -> list[F]:
        body, place = ports[-1], len(ports) - 1
        given, carried = self._enter(step, body, facts), body.carried
        was_searching, self.is_searching = self.is_searching, True
        try:
            for times in itertools.count():
                outputs = self.inside(step, place, given)
                before = [given[each] for each in carried]
                after = [self.join(pair) for pair in zip(before, outputs, strict=False)]
                if after == before or times == self.most_iterations:
                    break
                for each, old, new in zip(carried, before, after, strict=True):
                    given[each] = self.widen(old, new, times)
        finally:
            self.is_searching = was_searching
        outputs = self.inside(step, place, given)
        if len(ports) == 1:
            is_run = step.equation.params["length"] != 0
            results = list(outputs) if is_run else [*before, *outputs[len(carried) :]]
            return [self.leave(step, fact, port.role) for fact, port in zip(results, body.outputs, strict=True)]
        # A while loop may end before its first iteration.
        known = {port.place: fact for port, fact in zip(body.inputs, given, strict=True)}
        asked = [known.get(port.place, facts[port.place]) for port in ports[0].inputs]
        (again,) = self.inside(step, 0, asked)
        return [self.until(again, fact) for fact in before]
