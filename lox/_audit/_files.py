"""The text of the user's files, and its syntax: read once for all that is asked of a file."""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Callable
from typing import TypeVar

Made = TypeVar("Made")


def lines_in(file: str) -> list[str]:
    """The lines of a file, or none if it has no name or cannot be read."""
    return linecache.getlines(file) if file else []


def of_file(make: Callable[[str], Made]) -> Callable[[str], Made]:
    """Makes something of a file once, and again when the file was read again."""
    made: dict[str, tuple[list[str], Made]] = {}

    @functools.wraps(make)
    def get(file: str) -> Made:
        lines = lines_in(file)
        if file not in made or made[file][0] is not lines:
            made[file] = (lines, make(file))
        return made[file][1]

    return get


@of_file
def syntax(file: str) -> ast.Module:
    """The syntax of a file, without any statement where it has none: what is typed into a notebook may have magic."""
    try:
        return ast.parse("".join(lines_in(file)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # As Python's parser says of what it cannot parse.
        return ast.Module(body=[], type_ignores=[])


def statement_at(file: str, line: int) -> tuple[int, int]:
    """The first and the last line of the statement that a line of a file is in; without one, the line itself."""
    around = [(first, last) for first, last in _statements(file) if first <= line <= last]
    return min(around, key=lambda lines: lines[1] - lines[0], default=(line, line))


@of_file
def _statements(file: str) -> list[tuple[int, int]]:
    """The first and last line of each statement; of one that has others in it, of what comes before these."""
    found = []
    for node in ast.walk(syntax(file)):
        if isinstance(node, ast.stmt):
            inner = [each.lineno for each in ast.iter_child_nodes(node) if isinstance(each, ast.stmt)]
            last = min(inner) - 1 if inner else node.end_lineno or node.lineno
            found.append((node.lineno, max(node.lineno, last)))
    return found
