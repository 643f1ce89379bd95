"""Workflow commands of GitHub Actions, which it shows as annotations at the lines of a pull request.

Source: GitHub Docs, "Workflow commands for GitHub Actions", setting a notice, warning or error message.
"""

from __future__ import annotations

from collections.abc import Sequence

from lox._audit._content import Content
from lox._audit._formats._concise import in_order, shown_file

_COMMANDS = {"error": "error", "warning": "warning", "info": "notice"}


def github(reports: Sequence[Content]) -> str:
    """A command for each finding of reports."""
    lines = []
    for each in in_order(reports):
        place = {"file": shown_file(each.file), "line": each.line, "col": each.column} if each.file else {}
        properties = {**{name: value for name, value in place.items() if value}, "title": each.code}
        listed = ",".join(f"{name}={_property(str(value))}" for name, value in properties.items())
        lines.append(f"::{_COMMANDS[each.severity]} {listed}::{_message(each.message)}")
    return "\n".join(lines)


def _message(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _message(text).replace(":", "%3A").replace(",", "%2C")
