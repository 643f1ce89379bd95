"""SARIF, the format in which code scanning takes results: `Static Analysis Results Interchange Format`, version 2.1.0.

Source: OASIS standard "Static Analysis Results Interchange Format (SARIF) Version 2.1.0", 2020.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import quote

from lox._audit._checks import KNOWN
from lox._audit._content import Content
from lox._audit._findings import Finding, Kind
from lox._audit._formats._concise import in_order, shown_file

_LEVELS = {"error": "error", "warning": "warning", "info": "note"}


def sarif(reports: Sequence[Content]) -> str:
    """A log of one run with the findings of reports, and the kinds that these are of."""
    found = in_order(reports)
    codes = sorted({each.code for each in found})
    run = {
        "tool": {
            "driver": {
                "name": "lox audit",
                "version": metadata.version("jax-lox"),
                "rules": [_rule(KNOWN[code]) for code in codes],
            }
        },
        "columnKind": "unicodeCodePoints",
        "results": [_result(each, codes.index(each.code)) for each in found],
    }
    return json.dumps({"version": "2.1.0", "runs": [run]}, indent=2)


def _rule(kind: Kind) -> dict[str, Any]:
    return {
        "id": kind.code,
        "shortDescription": {"text": kind.title},
        "help": {"text": kind.suggestion},
        "defaultConfiguration": {"level": _LEVELS[kind.severity]},
    }


def _result(finding: Finding, rule: int) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ruleId": finding.code,
        "ruleIndex": rule,
        "level": _LEVELS[finding.severity],
        "message": {"text": finding.message},
    }
    if finding.file:
        region = {"startLine": finding.line, **({"startColumn": finding.column} if finding.column else {})}
        result["locations"] = [
            {"physicalLocation": {"artifactLocation": {"uri": _uri(finding.file)}, "region": region}}
        ]
    return result


def _uri(file: str) -> str:
    shown = Path(shown_file(file))
    return shown.as_uri() if shown.is_absolute() else quote(shown.as_posix())
