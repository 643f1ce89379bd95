"""The parts of a function that run, as far as its syntax and the lines that led to equations tell."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


def body_of(node: Function) -> Sequence[ast.AST]:
    """The statements of a function, or the expression of a lambda."""
    return node.body if isinstance(node.body, list) else [node.body]


def executed(node: Function, lines: frozenset[int]) -> Iterator[ast.AST]:
    """The parts of a function that are run, as far as can be told: of what is chosen, where there are these lines.

    Those of functions and classes inside are not among them.
    """
    blocks = [iter(body_of(node))]
    while blocks:
        part = next(blocks[-1], None)
        if part is None:
            blocks.pop()
            continue
        if isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            continue
        yield part
        if isinstance(part, (ast.Return, ast.Raise)):
            blocks[-1] = iter(())
        blocks += map(iter, reversed(_run_by(part, lines)))


def _run_by(node: ast.AST, lines: frozenset[int]) -> list[list[ast.AST]]:
    """The blocks of parts of a node that are run where there are these lines."""
    if isinstance(node, (ast.If, ast.While)):
        chosen: list[list[ast.AST]] = [[*branch] for branch in (node.body, node.orelse) if _has(branch, lines)]
        return [[node.test], *chosen]
    if isinstance(node, ast.Match):
        return [[node.subject], [each for case in node.cases if _has(case.body, lines) for each in case.body]]
    if isinstance(node, ast.Try):
        return [[*node.body, *node.orelse, *node.finalbody]]
    if isinstance(node, ast.IfExp):
        return [[node.test]]
    if isinstance(node, ast.BoolOp):
        return [[*node.values[:1]]]
    return [] if isinstance(node, ast.Assert) else [[*ast.iter_child_nodes(node)]]


def _has(nodes: Iterable[ast.stmt], lines: frozenset[int]) -> bool:
    return any(node.lineno <= line <= (node.end_lineno or node.lineno) for node in nodes for line in lines)
