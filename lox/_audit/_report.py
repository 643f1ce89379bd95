"""What `lox.audit` returns, and how it is written."""

from __future__ import annotations

import dataclasses
import html
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from lox._audit._findings import SEVERITIES, Finding, Held, Kind, Severity
from lox._audit._flow import DETAILS, Detail, Row, rows
from lox._audit._location import Location
from lox._audit._program import Block
from lox._audit._stack import Crossing, Level, crossings, levels
from lox._exceptions import AuditError, LogValueError
from lox._text import columns


@dataclasses.dataclass(frozen=True, eq=False)
class Report:
    """What an audit found.

    Attributes:
        name: The name of the function.
        issues: What is wrong: findings of severity "error".
        warnings: What is not wrong, or not yet: findings of severity "warning" and "info".
        verified: What was checked, and holds, with the reason.
        program: What is known of the function.
    """

    name: str
    issues: tuple[Finding, ...]
    warnings: tuple[Finding, ...]
    verified: tuple[Finding, ...]
    program: Block = dataclasses.field(repr=False)

    def raise_for(self, severity: Severity = "error") -> None:
        """Raises if something was found that is as bad as this, or worse.

        Raises:
            AuditError: It was. A `ValueError`, whose message has all of these findings.
            LogValueError: There is no such severity.
        """
        found = self.at_least(severity)
        if found:
            listed = "\n".join(line for finding in found for line in _lines(finding))
            raise AuditError(f"The audit of {self.name} found {len(found)}:\n{listed}")

    def at_least(self, severity: Severity) -> tuple[Finding, ...]:
        """The issues and warnings that are as bad as this, or worse.

        Raises:
            LogValueError: There is no such severity.
        """
        if severity not in SEVERITIES:
            raise LogValueError(f"A severity is one of {', '.join(map(repr, SEVERITIES))}, got {severity!r}.")
        bad = SEVERITIES[: SEVERITIES.index(severity) + 1]
        return tuple(finding for finding in (*self.issues, *self.warnings) if finding.severity in bad)

    def __str__(self) -> str:
        return self.to_text()

    def to_text(self, detail: Detail = "lines") -> str:
        """The report as text.

        Args:
            detail: Whether the data flow has a row for each call, loop, branch and log ("calls"), for each line of
                source as well ("lines"), or for each equation ("equations").

        Raises:
            LogValueError: There is no such detail.
        """
        lines = [self._summary()]
        for place, (title, content) in enumerate(self._sections(detail), 1):
            lines += ["", f"{place}. {title}", ""]
            if not content:
                lines.append("none")
            elif isinstance(content, _Table):
                lines += columns([content.header, *content.rows])
            else:
                lines += [line for finding in content for line in _lines(finding)]
        return "\n".join(lines)

    def to_markdown(self, detail: Detail = "lines") -> str:
        """The report as Markdown, with the data flow as `to_text` has it."""
        parts = [f"# Audit of `{self.name}`", self._summary()]
        for title, content in self._sections(detail):
            parts.append(f"## {title}")
            if not content:
                parts.append("none")
            elif isinstance(content, _Table):
                parts.append(
                    "\n".join(map(_markdown_row, [content.header, ["---"] * len(content.header), *content.rows]))
                )
            else:
                parts += [_markdown(finding) for finding in content]
        return "\n\n".join(parts) + "\n"

    def to_json(self, detail: Detail = "lines") -> str:
        """The report as JSON: an object with the sections, each a list of objects."""
        parts: dict[str, Any] = {
            "name": self.name,
            "flow": list(map(_row_dict, _rows(self.program, detail))),
            "stack": list(map(_located_dict, levels(self.program))),
            "boundaries": list(map(_located_dict, crossings(self.program))),
        }
        for name in ("issues", "verified", "warnings"):
            parts[name] = [finding.to_dict() for finding in getattr(self, name)]
        return json.dumps(parts, indent=2)

    def to_mermaid(self, detail: Detail = "lines") -> str:
        """The data flow as a picture in the language of Mermaid."""
        found = _rows(self.program, detail)
        nodes = {row.name: f"n{place}" for place, row in reversed(list(enumerate(found))) if row.name}
        lines = ["flowchart TD"]
        for place, row in enumerate(found):
            text = "<br>".join([row.what, *row.values]).replace('"', "'")
            lines.append(f'    n{place}["{text}"]')
            lines += [f"    {nodes[source]} --> n{place}" for source in row.sources if source in nodes]
        return "\n".join(lines) + "\n"

    def __rich__(self) -> Any:
        from rich.text import Text  # Rich is there, since it asks.

        text = Text(self.to_text(), no_wrap=True, overflow="ignore")
        for severity, style in (("error", "bold red"), ("warning", "yellow"), ("info", "cyan")):
            text.highlight_regex(rf"(?m)^LOX\d+ {severity}", style)
        text.highlight_regex(r"(?m)^\d\. .*$", "bold")
        return text

    def _summary(self) -> str:
        counts = {"issue": len(self.issues), "warning": len(self.warnings), "check": len(self.verified)}
        texts = [f"{count} {name}{'' if count == 1 else 's'}" for name, count in counts.items()]
        return f"Audit of {self.name}: {texts[0]}, {texts[1]}; {texts[2]} found nothing."

    def _sections(self, detail: Detail) -> Iterator[tuple[str, _Table | tuple[Finding, ...]]]:
        yield "End-to-end data flow", _flow_table(_rows(self.program, detail))
        yield "Transformation stack", _stack_table(levels(self.program))
        yield "Shape trace at boundaries", _boundary_table(crossings(self.program))
        yield "Issues found", self.issues
        yield "Verified correct", self.verified
        yield "Warnings", self.warnings


