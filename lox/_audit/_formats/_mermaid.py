"""The data flow as a picture in the language of Mermaid."""

from __future__ import annotations

from collections.abc import Sequence

from lox._audit._content import Content
from lox._audit._flow import Detail, Row
from lox._audit._formats._sections import flow_rows
from lox._text import as_html


def mermaid(reports: Sequence[Content], detail: Detail) -> str:
    """The data flow of reports as one flowchart: of several, each in a box of its own."""
    lines = ["flowchart TD"]
    for number, report in enumerate(reports):
        rows = flow_rows(report.program, detail)
        if len(reports) == 1:
            lines += _chart(rows, "n")
        else:
            lines += [f'    subgraph g{number}["{_text(report.name)}"]', *_chart(rows, f"g{number}n"), "    end"]
    return "\n".join(lines) + "\n"


def _chart(rows: Sequence[Row], prefix: str) -> list[str]:
    nodes = {row.name: f"{prefix}{place}" for place, row in reversed(list(enumerate(rows))) if row.name}
    lines = []
    for place, row in enumerate(rows):
        lines.append(f'    {prefix}{place}["{"<br>".join(map(_text, (row.what, *row.values)))}"]')
        lines += [f"    {nodes[source]} --> {prefix}{place}" for source in row.sources if source in nodes]
    return lines


def _text(plain: str) -> str:
    """Text that Mermaid, which reads HTML, shows as it is between double quotes."""
    return as_html(plain.replace('"', "'"))
