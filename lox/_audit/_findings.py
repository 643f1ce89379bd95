"""What an audit finds: a code, a place, what is so, what to do."""

from __future__ import annotations

import dataclasses
import linecache
from collections.abc import Iterable
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
        reasoning: How the audit knows that it holds, in a few words.
        once: Whether one finding of this kind says all, however many there are.
    """

    code: str
    severity: Severity
    title: str
    suggestion: str
    holds: str = ""
    reasoning: str = ""
    once: bool = False

    def at(
        self,
        location: Location,
        message: str,
        *,
        found: str = "",
        expected: str = "",
        severity: Severity | None = None,
    ) -> Finding:
        """A finding of this kind."""
        shown = location.of_user
        return Finding(
            code=self.code,
            severity=severity or self.severity,
            message=message,
            file=shown.file,
            line=shown.line,
            suggestion=self.suggestion,
            column=shown.column,
            function=shown.function,
            found=found,
            expected=expected or self.holds,
            library="" if shown is location else f"{location.file}:{location.line}",
            once=self.once,
        )

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
        message: The mistake in one line, with the names of the variables and arguments.
        file: The file of the line in question, never a library's where the user's program led there; or empty.
        line: The line, from 1.
        suggestion: How to correct it.
        column: The column, from 1, or 0 where it is not known.
        function: The qualified name of the function that the line is in.
        found: The fact that is wrong, as far as it is one value, such as the label of an axis.
        expected: What should be so instead.
        library: The line in a library that the user's line led to, as ``"file:line"``, or empty.
        reasoning: Of what is verified: how the audit knows.
        once: Whether one finding of its kind says all, however many there are.
    """

    code: str
    severity: Severity
    message: str
    file: str
    line: int
    suggestion: str
    column: int = 0
    function: str = ""
    found: str = ""
    expected: str = ""
    library: str = ""
    reasoning: str = ""
    once: bool = dataclasses.field(default=False, repr=False)

    @property
    def where(self) -> str:
        """The place as ``"file:line:column"``, or empty; the column only where it is known."""
        if not self.file:
            return ""
        return f"{self.file}:{self.line}:{self.column}" if self.column else f"{self.file}:{self.line}"

    @property
    def source(self) -> str:
        """The source text of the line."""
        return linecache.getline(self.file, self.line).strip()

    @property
    def identity(self) -> tuple[str, int, int, str, str]:
        """The place, the code and the message, by which the findings of several audits are the same one."""
        return self.file, self.line, self.column, self.code, self.message

    @property
    def page(self) -> str:
        """The page of its kind in the documentation."""
        return f"docs/audit/{self.code}.md"

    def to_dict(self) -> dict[str, Any]:
        """All of it, as JSON has it."""
        found = {**dataclasses.asdict(self), "page": self.page}
        del found["once"]
        return found


def first_causes(findings: Iterable[Finding]) -> list[Finding]:
    """The findings without those that say of a place what another one says of it: of axes that meet wrongly, one."""
    found = list(findings)
    told: dict[tuple[str, int, int], Finding] = {}
    for each in sorted(found, key=lambda finding: (SEVERITIES.index(finding.severity), finding.code)):
        if each.code in _OF_ONE_CAUSE:
            told.setdefault((each.file, each.line, each.column), each)
    return [each for each in found if each.code not in _OF_ONE_CAUSE or told[each.file, each.line, each.column] is each]


_OF_ONE_CAUSE = frozenset(
    {"LOX101", "LOX102", "LOX104", "LOX105", "LOX106", "LOX107", "LOX108", "LOX110", "LOX203", "LOX211"}
)
"""Kinds of findings that may all come from one operation on axes that do not belong together."""
