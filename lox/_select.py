"""Selection of logs by key and by tag, and what handlers that select share."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable

from lox._arguments import names
from lox._effect import emit
from lox._events import Event, Logs, Site, map_events, restrict
from lox._handler import Filter, Handler, State
from lox._patterns import Names, in_order, names_of


@dataclasses.dataclass(frozen=True)
class Selection:
    """Keys among `argnames` and `among`, and not `without`, of calls with one of `tags`; None does not restrict."""

    argnames: Names | None = None
    tags: Names | None = None
    among: Names | None = None
    without: Names = frozenset()

    @classmethod
    def of(cls, argnames: str | Iterable[str] | None, tags: str | Iterable[str] | None) -> Selection:
        """Read the keywords `argnames` and `tags` of a transformation.

        Raises:
            LogDataError: One of them is not a name or an iterable of names.
        """
        return cls(
            None if argnames is None else names_of(names(argnames, "argnames", "")),
            None if tags is None else names_of(names(tags, "tags", "")),
        )

    def names(self) -> dict[str, tuple[str, ...]]:
        """The names and patterns in `argnames` and `tags`, by keyword."""
        return {"argnames": in_order(self.argnames), "tags": in_order(self.tags)}

    @functools.cached_property
    def has_all(self) -> bool:
        """True if no option restricts the selection."""
        return self == Selection()

    def has(self, key: str, tags: Iterable[str]) -> bool:
        by_name = (self.argnames is None or key in self.argnames) and key not in self.without
        by_name = by_name and (self.among is None or key in self.among)
        return by_name and (self.tags is None or not self.tags.isdisjoint(tags))

    def split(self, logs: Logs) -> tuple[Logs, Logs]:
        """Return the logs that are meant, and the others."""
        if self.has_all:
            return logs, ()
        return self._restrict(logs, True), self._restrict(logs, False)

    def _restrict(self, logs: Logs, wanted: bool) -> Logs:
        return map_events(lambda event, _: restrict(event, lambda key: self.has(key, event.site.tags) == wanted), logs)


@dataclasses.dataclass(frozen=True)
class PassThrough(Filter):
    """Drops the selected logs, where a handler that returns logs would return them, and leaves the others.

    Attributes:
        selection: The logs that are selected.
        keep_logs: Whether these are left as well.
        forward: Whether a handler further out wants any.
        sites: The log calls among which to select; None for all.
    """

    selection: Selection
    keep_logs: bool
    forward: bool
    sites: frozenset[Site] | None = None

    def rewrite(self, state: State, logs: Logs) -> Logs:
        if not self.forward:
            return ()
        if self.keep_logs:
            return logs

        def left(event: Event, depth: int) -> Event | None:
            if self.sites is not None and event.site not in self.sites:
                return event
            return restrict(event, lambda key: not self.selection.has(key, event.site.tags))

        return map_events(left, logs)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Selecting(Handler):
    """A handler that returns what it makes of the selected logs, and leaves the others.

    Attributes:
        selection: The selected logs.
        forward: Whether a handler further out wants the others.
        keep_logs: Whether it gets the selected ones as well.
    """

    selection: Selection
    forward: bool
    keep_logs: bool = False

    def taken(self, logs: Logs) -> Logs:
        """Return the selected logs, and leave the others for a handler further out."""
        selected, others = self.selection.split(logs)
        if self.forward:
            emit(logs if self.keep_logs else others)
        return selected

    def detached(self, state: State, sites: frozenset[Site]) -> tuple[Filter, State]:
        return PassThrough(self.selection, self.keep_logs, self.forward, sites), None
