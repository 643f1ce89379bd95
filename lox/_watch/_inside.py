"""Puts what encloses points before their paths."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import jax
import jax.extend.source_info_util as source_info

from lox import _compat
from lox._effect import Layout, LogEffect, received
from lox._events import Event, Logs, map_events
from lox._handler import Filter, State, rules
from lox._logs_in import rules_in
from lox._watch._marks import NO_PLACE, Place, is_mark, mapped, places_in
from lox._watch._points import RULE, WHOLE, Before, Numbers, Part, relative
from lox._watch._remembered import opened


class Run:
    """One run of a rule that runs in place of a function.

    Attributes:
        parent: What numbers the jaxprs with marks that JAX evaluates in it, as soon as there is one.
        evaluates: Whether JAX evaluates one now.
    """

    parent: Any = None
    evaluates = False

    @contextlib.contextmanager
    def evaluating(self, value: bool) -> Iterator[None]:
        """The context in which JAX evaluates a jaxpr with marks, or no longer does."""
        before, self.evaluates = self.evaluates, value
        try:
            yield
        finally:
            self.evaluates = before


@dataclasses.dataclass(frozen=True)
class Inside(Filter):
    """Puts the path of what encloses them before the paths of marks.

    Attributes:
        parts: The path.
        numbers: By name, the number of parts of that name that come before, where nothing is put before the path.
        scopes: The same for what is in name stacks, and has the numbers of the forward pass in a backward pass.
        home: Identifies the traced function that runs what encloses them; 0 where none is traced.
        of: "function" around a function with rules of its own, "rule" around such a rule, "" around another.
        rule: Of a function with rules of its own: the part of a rule among the scopes that are open then.
        is_open: Whether the part of the rule is among the scopes that are open where JAX binds the function.
        loops: 1 if what encloses them is a loop.
        outer: What encloses this in turn, which is not on Python's stack then; None if it is.
        call: Of the backward pass that a function has as a rule: the path to the call of this function. The path of
            the backward pass itself comes from what JAX transposes, if JAX does so inside the watched function.
        context: The scopes in which a function with rules, or a rule, runs.
        run: Identifies one run of a rule.
        asked: Identifies who asks for the levels in it: see `levels_begun`.
    """

    sees_tapped = True

    parts: tuple[Part, ...]
    numbers: Numbers = ()
    scopes: Numbers = ()
    home: int = 0
    of: Literal["", "function", "rule"] = ""
    rule: Part | None = None
    is_open: bool = False
    loops: int = 0
    outer: Inside | None = None
    call: tuple[Part, ...] = ()
    context: tuple[Any, ...] = dataclasses.field(default=(), compare=False)
    run: Run | None = dataclasses.field(default=None, compare=False)
    asked: int = dataclasses.field(default=0, compare=False)

    def rewrite(self, state: State, logs: Logs) -> Logs:
        return map_events(lambda event, _: self._moved(event), logs)

    @contextlib.contextmanager
    def in_function(self, state: State, is_rule: bool) -> Iterator[tuple[Inside, State]]:
        if not self.of:
            yield self, state
        elif is_rule and self.rule is not None:
            with contextlib.nullcontext() if self.is_open else opened(self.rule):
                yield (
                    dataclasses.replace(self._of_rule, context=source_info.current_name_stack().stack, run=Run()),
                    state,
                )
        else:
            with contextlib.nullcontext() if self.run is None else self.run.evaluating(False):
                yield dataclasses.replace(self, context=source_info.current_name_stack().stack), state

    def in_backward_rule(self, state: State) -> tuple[Filter, State]:
        here = (self if self.rule is None else self._of_rule).place(NO_PLACE)
        return Inside((), call=(*here.call, *here.parts)), state

    @property
    def _of_rule(self) -> Inside:
        """The handler of a rule that runs in place of the function."""
        parts = (*self.parts, RULE.after(Before(self.numbers)))
        return dataclasses.replace(self, parts=parts, numbers=(), scopes=(), of="rule")

    @property
    def moves(self) -> bool:
        """True if it changes paths."""
        return dataclasses.replace(self, call=(), home=0) != Inside(())

    def _moved(self, event: Event) -> Event:
        return dataclasses.replace(event, site=self.place(event.site)) if isinstance(event.site, Place) else event

    def place(self, place: Place) -> Place:
        """The place of a mark inside, with the path of what encloses it."""
        place = self._next_place(place)
        return place if self.outer is None else self.outer.place(place)

    def _next_place(self, place: Place) -> Place:
        if self.of and place.parts[:1] == (WHOLE,):
            return dataclasses.replace(place, parts=place.parts[1:])
        parts = (*self.parts, *self._after(relative(place.parts), self.numbers))
        return dataclasses.replace(place, parts=parts, loops=place.loops + self.loops, call=(*self.call, *place.call))

    def _after(self, parts: Sequence[Part], numbers: Numbers) -> Sequence[Part]:
        """Parts after what comes before in their parent. Those in name stacks are the same in a backward pass."""
        if not parts:
            return parts
        first, *rest = parts
        first = first.after(Before(self.scopes if first.is_in_stack else numbers, self.home))
        return first, *(self._after(rest, ()) if first.is_pass else rest)


def moved(params: dict[str, Any], inside: Inside) -> dict[str, Any] | None:
    """The parameters of a primitive with longer paths of the marks in it; None where rules may emit more marks."""
    return None if rules_in(params) else mapped(params, lambda jaxpr: _moved(jaxpr, inside))


@_compat.weakref_lru_cache
def _moved(jaxpr: Any, inside: Inside) -> Any:
    if not places_in({"jaxpr": jaxpr}):
        return jaxpr

    def params(eqn: Any) -> dict[str, Any]:
        if not is_mark(eqn):
            return mapped(eqn.params, lambda inner: _moved(inner, inside)) if eqn.primitive in rules else eqn.params
        logs, to = received([var.aval for var in eqn.invars], eqn.params)
        logs = inside.rewrite(None, logs)
        return eqn.params | {"layout": Layout(jax.tree.structure((logs, to)), logs, to)}

    return _compat.filter_equations(jaxpr, lambda eqn: True, params, LogEffect)
