"""The watcher around a function, which replaces marks with logs."""

from __future__ import annotations

import abc
import contextlib
import contextvars
import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.extend as jex
import jax.numpy as jnp

from lox._arguments import describe, read_mapping
from lox._effect import emit, watching
from lox._events import Destination, Event, Logs, Site, map_events
from lox._exceptions import LogDataError, UnsupportedPrimitiveError
from lox._handler import Filter, Handler, State
from lox._handler import Inside as Use
from lox._site import Watched
from lox._watch._marks import TO_WATCHER, Place, places_in
from lox._watch._points import BACKWARD, Point, Selector, is_backward, path_of, relative

What = Callable[[Point, Sequence[Any]], Mapping[str, Any] | None]


@dataclasses.dataclass(frozen=True)
class Watcher:
    """The points of a function to watch, and the logs to make of them.

    Attributes:
        selector: The points that are selected.
        what: Makes a mapping, which is logged, of a point and its values.
        tags: The tags of the logs.
        prefix: Put before every key.
    """

    selector: Selector
    what: What
    tags: tuple[str, ...]
    prefix: str

    def site(self, point: Point) -> Site:
        """The line of `what`; that of the point where `what` has none, as a class has."""
        code = getattr(inspect.unwrap(self.what), "__code__", None)
        if code is None:
            return Site(point.file, point.line, point.function, ())
        return Site(code.co_filename, code.co_firstlineno, code.co_name, ())


_Seen = tuple[tuple[bool, dict[str, Point]], ...]
_seen: contextvars.ContextVar[_Seen] = contextvars.ContextVar("seen", default=())
"""What those who ask have seen, each with whether another watcher is around."""


@contextlib.contextmanager
def seeing() -> Iterator[dict[str, Point]]:
    """The context that gives the points, by path, which the watched function in it comes to."""
    found: dict[str, Point] = {}
    token = _seen.set((*_seen.get(), (watching.value is not None, found)))
    try:
        yield found
    finally:
        _seen.reset(token)


def see(place: Place, forwards: bool) -> None:
    """Remember a point, whose path is whole for a watcher, where that asks.

    Args:
        place: The place of the point.
        forwards: Whether another watcher is around this one.
    """
    for has_outer, found in _seen.get():
        if has_outer == forwards:
            point = point_of(place)
            found.setdefault(point.path, point)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Resolver(Filter):
    """Makes something of marks around a function, where their paths are whole.

    Attributes:
        forwards: Whether another watcher is around, which gets the marks as well.
        in_rule: Whether it is in the backward pass that a function has as a rule.
    """

    sees_tapped = True

    forwards: bool
    in_rule: bool = False

    def in_backward_rule(self, state: State) -> tuple[Filter, State]:
        return dataclasses.replace(self, in_rule=True), state

    def whole(self, place: Place) -> Place:
        """The place of a mark that gets here. JAX may transpose the watched function, and put nothing before paths."""
        if not self.in_rule or is_backward(place.parts):
            return place
        return dataclasses.replace(place, parts=(BACKWARD, *place.call, *relative(place.parts)))

    def see(self, place: Place) -> None:
        """Remember the point of a mark that gets here, where somebody asks."""
        see(self.whole(place), self.forwards)

    @abc.abstractmethod
    def wants(self, place: Place) -> bool:
        """Tell whether the marks of a place are of use."""

    @abc.abstractmethod
    def resolved(self, state: State, event: Event, place: Place, depth: int) -> Event | None:
        """Return what takes the place of a mark that is of use, or None for nothing."""

    def selects(self, place: Place) -> bool:
        """Tell whether a mark is kept; one of a point that cannot be watched raises later."""
        return self.forwards or self.wants(self.whole(place))

    def keeps_all(self, primitive: Any) -> bool:
        """Tell whether all marks in it are kept: JAX transposes a linear solver with them."""
        return primitive is jex.core.primitives.linear_solve_p

    def enter(self, state: State, programs: Sequence[Any], inside: Use) -> tuple[Handler, State]:
        # A program that lox has run before under this handler is remembered, and runs no `rewrite`.
        for each in places_in({"programs": tuple(programs)}):
            self.see(each)
        return super().enter(state, programs, inside)

    def rewrite(self, state: State, logs: Logs) -> Logs:
        def resolve(event: Event, depth: int) -> Event | None:
            if not isinstance(event.site, Place) or not event.values:
                return event
            if self.forwards:
                emit((event,), TO_WATCHER)
            place = self.whole(event.site)
            see(place, self.forwards)
            return self.resolved(state, event, place, depth) if self.wants(place) else None

        return map_events(resolve, logs)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Resolve(Resolver):
    """Replaces marks with logs.

    Attributes:
        watcher: What is watched.
    """

    watcher: Watcher

    def wants(self, place: Place) -> bool:
        return point_of(place) in self.watcher.selector

    def resolved(self, state: State, event: Event, place: Place, depth: int) -> Event | None:
        point = point_of(place)
        if point.obstacle:
            raise UnsupportedPrimitiveError(
                f"lox.watch cannot watch {point.path!r} at {point.file}:{point.line}: {point.obstacle}. Or leave it "
                "out: give at= a function of a point, which tests `not point.obstacle`."
            )
        values = self._values(point, event, depth, place.prefix + self.watcher.prefix)
        if not values:
            return None
        tags = tuple(dict.fromkeys(place.tags + self.watcher.tags))
        site = Site(place.file, place.line, place.function, tags, from_context=place.from_context)
        return dataclasses.replace(event, values=values, site=site, optional=Watched())

    def _values(self, point: Point, event: Event, depth: int, prefix: str) -> dict[str, Any]:
        """The values to log for one event of a point, computed for each iteration and batch element."""

        def of_one(*values: Any) -> dict[str, Any]:
            try:
                found = self.watcher.what(point, values)
            except Exception as error:
                error.add_note(f"In what(point, values) of lox.watch, for {len(values)} values of {point.path!r}.")
                raise
            if found is None:
                return {}
            if not isinstance(found, Mapping):
                raise LogDataError(
                    f"what= of lox.watch must return a mapping or None, got {describe(found)} for {point.path!r}, at "
                    f"{self.watcher.site(point)}."
                )
            logged = read_mapping("lox.watch", found, f"{prefix}{point.path}/", self.watcher.site(point))
            return {key: jnp.asarray(value) for key, value in logged.items()}

        for _ in range(depth + event.batch_ndim):
            of_one = jax.vmap(of_one)
        return of_one(*(event.values[key] for key in sorted(event.values, key=int)))

    def destination(self, to: Destination) -> Destination | None:
        return None if to == TO_WATCHER else to


def point_of(place: Place) -> Point:
    """The point at a place whose path is whole."""
    parts = relative(place.parts)
    path, name, backward = path_of(parts), parts[-1].name, is_backward(parts)
    return Point(path, place.kind, name, place.file, place.line, place.function, backward, place.obstacle)
