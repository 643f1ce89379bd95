"""Loops of Python that end in their first iteration."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from lox._audit._audited import Audited
from lox._audit._findings import Finding, Held, Kind
from lox._audit._location import NOWHERE
from lox._audit._sources import sources

FIRST = Kind(
    "LOX437",
    "warning",
    "A loop of Python that ends in its first iteration",
    "Move the return out of the loop, by one level of indentation.",
    "No loop of Python ends in its first iteration whatever happens.",
    "The source was read for loops whose last statement is a return.",
)


def first(audited: Audited) -> Iterator[Finding | Held]:
    """LOX437: the last statement of a loop ends it, and nothing in it goes on with the next iteration."""
    yield FIRST.fine(NOWHERE)
    for source in sources(audited):
        for node in source.executed:
            if isinstance(node, ast.For) and isinstance(node.body[-1], ast.Return) and _computes(node):
                yield FIRST.at(
                    source.at(node.body[-1]),
                    f"'{ast.unparse(node.body[-1])}' is the last statement of the loop over "
                    f"'{ast.unparse(node.iter)}', and leaves it in the first iteration: all others are left out.",
                )


def _computes(node: ast.For) -> bool:
    """Say whether a loop assigns something in each iteration, and does not look for one to take, or go on from one."""
    inside = [part for each in node.body for part in ast.walk(each)]
    assigns = any(isinstance(each, (ast.Assign, ast.AugAssign)) for each in node.body[:-1])
    return assigns and not any(isinstance(part, (ast.Continue, ast.If, ast.Try)) for part in inside)


KINDS = (FIRST,)
CHECKS = (first,)
