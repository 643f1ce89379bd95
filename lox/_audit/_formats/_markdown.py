"""The whole report as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from lox._audit._content import Content
from lox._audit._findings import Finding
from lox._audit._flow import Detail
from lox._audit._formats._concise import summary
from lox._audit._formats._sections import Table, sections
from lox._text import as_html


def markdown(report: Content, detail: Detail) -> str:
    """All sections of a report."""
    parts = [f"# Audit of `{report.name}`", as_html(summary([report]))]
    for title, content in sections(report, detail):
        parts.append(f"## {title}")
        if not content:
            parts.append("none")
        elif isinstance(content, Table):
            parts.append("\n".join(map(_row, [content.header, ["---"] * len(content.header), *content.rows])))
        else:
            parts += [_item(finding) for finding in content]
    return "\n\n".join(parts) + "\n"


def _item(finding: Finding) -> str:
    where = f" at `{finding.where}`" if finding.where else ""
    notes = {"Found": finding.found, "Expected": finding.expected}
    more = "".join(f"\n  {name}: {as_html(text)}" for name, text in notes.items() if text)
    if finding.suggestion:
        more += f"\n  {as_html(finding.suggestion)} `lox explain {finding.code}` says more."
    return f"- **{finding.code}** ({finding.severity}){where}: {as_html(finding.message)}{more}"


def _row(cells: Sequence[str]) -> str:
    texts = (as_html(cell).replace("|", "&#124;").replace("  ", "&nbsp;&nbsp;") for cell in cells)
    return f"| {' | '.join(texts)} |"
