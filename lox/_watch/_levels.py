"""The numbers of parts of paths, and the scopes that are open, in each function that is traced or runs."""

from __future__ import annotations

import contextlib
import sys
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax.extend.source_info_util as source_info

from lox import _compat
from lox._compat import _tracebacks
from lox._effect import watching
from lox._handler import DropAll
from lox._trace import HandlerTrace
from lox._watch._marks import Inside, Place
from lox._watch._points import BACKWARD, WHOLE, Numbers, Part, relative
from lox._watch._resolve import Resolver


def new_scope() -> Any:
    """A name scope that carries numbers: see `lox._watch._backward.numbered`."""
    return source_info.new_name_stack("lox.watch").stack[0]


class Parent:
    """Something that encloses points, which are numbered by name.

    Attributes:
        parts: Its path.
        counts: The number of points of each name in it.
    """

    def __init__(self, parts: tuple[Part, ...] = (), counts: dict[str, int] | None = None):
        self.parts = parts
        self.counts: dict[str, int] = {} if counts is None else counts
        self._known: dict[Any, tuple[Any, Any]] = {}

    @property
    def numbers(self) -> Numbers:
        """The numbers of what comes next."""
        return tuple(sorted(self.counts.items()))

    def part(self, name: str, program: Any = None) -> Part:
        """The part of a point of this name.

        A program that runs again from the same lines is the same point: it is in a loop of Python's.
        """
        if program is None:
            return self._numbered(name)
        key = name, id(program), _lines()
        if key not in self._known:
            self._known[key] = self._numbered(name), program  # Kept, so that no other gets its identity.
        return self._known[key][0]

    def scope(self, name: str) -> Part:
        """The part of a name scope."""
        return self._numbered(name)._replace(of="scope")

    def before(self, jaxpr: Any, places: Iterable[Place]) -> tuple[Numbers, Any]:
        """The numbers of parts before the points in a jaxpr that the program traced, and evaluates here.

        Returns:
            The numbers, and a name scope for them: see `lox._watch._backward.numbered`.
        """
        key = id(jaxpr), _lines()
        if key not in self._known:
            self._known[key] = (self.numbers, new_scope()), jaxpr
            self.add(first_parts(each.parts for each in places))
        return self._known[key][0]

    def _numbered(self, name: str) -> Part:
        number = self.counts.get(name, 0)
        self.counts[name] = number + 1
        return Part(name, number)

    def add(self, counts: Mapping[str, int]) -> None:
        """Count points in something that has no name of its own."""
        for name, count in counts.items():
            self.counts[name] = self.counts.get(name, 0) + count


class Scope(Parent):
    """A name scope that is open.

    Attributes:
        owner: The context manager that opened it.
        level: The level that it is in.
        trace: The trace in which it was opened.
        place: Its place.
        results: The results of the last operation in it under this trace; None before the first.
    """

    def __init__(self, owner: Any, level: Level, place: Place, trace: Any):
        super().__init__(place.parts)
        self.owner = owner
        self.level = level
        self.place = place
        self.trace = trace
        self.results: Any = None


