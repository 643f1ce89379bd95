"""Which logs a handler means: by key and by tag."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from lox._arguments import names
from lox._events import Node, map_events, restrict


@dataclasses.dataclass(frozen=True)
class Selection:
    """Keys among `argnames` of calls that carry one of `tags`; None does not restrict."""

    argnames: frozenset[str] | None = None
    tags: frozenset[str] | None = None

    @classmethod
    def of(cls, argnames: str | Iterable[str] | None, tags: str | Iterable[str] | None) -> Selection:
        """Reads the keywords `argnames` and `tags` of a transformation.

        Raises:
            LogDataError: One of them is not a name or an iterable of names.
        """
        return cls(
            None if argnames is None else frozenset(names(argnames, "argnames", "")),
            None if tags is None else frozenset(names(tags, "tags", "")),
        )

    def has(self, key: str, tags: Iterable[str]) -> bool:
        by_name = self.argnames is None or key in self.argnames
        return by_name and (self.tags is None or not self.tags.isdisjoint(tags))

    def split(self, nodes: Sequence[Node]) -> tuple[tuple[Node, ...], tuple[Node, ...]]:
        """The nodes that are meant, and the others."""
        if self.argnames is None and self.tags is None:
            return tuple(nodes), ()
        return self._restrict(nodes, True), self._restrict(nodes, False)

    def _restrict(self, nodes: Sequence[Node], wanted: bool) -> tuple[Node, ...]:
        return map_events(lambda event, _: restrict(event, lambda key: self.has(key, event.site.tags) == wanted), nodes)
