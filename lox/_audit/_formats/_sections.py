"""The sections of a full report, as tables and findings."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from lox._audit._content import Content
from lox._audit._findings import Finding
from lox._audit._flow import DETAILS, Detail, Row, has_lines_of_its_own, rows
from lox._audit._fold import fold_crossings, fold_rows
from lox._audit._program import Block, Step
from lox._audit._rules import primitives
from lox._audit._stack import Crossing, Level, crossings, levels
from lox._exceptions import LogValueError


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows of text under a header."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def __bool__(self) -> bool:
        return bool(self.rows)


def sections(report: Content, detail: Detail) -> Iterator[tuple[str, Table | tuple[Finding, ...]]]:
    """The sections of a report with their titles: findings first."""
    yield "Issues found", report.issues
    yield "Warnings", report.warnings
    yield "Verified correct", _verified(report.verified)
    yield "End-to-end data flow", _flow(fold_rows(flow_rows(report.program, detail)))
    yield "Transformation stack", _stack(levels(report.program, is_users_own))
    yield "Shape trace at boundaries", _boundaries(fold_crossings(crossings(report.program, is_users_own)))


def is_users_own(step: Step) -> bool:
    """True for loops, branches and calls of the user's functions. Functions of JAX itself give False."""
    return step.equation.primitive in primitives("scan", "while", "cond") or has_lines_of_its_own(step)


def flow_rows(program: Block, detail: Detail) -> list[Row]:
    """The data flow of a program.

    Raises:
        LogValueError: There is no such detail.
    """
    if detail not in DETAILS:
        raise LogValueError(f"detail is one of {', '.join(map(repr, DETAILS))}, got {detail!r}.")
    return rows(program, detail)


def _verified(found: Iterable[Finding]) -> Table:
    cells = [(each.code, each.message, each.reasoning, _line(each)) for each in found]
    return Table(("code", "what holds", "how it was checked", "line"), cells)


def _line(finding: Finding) -> str:
    return f"{Path(finding.file).name}:{finding.line}" if finding.file else ""


def _flow(found: Iterable[Row]) -> Table:
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
    return Table(("step", "value", "from", "line"), cells)


def _stack(found: Iterable[Level]) -> Table:
    cells = [
        ("  " * level.depth + level.kind, ", ".join(level.transformed), str(level.operations), str(level.location))
        for level in found
    ]
    return Table(("part", "transformed by", "operations", "line"), cells)


def _boundaries(found: Iterable[Crossing]) -> Table:
    cells = [(each.kind, each.role, each.outside, each.inside, str(each.location)) for each in found]
    return Table(("boundary", "as", "outside", "inside", "line"), cells)
