"""Which keys of a split the source hands on to something, whatever that makes of them."""

from __future__ import annotations

import ast
import functools
from collections.abc import Collection, Iterator

from lox._audit._executed import Function
from lox._audit._location import Frame
from lox._audit._sources import functions


def handed_on(place: Frame, line: int, count: int) -> Collection[int]:
    """Which keys of a split are read after it; all of them where that is not plain to see.

    An environment whose steps have nothing random in them takes a key too.

    Args:
        place: The call of `jax.random.split`.
        line: Its line.
        count: How many keys it makes.
    """
    found = functions(place.file).get((place.code.co_firstlineno, place.code.co_name), [])
    if not found:
        return ()
    function = found[0][0]
    around = _around(function)
    calls = [node for node in around if isinstance(node, ast.Call) and node.lineno == line and _is_split(node)]
    outer = around[calls[0]] if len(calls) == 1 else None
    if isinstance(outer, ast.Expr):
        return ()
    if isinstance(outer, ast.Subscript):
        return _chosen(outer, count)
    target = outer.targets[0] if isinstance(outer, ast.Assign) else None
    if isinstance(outer, ast.Assign) and isinstance(target, ast.Name):
        reads = _reads(function, target.id, outer, around)
        return {key for node in reads for key in _chosen(around[node], count)}
    if isinstance(outer, ast.Assign) and isinstance(target, ast.Tuple) and len(target.elts) == count:
        names = {key: each.id for key, each in enumerate(target.elts) if isinstance(each, ast.Name)}
        left = {key for key, name in names.items() if not any(_reads(function, name, outer, around))}
        return {*range(count)} - left
    return range(count)


@functools.lru_cache(maxsize=32)
def _around(function: Function) -> dict[ast.AST, ast.AST]:
    """What each part of a function is in."""
    return {inner: outer for outer in ast.walk(function) for inner in ast.iter_child_nodes(outer)}


@functools.lru_cache(maxsize=32)
def _names(function: Function) -> dict[str, list[ast.Name]]:
    """The places of a function where each name is."""
    found: dict[str, list[ast.Name]] = {}
    for node in _around(function):
        if isinstance(node, ast.Name):
            found.setdefault(node.id, []).append(node)
    return found


def _is_split(call: ast.Call) -> bool:
    return getattr(call.func, "attr", getattr(call.func, "id", "")) == "split"


def _chosen(node: ast.AST, count: int) -> Collection[int]:
    """Which elements an expression takes of a name in it."""
    try:
        place = ast.literal_eval(node.slice) if isinstance(node, ast.Subscript) else None
    except ValueError:
        return range(count)
    return [place % count] if isinstance(place, int) else range(count)


def _reads(function: Function, name: str, after: ast.Assign, around: dict[ast.AST, ast.AST]) -> Iterator[ast.Name]:
    """Where a name is read that was assigned, before it is again; in a loop and by a function in this one, anywhere."""
    nodes = _names(function).get(name, [])
    own = {*ast.walk(after)}
    again = [node.lineno for node in nodes if isinstance(node.ctx, ast.Store) and node.lineno > after.lineno]
    looped = not {ast.For, ast.While}.isdisjoint(_kinds_around(after, around))
    for node in nodes:
        follows = after.lineno <= node.lineno and not any(line < node.lineno for line in again)
        inner = not {ast.FunctionDef, ast.Lambda}.isdisjoint([*_kinds_around(node, around)][:-1])
        if isinstance(node.ctx, ast.Load) and node not in own and (looped or inner or follows):
            yield node


def _kinds_around(node: ast.AST, around: dict[ast.AST, ast.AST]) -> Iterator[type[ast.AST]]:
    """What a part of a function is in, up to the function."""
    while node in around:
        node = around[node]
        yield type(node)
