"""Assignments that a program makes between calls of what it compiles."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any, NamedTuple

from lox._audit._executed import Function

LOOPS = (ast.For, ast.While)
Read = ast.Name | ast.Attribute | ast.Subscript
"""An expression that a function reads."""


class Change(NamedTuple):
    """An assignment to what a compiled function reads.

    Attributes:
        what: What it assigns.
        line: Its line.
        is_set: Whether it only stores an argument, as it may once, before anything is compiled.
        in_loop: Whether it is in a loop of Python that calls what is compiled, or between two calls.
    """

    what: str
    line: int
    is_set: bool = False
    in_loop: bool = False


def in_loop_of(name: str, around: Function | ast.Module, compiled: Function) -> Change | None:
    """The assignment to a name in a loop of Python that calls a function, which was compiled before the loop."""
    callers: set[str] | None = None
    for loop in own_parts(around.body, LOOPS):
        nodes = list(ast.walk(loop))
        line = next((getattr(node, "lineno", 0) for node in nodes if stores_to(node, name)), None)
        if line is None or compiled in nodes or any(map(is_new, nodes)):
            continue
        callers = _callers(compiled, around) if callers is None else callers
        called = [ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)]
        if not callers.isdisjoint(each.rpartition(".")[2] for each in called):
            return Change(name, line, in_loop=True)
    return None


def between_calls(name: str, around: Function, compiled: Function) -> Change | None:
    """The assignment to an attribute of an object between two calls of its compiled method."""
    owner, nodes = name.partition(".")[0], list(ast.walk(around))
    method = f"{owner}.{getattr(compiled, 'name', '')}"
    if any(map(is_new, nodes)) or sum(stores_to(node, owner) for node in nodes) > 1:
        return None
    for body in (body for node in nodes if isinstance(body := getattr(node, "body", None), list)):
        read = [{ast.unparse(part) for part in own_parts([each], (ast.Attribute,))} for each in body]
        calls = [place for place, texts in enumerate(read) if method in texts]
        for each in body[calls[0] + 1 : calls[-1]] if calls else ():
            if isinstance(each, (ast.Assign, ast.AugAssign)) and _assigns_to(each, name):
                return Change(name, each.lineno, in_loop=True)
    return None


def moved_on(name: str, around: Function, compiled: Function) -> Change | None:
    """The assignment that updates a value, in a function that calls the compiled one."""
    own, nodes = getattr(compiled, "name", ""), list(ast.walk(around))
    if compiled in nodes or not own or own not in {getattr(node, "id", "") for node in nodes}:
        return None
    for each in nodes:
        if isinstance(each, (ast.Assign, ast.AugAssign)) and not any(map(is_new, nodes)):
            reads = isinstance(each, ast.AugAssign) or name in map(ast.unparse, ast.walk(each.value))
            if reads and _assigns_to(each, name):
                return Change(name, each.lineno, in_loop=True)
    return None


def _callers(compiled: Function, around: ast.AST) -> set[str]:
    """The names under which a function is called: its own, and those that what is made of it is assigned to."""
    own, found = getattr(compiled, "name", ""), set()
    for each in ast.walk(around):
        if isinstance(each, ast.Assign) and isinstance(each.value, ast.Call):
            inner = list(ast.walk(each.value))
            if compiled in inner or (own and own in {getattr(node, "id", "") for node in inner}):
                found |= {target.id for target in each.targets if isinstance(target, ast.Name)}
    return found | ({own} if own else set())


def own_parts(body: Any, kinds: tuple[type[ast.AST], ...]) -> Iterator[ast.AST]:
    """The statements of these kinds in a body, but for those in functions and classes."""
    left = list(body) if isinstance(body, list) else []
    while left:
        node = left.pop()
        if isinstance(node, kinds):
            yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            left += ast.iter_child_nodes(node)


def is_new(node: ast.AST) -> bool:
    """Say whether a call compiles anew."""
    name = ast.unparse(node.func).rpartition(".")[2] if isinstance(node, ast.Call) else ""
    return name in ("jit", "clear_cache", "clear_caches", "pmap")


def _assigns_to(node: ast.Assign | ast.AugAssign, name: str) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return any(stores_to(target, name) for target in targets)


def stores_to(node: ast.AST, name: str) -> bool:
    if not isinstance(node, Read) or not isinstance(node.ctx, ast.Store):
        return False
    return ast.unparse(node) == name
