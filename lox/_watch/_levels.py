"""The numbers of parts of paths, and the scopes that are open, in each function that is traced or runs."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import re
import sys
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax.extend.source_info_util as source_info

from lox import _compat
from lox._compat import _tracebacks
from lox._effect import watching
from lox._handler import DropAll
from lox._trace import HandlerTrace
from lox._watch._contained import counts_in, first_parts_in
from lox._watch._inside import Inside, Run
from lox._watch._marks import Place
from lox._watch._points import BACKWARD, WHOLE, Numbers, Part, relative
from lox._watch._remembered import new_scope
from lox._watch._resolve import Resolver


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
        self._evaluated: set[tuple[str, int]] = set()
        self._calls: dict[tuple[str, int], set[int]] = {}

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

    def call_in_pass(self, name: str, of: tuple[Part, Any] | None) -> Part:
        """The part of a loop, a branch or a jitted function in a backward pass.

        Args:
            name: Its name.
            of: Its part in the forward pass, whose number it gets, and the scope of the call; None for one that the
                backward pass itself has. Such a one gets the next number, as what JAX makes two of, in one scope.
        """
        part, scope = (self._numbered(name), None) if of is None else of
        while (taken := self._calls.setdefault(part[:2], set())) and (scope is None or id(scope) in taken):
            part = part._replace(number=part.number + 1)
        taken.add(id(scope))
        return part

    def scope(self, name: str, in_pass: bool) -> Part:
        """The part of a name scope, which is opened in a backward pass or elsewhere."""
        return self._numbered(name)._replace(of="scope of pass" if in_pass else "scope")

    def before(self, jaxpr: Any) -> tuple[Numbers, Numbers, Any]:
        """The numbers of parts before the points in a jaxpr that the program traced, and evaluates here.

        Returns:
            The numbers; those of scopes which have numbers of their own, but are in more than one jaxpr; and a scope
            for them, in which the equations are.
        """
        key = id(jaxpr), _lines()
        if key not in self._known:
            found = {(part.name, part.number) for part in first_parts_in({"jaxpr": jaxpr}) if part.is_in_stack}
            last = dict(sorted(self._evaluated))
            apart = {name: last[name] + 1 for name, _ in found & self._evaluated}
            self._evaluated.update((name, number + apart.get(name, 0)) for name, number in found)
            self._known[key] = (self.numbers, tuple(sorted(apart.items())), new_scope()), jaxpr
            self.add(counts_in({"jaxpr": jaxpr}))
        return self._known[key][0]

    def _numbered(self, name: str) -> Part:
        name = re.sub(r"[/\[\]]|^(?=\d+$)", "_", name)  # Those have a meaning in paths, and numbers alone in keys.
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
        super().__init__(place.parts, level.at(relative(place.parts)).counts)
        self.owner = owner
        self.level = level
        self.place = place
        self.trace = trace
        self.results: Any = None


_homes = itertools.count(1)


class Level(Parent):
    """A function that is traced, or runs, from its beginning on; paths begin there.

    Attributes:
        home: Identifies it, if it is traced; 0 for another.
        scopes: The scopes that are open in it, outermost first.
        around: The level that runs it, if it is a function with rules of its own and runs in a backward pass of that
            level; None for another.
        context: The scopes in which it runs, if it is a function with rules of its own.
        in_function: Whether it is a function with rules of its own, such a rule, or a function on shards.
        told: The paths in backward passes that were reported as points that cannot be watched.
        transposed: Whether it is one that JAX makes of another, to transpose it.
        is_whole: Whether paths in backward passes begin further outside: it is a function with rules of its own, or
            such a rule, and runs in a backward pass.
        resolve: The watcher whose function it is; None for another function.
    """

    def __init__(self, transposed: bool, handler: Any, around: Level | None = None) -> None:
        super().__init__()
        self.home = next(_homes) if handler is None else 0
        self.transposed = transposed
        self.in_function = in_rules = isinstance(handler, Inside) and handler.of != ""
        self.context: Sequence[Any] = (
            (*(() if around is None else around.context), *handler.context) if in_rules else ()
        )
        here = self.context if around is None else around.from_here(self.context)
        self.is_whole = in_rules and "transpose" in _tracebacks.transformations(here)
        self.around = around if self.is_whole else None
        self.resolve = handler if isinstance(handler, Resolver) else None
        self.scopes: list[Scope] = []
        self._at: dict[tuple[Part, ...], Parent] = {}
        self._begun: dict[tuple[int, ...], Sequence[Any]] = {}
        self._passes: dict[tuple[Any, ...], tuple[Part, Any]] = {}
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

    def backward_pass(self, outside: tuple[Part, ...], scopes: Sequence[Any]) -> Part:
        """The part of the backward pass at this path that has these scopes: see `path_to`."""
        key = outside, *map(id, scopes)
        if key not in self._passes:
            if self.around is not None:
                part = self.around.backward_pass(outside, scopes)
            else:
                parent = self.at(outside) if outside else self
                part = BACKWARD._replace(number=parent.part(BACKWARD.name).number)
            self._passes[key] = part, scopes  # Kept, so that no other gets its identity.
        return self._passes[key][0]

    def is_new(self, scopes: Sequence[Any]) -> bool:
        """Tell whether the backward pass that is named by the last of these scopes begins now."""
        key = tuple(map(id, scopes))
        if key in self._begun:
            return False
        self._begun[key] = scopes  # Kept, so that no other gets its identity.
        return True

    def at(self, parts: tuple[Part, ...]) -> Parent:
        """The parent at this path, whether its scope is open or not: one of the level around, if paths begin there."""
        if parts not in self._at:
            same = Parent(parts) if self.around is None else self.around.at(parts)
            self._at[parts] = Parent((WHOLE, *same.parts), same.counts) if self.is_whole else same
        return self._at[parts]


class _State(threading.local):
    """The state of a thread.

    Attributes:
        scopes: The scopes that are open, outermost first.
        levels: The levels by the traces at which they begin.
        begun: By who asks: the level around, and the levels that have begun in it.
    """

    def __init__(self) -> None:
        self.scopes: list[Scope] = []
        self.levels: weakref.WeakKeyDictionary[Any, Level] = weakref.WeakKeyDictionary()
        self.begun: dict[int, tuple[Level, list[Level]]] = {}


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


_asked = itertools.count(1)


@contextlib.contextmanager
def levels_begun(inside: Inside, around: Level) -> Iterator[tuple[Inside, list[Level]]]:
    """The context that gives a handler for what runs in it, and the levels which begin under that, without rules.

    Args:
        inside: The handler.
        around: The level around.
    """
    found: list[Level] = []
    asked = next(_asked)
    state.begun[asked] = around, found
    try:
        yield dataclasses.replace(inside, context=source_info.current_name_stack().stack, asked=asked), found
    finally:
        del state.begun[asked]


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
        around, begun = state.begun.get(getattr(handler, "asked", 0), (None, []))
        level = state.levels[trace] = Level(handler is None and _tracebacks.transposes(), handler, around)
        if getattr(handler, "of", "") != "rule":
            begun.append(level)
    return level


def run_of(trace: Any) -> Run | None:
    """The run of a rule that a trace belongs to, if any."""
    while trace is not None and not _compat.is_staging(trace):
        handler = trace.handler if isinstance(trace, HandlerTrace) else None
        if isinstance(handler, Inside) and handler.run is not None:
            return handler.run
        trace = getattr(trace, "parent_trace", None)
    return None


def runs_one_by_one(trace: Any) -> bool:
    """Tell whether operations of the watched function run under a trace without becoming part of a jaxpr in it."""
    while trace is not None and not _compat.is_staging(trace):
        if isinstance(trace, HandlerTrace) and isinstance(trace.handler, Resolver):
            return not trace.handler.in_rule
        trace = getattr(trace, "parent_trace", None)
    return False


def _lines() -> tuple[Any, ...]:
    """The lines that the functions around are at."""
    frame: Any = sys._getframe(1)
    found = []
    while frame is not None:
        if not _tracebacks.binds_checkpoint(frame):  # Other equations of the same jaxpr are bound without it.
            found.append((frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return tuple(found)
