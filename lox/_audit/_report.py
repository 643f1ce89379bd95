"""What `lox.audit` returns, and how it is written."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from lox._audit._content import Content
from lox._audit._findings import SEVERITIES, Finding, Held, Kind, Severity
from lox._audit._flow import Detail
from lox._audit._formats._concise import concise
from lox._audit._formats._full import full, paragraph
from lox._audit._formats._github import github
from lox._audit._formats._json import as_object
from lox._audit._formats._markdown import markdown
from lox._audit._formats._mermaid import mermaid
from lox._audit._formats._sarif import sarif
from lox._audit._inline import Used
from lox._audit._location import Location
from lox._audit._program import Block
from lox._exceptions import AuditError

_STYLES = {"error": "bold red", "warning": "yellow", "info": "cyan"}


class Report(Content):
    """What an audit found, which can be written in several formats. Its content is that of `Content`."""

    def raise_for(self, severity: Severity = "error") -> None:
        """Raises if something was found that is as bad as this, or worse.

        Raises:
            AuditError: It was. A `ValueError`, whose message has all of these findings.
            LogValueError: There is no such severity.
        """
        found = self.at_least(severity)
        if found:
            listed = "\n".join(line for finding in found for line in paragraph(finding))
            raise AuditError(f"The audit of {self.name} found {len(found)}:\n{listed}")

    def __str__(self) -> str:
        return self.to_concise()

    def to_concise(self) -> str:
        """One line per finding, as ``file:line:column CODE message``, and a line with the counts."""
        return concise([self])

    def to_full(self, detail: Detail = "calls") -> str:
        """All of it as text: findings, the data flow, transformations, and the shapes at boundaries.

        Args:
            detail: Whether the data flow has a row for each call, loop, branch and log ("calls"), for each line of
                source as well ("lines"), or for each equation ("equations").

        Raises:
            LogValueError: There is no such detail.
        """
        return full(self, detail)

    def to_markdown(self, detail: Detail = "calls") -> str:
        """All of it as Markdown, with the data flow as `to_full` has it."""
        return markdown(self, detail)

    def to_json(self, detail: Detail = "calls") -> str:
        """All of it as JSON: an object with the sections, each a list of objects."""
        return json.dumps(as_object(self, detail), indent=2)

    def to_mermaid(self, detail: Detail = "calls") -> str:
        """The data flow as a picture in the language of Mermaid."""
        return mermaid([self], detail)

    def to_sarif(self) -> str:
        """The findings as SARIF 2.1.0, for code scanning."""
        return sarif([self])

    def to_github(self) -> str:
        """The findings as workflow commands of GitHub Actions, which annotate pull requests."""
        return github([self])

    def __rich__(self) -> Any:
        from rich.text import Text  # Rich is there, since it asks.

        text = Text(no_wrap=True, overflow="ignore")
        styles = {finding.code: _STYLES[finding.severity] for finding in reversed(self.found)}
        for line in str(self).splitlines():
            text.append(f"{line}\n")
        for code, style in styles.items():
            text.highlight_regex(rf"\b{code}\b", style)
        text.rstrip()
        return text


def report_of(
    name: str,
    program: Block,
    findings: Iterable[Finding],
    held: Iterable[Held],
    used: Used,
    error: BaseException | None,
) -> Report:
    """The report of what checks found, and of what holds where nothing of its kind was found."""
    found = sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))
    bad = {each.code for each in found} | {code for _, _, code in used}
    return Report(
        name=name,
        issues=tuple(each for each in found if each.severity == "error"),
        warnings=tuple(each for each in found if each.severity != "error"),
        verified=tuple(_verified([each for each in dict.fromkeys(held) if each.kind.code not in bad])),
        program=program,
        used=used,
        error=error,
    )


def _verified(held: Sequence[Held]) -> Iterator[Finding]:
    first: dict[Kind, Location] = {}
    for each in held:
        first.setdefault(each.kind, each.location)
    counts = Counter(each.kind for each in held)
    for kind, location in first.items():
        places = f" ({counts[kind]} lines)" if counts[kind] > 1 else ""
        yield dataclasses.replace(
            kind.at(location, f"{kind.holds}{places}", severity="info"),
            suggestion="",
            expected="",
            reasoning=kind.reasoning,
        )
