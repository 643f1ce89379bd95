"""The whole report as text."""

from __future__ import annotations

from collections.abc import Iterator

from lox._audit._content import Content
from lox._audit._findings import Finding
from lox._audit._flow import Detail
from lox._audit._formats._concise import summary
from lox._audit._formats._sections import Table, sections
from lox._text import columns


def full(report: Content, detail: Detail) -> str:
    """All sections of a report."""
    lines = [f"Audit of {summary([report])}"]
    for place, (title, content) in enumerate(sections(report, detail), 1):
        lines += ["", f"{place}. {title}", ""]
        if not content:
            lines.append("none")
        elif isinstance(content, Table):
            lines += columns([content.header, *content.rows])
        else:
            lines += [line for finding in content for line in paragraph(finding)]
    return "\n".join(lines)


def paragraph(finding: Finding) -> Iterator[str]:
    """All of a finding, in lines."""
    yield f"{finding.code} {finding.severity} {finding.where}".rstrip()
    yield f"    {finding.message}"
    if finding.library:
        yield f"    In {finding.library}."
    if finding.found:
        yield f"    Found: {finding.found}"
    if finding.expected:
        yield f"    Expected: {finding.expected}"
    if finding.suggestion:
        yield f"    {finding.suggestion}"
        yield f"    `lox explain {finding.code}` says more."
