"""Functions under vmap that read a whole array from around them in place of the element that they get."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from types import CodeType
from typing import Any, NamedTuple

import jax

from lox import _compat
from lox._audit._audited import Audited
from lox._audit._checks._lanes._vmap import ALIKE, is_of_arguments, repeats
from lox._audit._checks._results._bindings import Path, path_of
from lox._audit._executed import Function, body_of
from lox._audit._findings import Finding, Held, Kind
from lox._audit._location import frames, is_users, transformations
from lox._audit._program import Block, is_call
from lox._audit._sources import Source, sources

CLOSED = Kind(
    "LOX313",
    "warning",
    "A function under vmap reads all of an array, and not the element that it gets",
    "Read the argument of the function in place of the array around it; if all of it is meant, do not map over it.",
    "Functions under vmap read the elements that they get.",
    "The source of functions that are mapped was searched for arguments that they do not read.",
)


_NUMBERING = re.compile(r"key|rng|seed|idx|index|dummy|unused|range|num|\bi\b|\bn\b|\bk\b", re.IGNORECASE)
"""Names of what functions are mapped over that do not need it, so that they run so often."""


class _Mapping(NamedTuple):
    """A call of a mapped function: the function, what vmap is told, and what is given."""

    fun: ast.expr | Function
    axes: ast.expr | None
    call: ast.Call


def closed(audited: Audited) -> Iterator[Finding | Held]:
    """LOX313: an argument of a mapped function is not read in it, and what it is mapped over is."""
    if not any("vmap" in transformations(step.equation) for step, _ in audited.steps):
        return
    led = audited.once(_leading)
    for source in (each for each in sources(audited) if each.code in led):
        inner = _functions_in(source.node)
        for mapping in _mappings(source, inner):
            fun = inner.get(mapping.fun.id) if isinstance(mapping.fun, ast.Name) else mapping.fun
            if not isinstance(fun, Function):
                continue
            wrong = [each for each in _pairs(fun, mapping) if _reads_around(fun, *each)]
            for name, path in wrong:
                yield CLOSED.at(
                    source.at(mapping.call),
                    f"'{getattr(fun, 'name', 'a lambda')}' is mapped over {'.'.join(path)}, which it reads as a whole "
                    f"from around it, and it does not read '{name}', the element that it gets.",
                )
            if not wrong:
                yield CLOSED.fine(source.at(mapping.call))
            names = _unread(fun, mapping)
            if names and not wrong and _gives_one(audited, source, mapping.call):
                yield ALIKE.at(
                    source.at(mapping.call),
                    f"'{getattr(fun, 'name', 'a lambda')}' is mapped over {names[0]}, which it does not read: it gives "
                    "the same for all batch elements.",
                )


def _leading(audited: Audited) -> set[CodeType]:
    """The code that led to operations; what libraries jit is left out, as it may have been traced for another call."""
    found: set[CodeType] = set()
    seen, left = set[Block](), [audited.program]
    while left:
        block = left.pop()
        seen.add(block)
        for step in block.steps:
            found.update(code for code, _ in frames(step.equation))
            info = _compat.open_jaxpr(step.ports[0].jaxpr).debug_info if is_call(step) else None
            if info is None or (info.func_filename and is_users(info.func_filename)):
                left += [each.block for each in step.regions if each.kind != "apart" and each.block not in seen]
    return found


def _unread(fun: Function, mapping: _Mapping) -> list[str]:
    """The arrays that a function is mapped over, if it reads none of them and has a name for each."""
    nodes = [node for part in body_of(fun) for node in ast.walk(part)]
    read = {node.id for node in nodes if isinstance(node, ast.Name)}
    pairs = list(_pairs(fun, mapping))
    names = [".".join(path) for name, path in pairs if name not in read and not _NUMBERING.search(f"{name} {path[-1]}")]
    return names if len(names) == len(mapping.call.args) else []


def _gives_one(audited: Audited, source: Source, call: ast.Call) -> bool:
    """Say whether a result of a call of a mapped function is one that is computed from arguments, and copied."""
    for step, location in audited.of("broadcast_in_dim"):
        here = location.of_user
        is_here = here.file == source.code.co_filename and call.lineno <= here.line <= (call.end_lineno or call.lineno)
        if is_here and repeats(step) and step.outputs[0].uses and is_of_arguments(step.inputs[0], audited):
            return True
    return False


def _functions_in(node: Function) -> dict[str, Function | None]:
    """The functions that are written in one, by name; None where a name is bound again."""
    found: dict[str, Function | None] = {}
    for each in ast.walk(node):
        if isinstance(each, Function) and not isinstance(each, ast.Lambda) and each is not node:
            found[each.name] = None if each.name in found else each
        elif isinstance(each, ast.Assign) and isinstance(each.value, ast.Lambda):
            names = [target.id for target in each.targets if isinstance(target, ast.Name)]
            found.update({name: None if name in found else each.value for name in names})
    return found


def _mappings(source: Source, inner: dict[str, Function | None]) -> Iterator[_Mapping]:
    """The calls of mapped functions that are run."""
    named = {
        target.id: node.value
        for node in source.executed
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for call in source.executed:
        if not isinstance(call, ast.Call):
            continue
        fun = named.get(call.func.id, call.func) if isinstance(call.func, ast.Name) else call.func
        if isinstance(fun, ast.Call) and _is(source, fun.func, jax.vmap) and fun.args:
            axes = fun.args[1] if len(fun.args) > 1 else _keyword(fun, "in_axes")
            yield _Mapping(_differentiated(source, fun.args[0]), axes, call)
        elif isinstance(fun, ast.Name) and (decorated := inner.get(fun.id)) is not None:
            made = getattr(decorated, "decorator_list", [])
            if len(made) == 1 and _is(source, made[0], jax.vmap):
                yield _Mapping(decorated, None, call)


def _differentiated(source: Source, node: ast.expr) -> ast.expr:
    """The function inside calls of `jax.grad`, `jax.checkpoint` and their like."""
    while isinstance(node, ast.Call) and node.args:
        if not any(_is(source, node.func, each) for each in (jax.grad, jax.value_and_grad, jax.checkpoint, jax.jit)):
            break
        node = node.args[0]
    return node


def _is(source: Source, node: ast.expr, fun: Any) -> bool:
    """Say whether a name means a function of JAX."""
    path = path_of(node)
    if path is None or len(path) > 2 or path[0] in source.locals:
        return False
    found = source.names.get(path[0])
    return (getattr(found, path[1], None) if len(path) == 2 else found) is fun


def _keyword(call: ast.Call, name: str) -> ast.expr | None:
    return next((each.value for each in call.keywords if each.arg == name), None)


def _pairs(fun: Function, mapping: _Mapping) -> Iterator[tuple[str, Path]]:
    """The arguments of a mapped function by name, with the array that each is mapped over."""
    names = [each.arg for each in (*fun.args.posonlyargs, *fun.args.args)]
    for place, (name, given) in enumerate(zip(names, mapping.call.args, strict=False)):
        if isinstance(given, ast.Starred):
            return
        path = path_of(given)
        if path is not None and _is_mapped(mapping.axes, place) and not name.startswith("_"):
            yield name, path


def _is_mapped(axes: ast.expr | None, place: int) -> bool:
    """Say whether `in_axes` gives an argument an axis."""
    each: Any = axes.elts[place : place + 1] if isinstance(axes, (ast.Tuple, ast.List)) else [axes]
    return axes is None or (len(each) == 1 and isinstance(each[0], ast.Constant) and isinstance(each[0].value, int))


def _reads_around(fun: Function, name: str, path: Path) -> bool:
    """Say whether a function reads an array from around it, and not its argument of this name."""
    nodes = [node for part in body_of(fun) for node in ast.walk(part)]
    names = [node for node in nodes if isinstance(node, ast.Name)]
    own = {each.arg for each in ast.walk(fun.args) if isinstance(each, ast.arg)}
    bound = own | {node.id for node in names if not isinstance(node.ctx, ast.Load)}
    if path[0] in bound or any(node.id == name for node in names):
        return False
    inner = {each.arg for node in nodes for each in ast.walk(node) if isinstance(each, ast.arg)}
    return path[0] not in inner and any(isinstance(node, ast.expr) and path_of(node) == path for node in nodes)


KINDS = (CLOSED,)
CHECKS = (closed,)
