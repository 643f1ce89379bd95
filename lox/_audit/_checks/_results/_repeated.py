"""Loops of Python that compute a new value from the same old one in each iteration."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from lox._audit._audited import Audited
from lox._audit._checks._results._bindings import Binding, Path, bindings, path_of, read_names, read_paths, stems
from lox._audit._checks._results._replaced import OLD, old_of
from lox._audit._findings import Finding, Held
from lox._audit._sources import Source, sources

_HANDED_ON = re.compile(r"h|hx|hs|c|(?:\w+_)?(?:hidden\w*|hstate|carry|memory|cell)|(?:rnn|lstm|gru|opt\w*)_state")
"""Names of states that one iteration hands to the next one."""
_DIGITS = re.compile(r"\d+")
_Loop = ast.For | ast.While
_ENDS = (ast.Break, ast.Continue, ast.Return, ast.Yield, ast.YieldFrom, ast.Try)


def repeated(audited: Audited) -> Iterator[Finding | Held]:
    """LOX431: each iteration of a loop starts from the same old value, and only the last new one is read."""
    for source in sources(audited):
        loops = [node for node in source.executed if isinstance(node, _Loop)]
        for loop in loops:
            if any(isinstance(node, _ENDS) for node in ast.walk(loop)):
                continue  # It may look for something, and end once it is found.
            again = dict(_again(source, loop))
            for each, path in again.items():
                yield OLD.at(
                    source.at(each.node),
                    f"Each iteration of a loop computes '{each.name}' from '{'.'.join(path)}', which no iteration "
                    f"changes, and only the last '{each.name}' is read.",
                )
            for each in (each for each in _averages(source, loop) if each not in again):
                yield OLD.at(
                    source.at(each.node),
                    f"Each iteration of a loop computes the moving average '{each.name}' from what it was before the "
                    "loop, and only the last one is read.",
                )
            for each in _gradients(source, loop):
                yield OLD.at(
                    source.at(each.node),
                    f"Each iteration of a loop computes the gradient '{each.name}' by something else, and only that of "
                    "the last iteration is read.",
                )


def dropped(audited: Audited) -> Iterator[Finding]:
    """LOX431: of two gradients of one function, by parameters of the same kind, one is read and the other is not."""
    for source in sources(audited):
        read = read_names(source.node)
        gradients = [each for each in bindings(source) if each.place[:1] == (1,) and _is_gradient(each)]
        for each in gradients:
            others = [other for other in gradients if _are_twins(each.value, other.value)]
            if (each.name == "_" or each.name not in read) and any(other.name in read - {"_"} for other in others):
                yield OLD.at(
                    source.at(each.node),
                    f"The gradient that {ast.unparse(each.value)} gives is not read, and that of "
                    f"{ast.unparse(others[0].value)} is.",
                )


def _are_twins(one: ast.expr, other: ast.expr) -> bool:
    """Say whether two expressions are the same but for numbers in it."""
    texts = ast.unparse(one), ast.unparse(other)
    bare, again = (_DIGITS.sub("", text) for text in texts)
    return texts[0] != texts[1] and bare == again


def stands(audited: Audited) -> Iterator[Finding]:
    """LOX431: each iteration of a loop computes and reads the new one of a state, which no iteration changes."""
    for source in sources(audited):
        for loop in (node for node in source.executed if isinstance(node, _Loop)):
            changed = {"self"}.union(*map(_changed, ast.walk(loop)))
            is_search = any(isinstance(node, _ENDS) for node in ast.walk(loop))
            for each in bindings(source) if not is_search else ():
                if each.node not in loop.body:
                    continue
                read = [path[0] for path in read_paths(each.value) if len(path) == 1]
                found = stems(each.name, numbered=False) | ({*read} if _is_fed(loop, each, read) else set())
                old = next((name for name in read if name in found - changed and _HANDED_ON.fullmatch(name)), None)
                if old is not None:
                    yield OLD.at(
                        source.at(each.node),
                        f"Each iteration of a loop computes '{each.name}' from '{old}', which no iteration changes.",
                    )


def _again(source: Source, loop: _Loop) -> Iterator[tuple[Binding, Path]]:
    """Names that a loop assigns and does not read, each with the old value that the loop does not change."""
    changed = {"self"}.union(*map(_changed, ast.walk(loop)))
    bound = bindings(source)
    for each in _only_read_after(source, loop):
        path = old_of(each) or _begun(each, [other for other in bound if other.node.lineno < loop.lineno])
        if path is not None and path[0] not in changed and path[0] != each.name:
            yield each, path


def _gradients(source: Source, loop: _Loop) -> Iterator[Binding]:
    """Gradients that a loop computes for what it goes over, and does not read."""
    counted = _names(loop.target) if isinstance(loop, ast.For) else set()
    for each in _only_read_after(source, loop):
        call = each.value
        if isinstance(call, ast.Call) and _is_gradient(each) and any(_names(arg) & counted for arg in call.args):
            yield each


def _is_gradient(new: Binding) -> bool:
    """Say whether a name is given the gradient of `jax.grad(f)(x)`, or of `jax.value_and_grad(f)(x)`."""
    call = new.value
    made = ast.unparse(call.func.func) if isinstance(call, ast.Call) and isinstance(call.func, ast.Call) else ""
    return (made.endswith("value_and_grad") and new.place[:1] == (1,)) or made in ("jax.grad", "grad")


def _averages(source: Source, loop: _Loop) -> Iterator[Binding]:
    """Moving averages of `optax.incremental_update` that a loop computes, and neither reads nor puts anywhere."""
    stored = _names(loop, ast.Store)
    for each in _only_read_after(source, loop):
        call = each.value
        name = ast.unparse(call.func) if isinstance(call, ast.Call) else ""
        if isinstance(call, ast.Call) and name.endswith("incremental_update") and _names(call) & stored:
            yield each


def _only_read_after(source: Source, loop: _Loop) -> list[Binding]:
    """The names that a loop assigns and does not read, and that are read after it."""
    inside = _names(loop, ast.Load)
    after = {
        node.id
        for node in ast.walk(source.node)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.lineno > (loop.end_lineno or 0)
    }
    return [each for each in bindings(source) if each.node in loop.body and each.name in after - inside]


def _is_fed(loop: _Loop, new: Binding, read: list[str]) -> bool:
    """Say whether a loop computes something that a new value is made of from that value, for the next iteration."""
    later = [node for node in loop.body if isinstance(node, ast.Assign) and node.lineno > new.node.lineno]
    is_whole = not new.place and new.name not in read
    return is_whole and any(_names(node.value) & {new.name} and _names(node, ast.Store) & {*read} for node in later)


def _names(node: ast.AST, context: type[ast.expr_context] = ast.expr_context) -> set[str]:
    """The names in some syntax, or those of them that it reads or assigns."""
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, context)}


def _changed(node: ast.AST) -> set[str]:
    """The names that a statement may change what they stand for: those it assigns, and those it gives to a call."""
    if isinstance(node, ast.Expr):
        return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    if not isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)) or isinstance(node.ctx, ast.Load):
        return set()
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return {node.id} if isinstance(node, ast.Name) else set()


def _begun(new: Binding, before: list[Binding]) -> Path | None:
    """The path that a name was assigned before the loop, if the loop computes the new value from that path."""
    own = [each for each in before if each.name == new.name][-1:]
    path = path_of(own[0].value) if own and not own[0].place else None
    return path if path is not None and not new.place and path in read_paths(new.value) else None


CHECKS = (repeated, dropped, stands)
