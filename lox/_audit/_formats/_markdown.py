"""The whole report as Markdown."""

from __future__ import annotations

import html
from collections.abc import Sequence

from lox._audit._content import Content
from lox._audit._findings import Finding
from lox._audit._flow import Detail
from lox._audit._formats._concise import summary
from lox._audit._formats._sections import Table, sections


def markdown(report: Content, detail: Detail) -> str:
    """All sections of a report."""
    parts = [f"# Audit of `{report.name}`", _text(summary([report]))]
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
    more = "".join(f"\n  {name}: {_text(text)}" for name, text in notes.items() if text)
    if finding.suggestion:
        more += f"\n  {_text(finding.suggestion)} `lox explain {finding.code}` says more."
    return f"- **{finding.code}** ({finding.severity}){where}: {_text(finding.message)}{more}"


def _text(plain: str) -> str:
    """Text on one line that Markdown shows as it is."""
    return html.escape(" ".join(plain.splitlines()), quote=False)


def _row(cells: Sequence[str]) -> str:
    texts = (_text(cell).replace("|", "&#124;").replace("  ", "&nbsp;&nbsp;") for cell in cells)
    return f"| {' | '.join(texts)} |"
