"""Marks: the values at a point of the program, on their way to the watcher."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Literal, Protocol

import jax
import jax.extend.source_info_util as source_info
import numpy as np

from lox import _compat
from lox._ambient import ambient, counter_p, in_context
from lox._compat import _tracebacks
from lox._effect import Layout, LogEffect, as_array, emit, log_p, received, watching
from lox._events import Event, Logs, Site, events, map_events
from lox._handler import Filter, State
from lox._logs_in import jaxprs_in, logs_of, rules_in
from lox._site import Watched
from lox._watch._points import LOOPS, RULE, WHOLE, Kind, Numbers, Part, relative
from lox._watch._remembered import opened


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class ToWatcher:
    """The destination of marks: handlers leave them alone, as they do logs on their way to a tap."""

    ordered: ClassVar[bool] = False
    first: ClassVar[tuple[Any, ...]] = ()
    channel: ClassVar[Any] = None

    def leaves_out(self, logs: Logs) -> bool:
        """Tell the watcher around, of marks that JAX compiles, that it does not get them; False if there is none."""
        places = [each.site for each in events(logs) if isinstance(each.site, Place) and each.values]
        places = [each for each in places if _line(each) not in _announced]
        if places and watching.value is None:
            return False
        for each in places:
            cannot_watch(each, "jax.jit(f).lower() compiles it apart; watch the function that is lowered")
        return True


TO_WATCHER: Any = ToWatcher()


@dataclasses.dataclass(frozen=True)
class Place(Site):
    """The place of a mark, in the line of the program that runs it.

    Attributes:
        parts: Its path, from the function or loop on in which it was traced.
        kind: The kind of the point.
        obstacle: What keeps the point from being watched; "" where nothing does.
        prefix: What the contexts around put before keys.
        loops: The number of loops that it is in, of which its own is one if it is that of a loop.
        call: In the backward pass that a function has as a rule: the path to the call of this function.
    """

    parts: tuple[Part, ...] = ()
    kind: Kind = "scope"
    obstacle: str = ""
    prefix: str = ""
    loops: int = 0
    call: tuple[Part, ...] = ()


_NO_PLACE = Place("", 0, "", ())

_LIBRARIES = frozenset({"flax", "equinox", "haiku"})
_WITHOUT_LINES = frozenset({"jax", "jaxlib", "lox", "contextlib", "functools"})


def place(parts: tuple[Part, ...], kind: Kind) -> Place:
    """The place of a point, at the line that the program is at: the innermost outside libraries of layers."""
    frame: Any = sys._getframe(1)
    found: Any = None
    while frame is not None:
        root = _tracebacks.library_of(frame)
        if root not in _WITHOUT_LINES:
            found = found or frame
            if root not in _LIBRARIES:
                found = frame
                break
        frame = frame.f_back
    return Place(found.f_code.co_filename, found.f_lineno, found.f_code.co_name, (), parts=parts, kind=kind)


def place_of(eqn: Any, parts: tuple[Part, ...]) -> Place:
    """The place of the scope that an equation is in."""
    found = re.fullmatch(r"(.*?):(\d+)(?::\d+)? \((.*)\)", source_info.summarize(eqn.source_info))
    file, line, function = found.groups() if found else ("", "0", "")
    return Place(file, int(line), function, (), parts=parts)


def mark(place: Place, values: Sequence[Any]) -> None:
    """Emit the values at a point of the program. Those that are no arrays are left out."""
    found = {str(number): as_array(value) for number, value in enumerate(values) if _is_array(value)}
    if found:
        if ambient.value is not None:
            place = dataclasses.replace(place, prefix=ambient.value.prefix)
        event = in_context(Event(found, {}, None, (), place, optional=Watched()))
        event = dataclasses.replace(event, values=found)  # Their keys get the prefix with the path.
        emit((event,), TO_WATCHER)


def cannot_watch(at: Place, obstacle: str) -> None:
    """Emit a mark, without a value of the program, of a point that cannot be watched."""
    mark(dataclasses.replace(at, obstacle=obstacle), [np.zeros(())])


_announced: set[tuple[str, int, str, str]] = set()
"""Points in operations without a rule in lox, by line and kind. `lox.watch` has reported that it cannot see them."""


def announce(at: Place) -> None:
    """Remember a point that `cannot_watch` has reported, because its marks may stay where lox cannot edit them."""
    _announced.add(_line(at))


def _line(at: Place) -> tuple[str, int, str, str]:
    return at.file, at.line, at.function, at.kind


def _is_array(value: Any) -> bool:
    aval = jax.typeof(value)
    return isinstance(aval, jax.core.ShapedArray) and not _compat.is_ref(aval) and aval.dtype != jax.dtypes.float0


def places_in(params: dict[str, Any]) -> tuple[Place, ...]:
    """The places of the marks in the jaxprs among the parameters of a primitive, each once, in their order."""
    return tuple(dict.fromkeys(each for jaxpr in jaxprs_in(params) for each in _places(jaxpr)))


def places_at(eqn: Any) -> tuple[Place, ...]:
    """The places of the marks that an equation emits, or that are in it."""
    return tuple(_places_of(eqn)) if _is_mark(eqn) else places_in(eqn.params)


class Selection(Protocol):
    """Tells which marks are kept. It is hashable: jaxprs are remembered by it."""

    def selects(self, place: Place) -> bool:
        """Tell whether the marks of a place are kept."""

    def keeps_all(self, primitive: Any) -> bool:
        """Tell whether all marks in such a primitive are kept."""
        del primitive
        return False


@dataclasses.dataclass(frozen=True)
class Nothing(Selection):
    """Keeps no marks."""

    def selects(self, place: Place) -> bool:
        del place
        return False


@dataclasses.dataclass(frozen=True)
class NotInLoops(Selection):
    """Leaves out the marks of loops and branches, and of all that is in them: those of functions of JAX."""

    def selects(self, place: Place) -> bool:
        return not any(part.name in (*LOOPS, "cond") for part in place.parts)


def kept(primitive: Any, params: dict[str, Any], selection: Selection) -> dict[str, Any]:
    """The parameters of a primitive with some of the marks in the jaxprs among them."""
    if selection.keeps_all(primitive):
        return params
    return _mapped(params, lambda jaxpr: _kept(jaxpr, selection))


@_compat.weakref_lru_cache
def _kept(jaxpr: Any, selection: Selection) -> Any:
    if all(map(selection.selects, _places(jaxpr))):
        return jaxpr
    keeps = lambda eqn: not _is_mark(eqn) or any(map(selection.selects, _places_of(eqn)))  # noqa: E731
    left = _compat.filter_equations(jaxpr, keeps, lambda eqn: kept(eqn.primitive, eqn.params, selection), LogEffect)
    opened = _compat.open_jaxpr(left)
    used = {id(atom) for atoms in (opened.outvars, *(eqn.invars for eqn in opened.eqns)) for atom in atoms}
    reads = lambda eqn: eqn.primitive is not counter_p or any(id(var) in used for var in eqn.outvars)  # noqa: E731
    return _compat.filter_equations(left, reads, lambda eqn: eqn.params, ())  # Counters of the marks that are gone.


def moved(params: dict[str, Any], inside: Inside) -> dict[str, Any] | None:
    """The parameters of a primitive with longer paths of the marks in it; None where rules may emit more marks."""
    return None if rules_in(params) else _mapped(params, lambda jaxpr: _moved(jaxpr, inside))


@_compat.weakref_lru_cache
def _moved(jaxpr: Any, inside: Inside) -> Any:
    if not _places(jaxpr):
        return jaxpr

    def params(eqn: Any) -> dict[str, Any]:
        if not _is_mark(eqn):
            return _mapped(eqn.params, lambda inner: _moved(inner, inside))
        logs, to = received([var.aval for var in eqn.invars], eqn.params)
        logs = inside.rewrite(None, logs)
        return eqn.params | {"layout": Layout(jax.tree.structure((logs, to)), logs, to)}

    return _compat.filter_equations(jaxpr, lambda eqn: True, params, LogEffect)


def _mapped(params: dict[str, Any], function: Callable[[Any], Any]) -> dict[str, Any]:
    return {name: _compat.map_jaxprs(function, value) for name, value in params.items()}


def _is_mark(eqn: Any) -> bool:
    return eqn.primitive is log_p and received([var.aval for var in eqn.invars], eqn.params)[1] == TO_WATCHER


def _places_of(eqn: Any) -> Iterator[Place]:
    for event in events(received([var.aval for var in eqn.invars], eqn.params)[0]):
        if isinstance(event.site, Place):
            yield event.site


@_compat.weakref_lru_cache
def _places(jaxpr: Any) -> tuple[Place, ...]:
    found = (event for logs, to in logs_of(jaxpr) if to == TO_WATCHER for event in events(logs))
    return tuple(dict.fromkeys(each.site for each in found if each.values and isinstance(each.site, Place)))


@dataclasses.dataclass(frozen=True)
class Inside(Filter):
    """Puts the path of what encloses them before the paths of marks.

    Attributes:
        parts: The path.
        numbers: By name, the number of parts of that name that come before, where nothing is put before the path.
        scopes: The same for what is in name stacks, and has the numbers of the forward pass in a backward pass.
        of: "function" around a function with rules of its own, "rule" around such a rule, "" around another.
        rule: Of a function with rules of its own: the part of a rule among the scopes that are open then.
        is_open: Whether the part of the rule is among the scopes that are open where JAX binds the function.
        loops: 1 if what encloses them is a loop.
        outer: What encloses this in turn, which is not on Python's stack then; None if it is.
        call: Of the backward pass that a function has as a rule: the path to the call of this function. The path of
            the backward pass itself comes from what JAX transposes, if JAX does so inside the watched function.
        context: The scopes in which a function with rules, or a rule, runs.
        asked: Identifies who asks for the levels in it: see `levels_begun`.
    """

    sees_tapped = True

    parts: tuple[Part, ...]
    numbers: Numbers = ()
    scopes: Numbers = ()
    of: Literal["", "function", "rule"] = ""
    rule: Part | None = None
    is_open: bool = False
    loops: int = 0
    outer: Inside | None = None
    call: tuple[Part, ...] = ()
    context: tuple[Any, ...] = dataclasses.field(default=(), compare=False)
    asked: int = dataclasses.field(default=0, compare=False)

    def rewrite(self, state: State, logs: Logs) -> Logs:
        return map_events(lambda event, _: self._moved(event), logs)

    @contextlib.contextmanager
    def in_function(self, state: State, is_rule: bool) -> Iterator[tuple[Inside, State]]:
        if not self.of:
            yield self, state
        elif is_rule and self.rule is not None:
            with contextlib.nullcontext() if self.is_open else opened(self.rule):
                yield dataclasses.replace(self._of_rule, context=source_info.current_name_stack().stack), state
        else:
            yield dataclasses.replace(self, context=source_info.current_name_stack().stack), state

    def in_backward_rule(self, state: State) -> tuple[Filter, State]:
        here = (self if self.rule is None else self._of_rule).place(_NO_PLACE)
        return Inside((), call=(*here.call, *here.parts)), state

    @property
    def _of_rule(self) -> Inside:
        """The handler of a rule that runs in place of the function."""
        parts = (*self.parts, RULE.after(self.numbers))
        return dataclasses.replace(self, parts=parts, numbers=(), scopes=(), of="rule")

    @property
    def moves(self) -> bool:
        """True if it changes paths."""
        return dataclasses.replace(self, call=()) != Inside(())

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
        first = first.after(self.scopes if first.is_in_stack else numbers)
        return first, *(self._after(rest, ()) if first.is_pass else rest)
