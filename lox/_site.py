"""The place of a log call, the reason why its events may not happen, and warnings at a line of the user's program."""

from __future__ import annotations

import dataclasses
import sys
import warnings
from collections.abc import Iterable
from typing import Any, ClassVar


@dataclasses.dataclass(frozen=True)
class Site:
    """A call of `lox.log`, or, for logs of a backward pass, of `lox.log_grad`: its place and tags.

    Attributes:
        from_context: The names of counters that the call got from a `lox.context`.
    """

    file: str
    line: int
    function: str
    tags: tuple[str, ...]
    backward: bool = False
    from_context: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.file}:{self.line} ({self.function})"


def from_context(*sites: Site) -> str:
    """Say, for a message about log calls with other counters, which of them got theirs from a `lox.context`."""
    return "".join(
        f" The call at {site} gets {', '.join(map(repr, site.from_context))} from a lox.context around it."
        for site in sites
        if site.from_context
    )


NOWHERE = Site("", 0, "", ())


class Optional:
    """The reason why the number of events of a log call depends on data.

    Attributes:
        needs_unify: Whether `lox.spool` returns such events only where it is asked to, by `unify=True`.
    """

    needs_unify: ClassVar[bool] = True

    def message(self, site: Site = NOWHERE) -> str:
        """Return the message to a user who asks for all events of the log call at this place."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class BranchesDiffer(Optional):
    """The branches of a `cond` or `switch` log different keys.

    Attributes:
        branches: For each branch its keys, each with the number of its events and the first log call.
    """

    branches: tuple[tuple[tuple[str, int, Site], ...], ...]

    def message(self, site: Site = NOWHERE) -> str:
        lines = []
        for index, logged in enumerate(self.branches):
            keys = (f"{key!r}{f' ({count} events)' if count != 1 else ''} at {at}" for key, count, at in logged)
            lines.append(f"  branch {index} logs {', '.join(keys) or 'nothing'}\n")
        return (
            "The branches of a cond or switch log different keys, so that some events may not happen:\n"
            + "".join(lines)
            + "Log the same keys in every branch, use unify=True to get these events with a mask, or leave the keys "
            "out with argnames= or tags=."
        )


@dataclasses.dataclass(frozen=True)
class InBranch(Optional):
    """The log is in a `while_loop`, or in a derivative, in a branch of a `cond` whose predicate is batched."""

    def message(self, site: Site = NOWHERE) -> str:
        return (
            "A branch of a cond or switch logs, in a while_loop or in its derivative, what may not happen. Use "
            "unify=True to get it with a mask, or leave the key out with argnames= or tags=. "
            f"The log is at {site}."
        )


@dataclasses.dataclass(frozen=True)
class Transposed(Optional):
    """The log is of a value that JAX transposes, and that never gets a value."""

    def message(self, site: Site = NOWHERE) -> str:
        return (
            f"The log at {site} is of a value that JAX transposes, a tangent in reverse mode or the argument of "
            "a linear function, which never gets a value. Log where it does, use unify=True to get the event with a "
            "mask, or leave it out with argnames= or tags=."
        )


@dataclasses.dataclass(frozen=True)
class Where(Optional):
    """The log call says itself where its event happens, by `where=`."""

    needs_unify = False


@dataclasses.dataclass(frozen=True)
class Watched(Optional):
    """The event is of a point that `lox.watch` selects: nobody can log it in the other branches as well."""

    needs_unify = False


def strictest(reasons: Iterable[Optional | None]) -> Optional | None:
    """The first of some reasons that needs `unify=True`, else the first reason, else None."""
    found = [reason for reason in reasons if reason is not None]
    return next((reason for reason in found if reason.needs_unify), found[0] if found else None)


_registry: dict[Any, Any] = {}  # As `warnings` keeps it, to warn once of each line.


def calling_site() -> Site:
    """The line of the user's program that is calling lox."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("lox."):
        frame = frame.f_back
    return Site(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name, ())


def warn_at(site: Site, message: str, category: type[Warning]) -> None:
    """Warn of a line of the user's program, once for each message."""
    warnings.warn_explicit(message, category, site.file, site.line, registry=_registry)
