"""The output of commands: tables for people on a terminal, and lines of tab-separated fields for other programs."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from lox._text import aligned, encodable, visible


class Failure(Exception):
    """The reason why a command could not do its work, in words for its user."""


def complain(message: str) -> None:
    """Says what went wrong."""
    print(f"lox: {visible(message)}", file=sys.stderr)


def on_terminal() -> bool:
    """Say whether the output goes to a terminal, and not to another program."""
    return sys.stdout.isatty()


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Prints rows: aligned and under a header on a terminal, as they come and with tabs between elsewhere."""
    if not on_terminal():
        for row in rows:
            _print("\t".join(map(visible, row)))
        return
    lines = [header, *([visible(field) for field in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        _print(aligned(line, widths))


class Stream:
    """Prints rows one after the other, in columns as wide as those before on a terminal."""

    def __init__(self) -> None:
        self._widths: list[int] = []

    def write(self, rows: Iterable[Sequence[str]]) -> None:
        """Prints rows at once."""
        for row in rows:
            fields = [visible(field) for field in row]
            if on_terminal():
                widths = self._widths or [0] * len(fields)
                self._widths = [max(width, len(field)) for width, field in zip(widths, fields, strict=True)]
                _print(aligned(fields, self._widths))
            else:
                _print("\t".join(fields))
        sys.stdout.flush()


def _print(line: str) -> None:
    print(encodable(line, sys.stdout.encoding))
