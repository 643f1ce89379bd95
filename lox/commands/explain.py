"""``lox explain``: what a code of the auditor means."""

from __future__ import annotations

import sys

from lox._audit._checks import KNOWN
from lox._audit._pages import page
from lox._text import encodable
from lox.commands._output import table


def explain(code: str | None) -> int:
    """Prints the page of a code, or a table of all codes.

    Returns:
        The exit code.
    """
    if code is None:
        table(
            ("code", "severity", "title"), [(each.code, each.severity, each.title) for _, each in sorted(KNOWN.items())]
        )
    else:
        print(encodable(page(code.upper()).rstrip("\n"), sys.stdout.encoding))
    return 0
