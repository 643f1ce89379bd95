"""What an audit finds: a code, a place, what is so, what to do."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, get_args

from lox._audit._location import Location

Severity = Literal["error", "warning", "info"]
SEVERITIES: tuple[str, ...] = get_args(Severity)
"""The worst first."""


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of finding.

    Attributes:
        code: Its stable name, such as ``"LOX101"``.
        severity: How bad it is: "error" for what is wrong, "warning" for what is likely to be or to become so, "info"
            for what is to be known.
        title: What it is about, in a few words.
        suggestion: What to do about it.
        holds: What is so at the places that were looked at where nothing is found, in a few words.
    """

    code: str
    severity: Severity
    title: str
    suggestion: str
    holds: str = ""

    def at(self, location: Location, message: str) -> Finding:
        """A finding of this kind."""
        return Finding(self.code, self.severity, message, location.file, location.line, self.suggestion)

    def fine(self, location: Location) -> Held:
        """A place that was looked at, and where nothing of this kind is."""
        return Held(self, location)


@dataclasses.dataclass(frozen=True)
class Held:
    """A place at which what a kind of finding is about was looked at, and is right."""

    kind: Kind
    location: Location


@dataclasses.dataclass(frozen=True)
class Finding:
    """Something that an audit found.

    Attributes:
        code: The stable name of its kind, such as ``"LOX101"``.
        severity: "error", "warning" or "info".
        message: What is so, and what was to be expected.
        file: The file of the line in question, or empty.
        line: The line.
        suggestion: What to do about it.
    """

    code: str
    severity: Severity
    message: str
    file: str
    line: int
    suggestion: str

    @property
    def where(self) -> str:
        """The place as ``"file:line"``, or empty."""
        return f"{self.file}:{self.line}" if self.file else ""

    @property
    def page(self) -> str:
        """The page of its kind in the documentation."""
        return f"docs/audit/{self.code}.md"

    def to_dict(self) -> dict[str, Any]:
        """All that there is, as JSON has it."""
        return {**dataclasses.asdict(self), "page": self.page}
