"""What an audit finds: a code, a place, what is so, what to do."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from lox._audit._location import Location

Severity = Literal["error", "warning", "info"]


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of finding.

    Attributes:
        code: Its stable name, such as ``"LOX101"``.
        severity: How bad it is: "error" for what is wrong, "warning" for what is likely to become so, "info" for what
            is to be known.
        title: What it is about, in a few words.
        suggestion: What to do about it.
    """

    code: str
    severity: Severity
    title: str
    suggestion: str

    def at(self, location: Location, message: str) -> Finding:
        """A finding of this kind."""
        return Finding(self.code, self.severity, message, location.file, location.line, self.suggestion)


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
        return f"{self.file}:{self.line}" if self.file else ""

    def as_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)
