"""The content of a report: what an audit found, and what holds."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable
from typing import Self

from lox._audit._findings import SEVERITIES, Finding, Severity
from lox._audit._inline import Used
from lox._audit._location import is_users
from lox._audit._own_kinds import UNUSED
from lox._audit._program import Block
from lox._exceptions import LogValueError


@dataclasses.dataclass(frozen=True, eq=False)
class Content:
    """What an audit found.

    Attributes:
        name: The name of the function.
        issues: What is wrong: findings of severity "error".
        warnings: What is not wrong, or not yet: findings of severity "warning" and "info".
        verified: What was checked, and holds, with the reason.
        program: What is known of the function.
        used: The comments that left a finding out: file, line and code.
        error: What the function raised while it was traced.
    """

    name: str
    issues: tuple[Finding, ...]
    warnings: tuple[Finding, ...]
    verified: tuple[Finding, ...]
    program: Block = dataclasses.field(repr=False)
    used: Used = frozenset()
    error: BaseException | None = dataclasses.field(default=None, repr=False)

    def only(self, select: Collection[str] = (), ignore: Collection[str] = ()) -> Self:
        """The report with findings of some codes: those of `select`, or all if it is empty, but those of `ignore`."""

        def is_asked_for(finding: Finding) -> bool:
            return (not select or finding.code in select) and finding.code not in ignore

        verified = tuple(filter(is_asked_for, self.verified))
        return dataclasses.replace(self.where(is_asked_for), verified=verified)

    def of_users(self) -> Self:
        """The report with the findings that are in the user's program, and in no library."""
        return self.where(lambda finding: is_users(finding.file))

    def and_also(self, more: Iterable[Finding]) -> Self:
        """The report with further findings that are warnings."""
        return dataclasses.replace(self, warnings=(*self.warnings, *more))

    def where(self, keeps: Callable[[Finding], bool]) -> Self:
        """The report with some of its issues and warnings."""
        issues, warnings = tuple(filter(keeps, self.issues)), tuple(filter(keeps, self.warnings))
        return dataclasses.replace(self, issues=issues, warnings=warnings)

    def at_least(self, severity: Severity) -> tuple[Finding, ...]:
        """The issues and warnings that are as bad as this, or worse.

        Raises:
            LogValueError: There is no such severity.
        """
        return at_least(severity, self.found)

    @property
    def found(self) -> tuple[Finding, ...]:
        """The issues, then the warnings."""
        return (*self.issues, *self.warnings)


def at_least(severity: str, findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The findings that are as bad as this, or worse.

    Raises:
        LogValueError: There is no such severity.
    """
    if severity not in SEVERITIES:
        raise LogValueError(f"A severity is one of {', '.join(map(repr, SEVERITIES))}, got {severity!r}.")
    bad = SEVERITIES[: SEVERITIES.index(severity) + 1]
    return tuple(finding for finding in findings if finding.severity in bad)


def distinct(findings: Iterable[Finding], used: Used) -> list[Finding]:
    """The findings of several audits by file and line, each once.

    A comment that left out nothing in one audit, and something in another one, is no finding.
    """
    once: dict[str, Finding] = {}
    found: dict[tuple[str, int, int, str, str], Finding] = {}
    for each in findings:
        is_told = each.once and once.setdefault(each.code, each) != each
        is_used = each.code == UNUSED.code and (each.file, each.line, each.found) in used
        if not is_told and not is_used:
            found.setdefault(each.identity, each)
    return [found[place] for place in sorted(found)]
