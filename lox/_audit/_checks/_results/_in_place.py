"""Changes in place of arguments, of which JAX gives each traced function a copy."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from lox import _compat
from lox._audit._audited import Audited
from lox._audit._checks._results._bindings import path_of
from lox._audit._checks._results._dropped import Part, in_vain
from lox._audit._findings import Finding, Held, Kind
from lox._audit._location import NOWHERE
from lox._audit._sources import Source, sources

IN_PLACE = Kind(
    "LOX435",
    "warning",
    "An argument of a compiled function is changed in place, and the change is lost",
    "Return the new value, such as {**state, 'step': state['step'] + 1}, and use it in the place of the old one: JAX "
    "calls the function with dicts and lists of its own.",
    "No argument of a compiled function is changed in place for nothing.",
    "The source was read for assignments to elements of arguments, and what they assign was followed to its uses.",
)


def in_place(audited: Audited) -> Iterator[Finding | Held]:
    """LOX435: a jitted function, or the body of a loop, assigns an element of an argument, which nothing reads then."""
    yield IN_PLACE.fine(NOWHERE)
    bodies = _bodies(audited)
    own = [each for each in sources(audited) if (each.code.co_filename, each.code.co_firstlineno) in bodies]
    found = [part for source in own for part in _assignments(source)]
    for source, node in in_vain(audited, found):
        target = ast.unparse(_target(node))
        yield IN_PLACE.at(
            source.at(node),
            f"'{target}' is assigned in a copy of the argument, which '{source.code.co_name}' does not return.",
        )


def _bodies(audited: Audited) -> set[tuple[str | None, int | None]]:
    """The file and the first line of each function that JAX calls with copies of its arguments."""
    params = [step.equation.params for step, _ in audited.of("jit", "scan", "while")]
    jaxprs = [each["body_jaxpr"] if "body_jaxpr" in each else each["jaxpr"] for each in params]
    infos = [_compat.open_jaxpr(jaxpr).debug_info for jaxpr in jaxprs]
    return {(info.func_filename, info.func_lineno) for info in infos}


def _assignments(source: Source) -> Iterator[Part]:
    """The assignments to elements of the arguments of a function, such as `state["step"] += 1`."""
    arguments = {each.arg for each in ast.walk(source.node.args) if isinstance(each, ast.arg)}
    nodes = source.executed
    stored = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    for node in nodes:
        target = _target(node)
        while isinstance(target, ast.Subscript) and path_of(target) is not None:
            target = target.value
        if isinstance(target, ast.Name) and target is not _target(node) and target.id in arguments - stored:
            yield source, node


def _target(node: ast.AST) -> ast.expr:
    """What an assignment assigns, if that is one thing."""
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        return node.targets[0]
    return node.target if isinstance(node, ast.AugAssign) else ast.Constant(None)


KINDS = (IN_PLACE,)
CHECKS = (in_place,)