class Level(Parent):
    """A function that is traced, or runs, from its beginning on; paths begin there.

    Attributes:
        scopes: The scopes that are open in it, outermost first.
        around: The level that runs it, if it is a function with rules of its own and runs in a backward pass of that
            level; None for another.
        context: The scopes in which it runs, if it is a function with rules of its own.
        told: The paths in backward passes that were reported as points that cannot be watched.
        transposed: Whether it is one that JAX makes of another, to transpose it.
        is_whole: Whether paths in backward passes begin further outside: it is a function with rules of its own, or
            such a rule, and runs in a backward pass.
        resolve: The watcher whose function it is; None for another function.
    """

    def __init__(
        self, transposed: bool, handler: Any, around: Level | None = None, context: Sequence[Any] = ()
    ) -> None:
        super().__init__()
        self.transposed = transposed
        in_rules = isinstance(handler, Inside) and handler.of_rules
        self.context = context if in_rules else ()
        self.is_whole = in_rules and (
            around is None or "transpose" in _tracebacks.transformations(around.from_here(context))
        )
        self.around = around if self.is_whole else None
        self.resolve = handler if isinstance(handler, Resolver) else None
        self.scopes: list[Scope] = []
        self._backward: dict[tuple[Part, ...], Parent] = {}
        self._passes: dict[tuple[tuple[Part, ...], int], Part] = {}
        self.told: set[tuple[Part, ...]] = set()

    @property
    def parent(self) -> Parent:
        """The innermost of its scopes, or itself."""
        return self.scopes[-1] if self.scopes else self

    def from_here(self, scopes: Sequence[Any]) -> Sequence[Any]:
        """The scopes of what is bound in it, from where paths in backward passes begin."""
        if self.is_whole:
            return scopes if self.around is None else self.around.from_here([*self.context, *scopes])
        outside = set(map(id, self.context))
        return [scope for scope in scopes if id(scope) not in outside]

    def backward_pass(self, outside: tuple[Part, ...], derivatives: int) -> Part:
        """The part of the backward pass at this path, of which so many derivatives are taken there."""
        key = outside, derivatives
        if key not in self._passes:
            if self.around is not None:
                self._passes[key] = self.around.backward_pass(outside, derivatives)
            else:
                parent = next((each for each in (self, *self.scopes) if each.parts == outside), None)
                number = (parent or self.backward(outside)).part(BACKWARD.name).number
                self._passes[key] = BACKWARD._replace(number=number)
        return self._passes[key]

    def backward(self, parts: tuple[Part, ...]) -> Parent:
        """The parent at this path in a backward pass: one of the level around, where paths begin there."""
        if parts not in self._backward:
            same = Parent(parts) if self.around is None else self.around.backward(parts)
            self._backward[parts] = Parent((WHOLE, *same.parts), same.counts) if self.is_whole else same
        return self._backward[parts]


class _State(threading.local):
    """The state of a thread.

    Attributes:
        scopes: The scopes that are open, outermost first.
        levels: The levels by the traces at which they begin.
        begun: By `Inside`, while somebody asks: the level around it, the scopes in which what is under it runs, and the
            levels that have begun there.
    """

    def __init__(self) -> None:
        self.scopes: list[Scope] = []
        self.levels: weakref.WeakKeyDictionary[Any, Level] = weakref.WeakKeyDictionary()
        self.begun: dict[int, tuple[Level, Sequence[Any], list[Level]]] = {}


state = _State()


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """The context in which nothing that is bound is of the program."""
    before, state.scopes = state.scopes, []
    try:
        with watching(None):
            yield
    finally:
        state.scopes = before


@contextlib.contextmanager
def levels_begun(inside: Inside, around: Level) -> Iterator[list[Level]]:
    """The context that gives the levels which begin in it under a handler, and the level around."""
    found: list[Level] = []
    context = *around.context, *source_info.current_name_stack().stack
    state.begun[id(inside)] = around, context, found
    try:
        yield found
    finally:
        del state.begun[id(inside)]


def level_of(trace: Any) -> Level | None:
    """The level that a trace belongs to; None where nobody hears of points."""
    while not _compat.is_staging(trace):
        if isinstance(trace, HandlerTrace):
            if isinstance(trace.handler, DropAll):
                return None
            if isinstance(trace.handler, Resolver) or (isinstance(trace.handler, Inside) and trace.handler.moves):
                break
        trace = getattr(trace, "parent_trace", None)
        if trace is None:
            return None
    level = state.levels.get(trace)
    if level is None:
        handler = trace.handler if isinstance(trace, HandlerTrace) else None
        around, context, begun = state.begun.get(id(handler), (None, (), []))
        level = state.levels[trace] = Level(handler is None and _tracebacks.transposes(), handler, around, context)
        begun.append(level)
    return level


def runs_one_by_one(trace: Any) -> bool:
    """Tell whether operations of the watched function run under a trace without becoming part of a jaxpr in it."""
    while trace is not None and not _compat.is_staging(trace):
        if isinstance(trace, HandlerTrace) and isinstance(trace.handler, Resolver):
            return not trace.handler.in_rule
        trace = getattr(trace, "parent_trace", None)
    return False


def first_parts(paths: Iterable[tuple[Part, ...]]) -> dict[str, int]:
    """The number of points of each name in something, by the paths of all points in it."""
    counts: dict[str, int] = {}
    for part, *_ in filter(None, map(relative, paths)):
        counts[part.name] = max(counts.get(part.name, 0), part.number + 1)
    return counts


def _lines() -> tuple[Any, ...]:
    """The lines that the functions around are at."""
    frame: Any = sys._getframe(1)
    found = []
    while frame is not None:
        found.append((frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return tuple(found)
