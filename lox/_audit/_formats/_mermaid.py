"""The data flow as a picture in the language of Mermaid."""

from __future__ import annotations

from collections.abc import Sequence

from lox._audit._flow import Row


def mermaid(found: Sequence[Row]) -> str:
    """The rows of a data flow as a flowchart."""
    nodes = {row.name: f"n{place}" for place, row in reversed(list(enumerate(found))) if row.name}
    lines = ["flowchart TD"]
    for place, row in enumerate(found):
        text = "<br>".join([row.what, *row.values]).replace('"', "'")
        lines.append(f'    n{place}["{text}"]')
        lines += [f"    {nodes[source]} --> n{place}" for source in row.sources if source in nodes]
    return "\n".join(lines) + "\n"
