"""All that is known of a function that is audited."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from lox._audit._capture import Capture
from lox._audit._dependence import Dependence
from lox._audit._location import Location, located, transformations
from lox._audit._needs import live
from lox._audit._origins import Origins
from lox._audit._program import Block, Step, Value
from lox._audit._rules import primitives
from lox._audit._users import Users

Made = TypeVar("Made")


@dataclasses.dataclass(frozen=True, eq=False)
class Audited:
    """A function with what tracing it showed.

    Attributes:
        fun: The function.
        arguments: The positional and the keyword arguments of each call, the first one first.
        captured: What tracing the first call gave.
        program: Its program, with what is known of each value.
        differentiate: The names of the arrays among the arguments that it is to be differentiated by.
        others: What tracing the other calls gave.
        check_rules: Whether custom derivative rules are compared with their functions, which computes.
    """

    fun: Callable[..., Any]
    arguments: tuple[tuple[tuple[Any, ...], dict[str, Any]], ...]
    captured: Capture
    program: Block
    differentiate: tuple[str, ...] = ()
    others: tuple[Capture, ...] = ()
    check_rules: bool = False
    _made: dict[Any, Any] = dataclasses.field(default_factory=dict, init=False, repr=False)

    @functools.cached_property
    def steps(self) -> tuple[tuple[Step, Location], ...]:
        """All steps, also those inside others, each with its line."""
        return tuple(located(self.program))

    @functools.cached_property
    def live(self) -> set[Value]:
        """The values that are not computed in vain, as the tangents are that a derivative drops."""
        return live(self.program)

    @functools.cached_property
    def lines(self) -> dict[Step, Location]:
        """The line of each step."""
        return dict(self.steps)

    @functools.cached_property
    def differentiates(self) -> bool:
        """Whether the program takes a derivative backwards, as a step of training does."""
        return any("transpose" in transformations(step.equation) for step, _ in self.steps)

    @functools.cached_property
    def dependence(self) -> Dependence:
        """What depends on what in the program, and whether differentiably."""
        return Dependence.of(self.program, self.lines)

    @functools.cached_property
    def origins(self) -> Origins:
        """Where the values come from, through calls."""
        return Origins(self.steps)

    @functools.cached_property
    def users(self) -> Users:
        """What takes each value, through calls."""
        return Users(self.steps)

    def once(self, make: Callable[[Audited], Made]) -> Made:
        """What is made of this, by a function or a class: once, however many checks ask for it."""
        if make not in self._made:
            self._made[make] = make(self)
        return self._made[make]

    def of(self, *names: str) -> Iterator[tuple[Step, Location]]:
        """The steps of primitives of these names, each with its line."""
        for primitive in dict.fromkeys(primitive for name in names for primitive in primitives(name)):
            yield from self._by_primitive.get(primitive, ())

    def has(self, *names: str) -> bool:
        """Whether there is a step of a primitive of these names."""
        return not self._by_primitive.keys().isdisjoint(primitives(*names))

    @functools.cached_property
    def _by_primitive(self) -> dict[Any, list[tuple[Step, Location]]]:
        found: dict[Any, list[tuple[Step, Location]]] = {}
        for step, location in self.steps:
            found.setdefault(step.equation.primitive, []).append((step, location))
        return found