@dataclasses.dataclass(frozen=True)
class _Table:
    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def __bool__(self) -> bool:
        return bool(self.rows)


def report_of(name: str, program: Block, found: Iterable[Finding | Held], ignored: set[str]) -> Report:
    """The report of what checks found."""
    each = list(dict.fromkeys(found))
    findings = [finding for finding in each if isinstance(finding, Finding) and finding.code not in ignored]
    findings.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    bad = {finding.code for finding in findings}
    held = [each for each in each if isinstance(each, Held) and each.kind.code not in bad | ignored]
    return Report(
        name=name,
        issues=tuple(finding for finding in findings if finding.severity == "error"),
        warnings=tuple(finding for finding in findings if finding.severity != "error"),
        verified=tuple(_verified(held)),
        program=program,
    )


def _verified(held: Sequence[Held]) -> Iterator[Finding]:
    first: dict[Kind, Location] = {}
    for each in held:
        first.setdefault(each.kind, each.location)
    counts = Counter(each.kind for each in held)
    for kind, location in first.items():
        places = f" ({counts[kind]} lines)" if counts[kind] > 1 else ""
        yield Finding(kind.code, "info", f"{kind.holds}{places}", location.file, location.line, "")


def _rows(program: Block, detail: Detail) -> list[Row]:
    if detail not in DETAILS:
        raise LogValueError(f"detail is one of {', '.join(map(repr, DETAILS))}, got {detail!r}.")
    return rows(program, detail)


def _lines(finding: Finding) -> Iterator[str]:
    yield f"{finding.code} {finding.severity} {finding.where}".rstrip()
    yield f"    {finding.message}"
    if finding.suggestion:
        yield f"    {finding.suggestion}"
        yield f"    See {finding.page}."


def _markdown(finding: Finding) -> str:
    where = f" at `{finding.where}`" if finding.where else ""
    more = f"\n  {finding.suggestion} See [{finding.code}]({finding.page})." if finding.suggestion else ""
    return f"- **{finding.code}** ({finding.severity}){where}: {finding.message}{more}"


def _markdown_row(cells: Sequence[str]) -> str:
    texts = (html.escape(cell, quote=False).replace("|", "&#124;").replace("  ", "&nbsp;&nbsp;") for cell in cells)
    return f"| {' | '.join(texts)} |"


def _flow_table(found: Sequence[Row]) -> _Table:
    cells = []
    for row in found:
        name = f"{row.name} " if row.name not in ("", row.what) else ""
        notes = [f"from {', '.join(row.sources)}"] if row.sources else []
        cells.append(
            (
                "  " * row.depth + name + row.what,
                "; ".join(row.values),
                ", ".join([*notes, *row.notes]),
                str(row.location),
            )
        )
    return _Table(("step", "value", "from", "line"), cells)


def _stack_table(found: Iterable[Level]) -> _Table:
    cells = [
        ("  " * level.depth + level.kind, ", ".join(level.transformed), str(level.operations), str(level.location))
        for level in found
    ]
    return _Table(("part", "transformed by", "operations", "line"), cells)


def _boundary_table(found: Iterable[Crossing]) -> _Table:
    cells = [(each.kind, each.role, each.outside, each.inside, str(each.location)) for each in found]
    return _Table(("boundary", "as", "outside", "inside", "line"), cells)


def _row_dict(row: Row) -> dict[str, Any]:
    return {**_located_dict(row), "values": list(row.values), "sources": list(row.sources), "notes": list(row.notes)}


def _located_dict(value: Row | Level | Crossing) -> dict[str, Any]:
    found = dataclasses.asdict(value)
    location = found.pop("location")
    return {**found, "file": location["file"], "line": location["line"]}
