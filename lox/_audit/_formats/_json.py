"""The whole report as an object of JSON."""

from __future__ import annotations

import dataclasses
from typing import Any

from lox._audit._content import Content
from lox._audit._flow import Detail, Row
from lox._audit._formats._sections import flow_rows
from lox._audit._stack import Crossing, Level, crossings, levels


def as_object(report: Content, detail: Detail) -> dict[str, Any]:
    """The findings and the sections of a report, each a list of objects."""
    findings = {
        name: [finding.to_dict() for finding in getattr(report, name)] for name in ("issues", "warnings", "verified")
    }
    return {
        "name": report.name,
        **findings,
        "flow": list(map(_row, flow_rows(report.program, detail))),
        "stack": list(map(_located, levels(report.program))),
        "boundaries": list(map(_located, crossings(report.program))),
    }


def _row(row: Row) -> dict[str, Any]:
    return {**_located(row), "values": list(row.values), "sources": list(row.sources), "notes": list(row.notes)}


def _located(value: Row | Level | Crossing) -> dict[str, Any]:
    fields = {each.name: getattr(value, each.name) for each in dataclasses.fields(value) if each.name != "location"}
    return {**fields, "file": value.location.file, "line": value.location.line}
