"""One line per finding, as ``file:line:column CODE message``, and a line with the counts."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from lox._audit._content import Content, distinct
from lox._audit._findings import Finding, Severity
from lox._text import visible


def concise(reports: Sequence[Content]) -> str:
    """The findings of reports, by place, then the summary."""
    return "\n".join([*map(line_of, in_order(reports)), summary(reports)])


def in_order(reports: Sequence[Content]) -> list[Finding]:
    """The findings of reports, each once, by file and line."""
    used = frozenset(comment for report in reports for comment in report.used)
    return distinct((each for report in reports for each in report.found), used)


def summary(reports: Sequence[Content]) -> str:
    """How many errors, warnings and notes there are, and in what."""
    counts = Counter(each.severity for each in in_order(reports))
    names: dict[Severity, str] = {"error": "error", "warning": "warning", "info": "note"}
    parts = [_count(counts[severity], name) for severity, name in names.items() if counts[severity]]
    passed = sum(len(report.verified) for report in reports)
    where = reports[0].name if len(reports) == 1 else _count(len(reports), "function")
    return f"{where}: {', '.join(parts) or 'nothing found'}; {_count(passed, 'check')} passed."


def shown_file(file: str) -> str:
    """A file as people write it: relative to the working directory where it is inside."""
    try:
        return str(Path(file).relative_to(os.getcwd())) if file else ""
    except (ValueError, OSError):  # Elsewhere, or the working directory is gone.
        return file


def line_of(finding: Finding) -> str:
    """A finding in one line."""
    column = f":{finding.column}" if finding.column else ""
    where = f"{shown_file(finding.file)}:{finding.line}{column} " if finding.file else ""
    return visible(f"{where}{finding.code} {finding.message}")


def _count(count: int, name: str) -> str:
    return f"{count} {name}{'' if count == 1 else 's'}"
