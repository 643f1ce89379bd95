"""Writes reports in a format by its name."""

from __future__ import annotations

import json
from collections.abc import Sequence

from lox._audit._flow import Detail
from lox._audit._formats._concise import concise
from lox._audit._formats._github import github
from lox._audit._formats._json import as_object
from lox._audit._formats._mermaid import mermaid
from lox._audit._formats._sarif import sarif
from lox._audit._report import Report


def write(reports: Sequence[Report], form: str, detail: Detail) -> str:
    """The text of reports. In JSON it is a list, also of one report, so that a reader need not know how many there are.

    Args:
        reports: The reports: of one function, or of all that a program compiles.
        form: One of `FORMATS`.
        detail: How detailed the data flow is, where it is written.
    """
    match form:
        case "concise":
            return concise(reports)
        case "github":
            return github(reports)
        case "sarif":
            return sarif(reports)
        case "mermaid":
            return mermaid(reports, detail)
        case "json":
            return json.dumps([as_object(report, detail) for report in reports], indent=2)
        case _:
            return "\n".join(getattr(report, f"to_{form}")(detail) for report in reports)
