"""Marks: the values at a point of the program, on their way to the watcher."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Protocol

import jax
import jax.extend.source_info_util as source_info
import numpy as np

from lox import _compat
from lox._ambient import ambient, counter_p, in_context
from lox._compat import _tracebacks
from lox._effect import LogEffect, as_array, emit, log_p, received, watching
from lox._events import Event, Logs, Site, events
from lox._handler import rules
from lox._logs_in import jaxprs_in
from lox._site import Watched
from lox._watch._points import LOOPS, Kind, Part


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


NO_PLACE = Place("", 0, "", ())
"""A place without a path."""

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
    """The places of the marks that an equation emits, or that are in it: lox does not see into one without a rule."""
    if is_mark(eqn):
        return tuple(_places_of(eqn))
    return places_in(eqn.params) if eqn.primitive in rules else ()


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
    """The parameters of a primitive with some of the marks in the jaxprs among them.

    A primitive without a rule keeps all, which do nothing: a library may compare its jaxprs with others.
    """
    if primitive not in rules or selection.keeps_all(primitive):
        return params
    return mapped(params, lambda jaxpr: _kept(jaxpr, selection))


_COMBINING = {
    "reduce",
    "reduce_window",
    "select_and_scatter",
    "scatter",
    "scatter-add",
    "scatter-sub",
    "scatter-mul",
    "scatter-min",
    "scatter-max",
}
"""The names of operations with a function that combines two elements."""


def without_combining(primitive: Any, params: dict[str, Any]) -> dict[str, Any]:
    """The parameters of a primitive without marks in a function that combines two elements.

    Such a function is not a part of the program, and JAX compiles none that has effects.
    """
    return mapped(params, lambda jaxpr: _kept(jaxpr, Nothing())) if primitive.name in _COMBINING else params


@_compat.weakref_lru_cache
def _kept(jaxpr: Any, selection: Selection) -> Any:
    if all(map(selection.selects, _places(jaxpr))):
        return jaxpr
    keeps = lambda eqn: not is_mark(eqn) or any(map(selection.selects, _places_of(eqn)))  # noqa: E731
    left = _compat.filter_equations(jaxpr, keeps, lambda eqn: kept(eqn.primitive, eqn.params, selection), LogEffect)
    opened = _compat.open_jaxpr(left)
    used = {id(atom) for atoms in (opened.outvars, *(eqn.invars for eqn in opened.eqns)) for atom in atoms}
    reads = lambda eqn: eqn.primitive is not counter_p or any(id(var) in used for var in eqn.outvars)  # noqa: E731
    return _compat.filter_equations(left, reads, lambda eqn: eqn.params, ())  # Counters of the marks that are gone.


def mapped(params: dict[str, Any], function: Callable[[Any], Any]) -> dict[str, Any]:
    """The parameters of a primitive with other jaxprs among them."""
    return {name: _compat.map_jaxprs(function, value) for name, value in params.items()}


def is_mark(eqn: Any) -> bool:
    """Tell whether an equation emits marks."""
    return eqn.primitive is log_p and received([var.aval for var in eqn.invars], eqn.params)[1] == TO_WATCHER


def _places_of(eqn: Any) -> Iterator[Place]:
    for event in events(received([var.aval for var in eqn.invars], eqn.params)[0]):
        if event.values and isinstance(event.site, Place):
            yield event.site


@_compat.weakref_lru_cache
def _places(jaxpr: Any) -> tuple[Place, ...]:
    equations = _compat.open_jaxpr(jaxpr).eqns
    return tuple(dict.fromkeys(each for eqn in equations for each in places_at(eqn)))
