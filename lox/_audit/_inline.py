"""Comments in the source that leave findings out: ``# lox: ignore[LOX104]``."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from lox._audit._files import lines_in, of_file, statement_at
from lox._audit._findings import Finding
from lox._audit._location import Location
from lox._audit._own_kinds import UNUSED
from lox._audit._sources import Source

_COMMENT = re.compile(r"#\s*lox:\s*ignore\b\s*(?:\[(?P<codes>[^\]]*)\])?")


class Ignore(NamedTuple):
    """A comment: the codes that it leaves out, its place, and the lines of the statement that it is about."""

    codes: tuple[str, ...]
    line: int
    column: int
    first: int
    last: int


Used = frozenset[tuple[str, int, str]]
"""Comments that left a finding out: file, line and code."""


def leave_out(found: Iterable[Finding], traced: Sequence[Source]) -> tuple[list[Finding], Used]:
    """The findings that no comment leaves out, and the comments that left one out.

    A comment in a function that was traced, and that left nothing out, is a finding itself.
    """
    kept: list[Finding] = []
    used: set[tuple[str, int, str]] = set()
    for finding in found:
        comments = [
            each
            for each in ignores(finding.file)
            if finding.code in each.codes and each.first <= finding.line <= each.last
        ]
        used.update((finding.file, each.line, finding.code) for each in comments)
        if not comments:
            kept.append(finding)
    return [*kept, *dict.fromkeys(_unused(traced, used))], frozenset(used)


def _unused(traced: Sequence[Source], used: set[tuple[str, int, str]]) -> Iterator[Finding]:
    for source in traced:
        file, function = source.code.co_filename, source.code.co_qualname
        for comment in ignores(file):
            if not source.node.lineno <= comment.line <= (source.node.end_lineno or 0):
                continue
            place = Location(file, comment.line, function, comment.column)
            if not comment.codes:
                yield UNUSED.at(place, "This comment has no code in brackets, and ignores nothing.")
            for code in comment.codes:
                if (file, comment.line, code) not in used:
                    yield UNUSED.at(place, f"{code} is ignored here, and was not found.", found=code)


@of_file
def ignores(file: str) -> tuple[Ignore, ...]:
    """The comments in a file."""
    text = "".join(lines_in(file))
    if "lox:" not in text:
        return ()
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (SyntaxError, tokenize.TokenError):  # What is typed into a notebook may have magic in it.
        return ()
    found = []
    for token in tokens:
        for match in _COMMENT.finditer(token.string) if token.type == tokenize.COMMENT else ():
            line, column = token.start[0], token.start[1] + match.start()
            codes = [code.strip() for code in (match["codes"] or "").split(",")]
            found.append(Ignore(tuple(filter(None, codes)), line, column + 1, *statement_at(file, line)))
    return tuple(found)
