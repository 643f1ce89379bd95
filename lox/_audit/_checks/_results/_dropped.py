"""Statements that compute a value, change nothing, and drop the value."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from lox._audit._audited import Audited
from lox._audit._checks._jit._scope import Scope
from lox._audit._findings import Finding, Held, Kind
from lox._audit._location import NOWHERE, frames, is_users, span_of
from lox._audit._program import Block, Step
from lox._audit._reached import plain
from lox._audit._sources import Source, functions, sources

DROPPED = Kind(
    "LOX430",
    "error",
    "A statement drops the result of what changes nothing in place",
    "Assign the result, such as x = x.at[i].set(y) or params = optax.apply_updates(params, updates); delete the "
    "statement if nothing needs it.",
    "No statement drops the result of a pure function.",
    "The statements of the functions that were traced were read for calls whose results are not assigned.",
)

_AT = {"set", "add", "subtract", "multiply", "mul", "divide", "div", "power", "min", "max", "apply"}
_METHODS = {"sort", "astype", "reshape", "clip", "round", "transpose", "squeeze", "ravel", "flatten", "swapaxes"}
_UPDATES = {"apply_updates", "incremental_update", "periodic_update", "tree_at", "replace"}
_PURE = ("jax.numpy", "jax.lax", "jax.nn", "jax.scipy", "jax.tree", "jax.ops", "optax")
"""Modules whose functions change nothing."""
_ADDS = {"append", "appendleft", "extend", "insert", "add", "update", "setdefault", "pop", "clear", "write"}
_CHECKS = ("assert", "check", "debug", "ensure", "log", "print", "show", "test", "valid", "warm")


class Dropped(NamedTuple):
    """A call that is a statement.

    Attributes:
        source: The function that it is in.
        node: The call.
        is_update: Whether what is called returns the new one of a value.
        is_certain: Whether the source tells all; else its operations are to be looked at.
    """

    source: Source
    node: ast.Call
    is_update: bool
    is_certain: bool


def dropped(audited: Audited) -> Iterator[Finding | Held]:
    """LOX430: the result of a pure function is the value of a statement."""
    yield DROPPED.fine(NOWHERE)
    found = list(statements(audited))
    vain = in_vain(audited, ((each.source, each.node) for each in found if not each.is_certain))
    for each in found:
        if not each.is_certain and (each.source, each.node) not in vain:
            continue
        text = ast.unparse(each.node.func)
        yield DROPPED.at(
            each.source.at(each.node),
            f"{text}(...) returns a new value and changes nothing in place, and this statement drops it.",
            severity=None if each.is_update else "warning",
        )


def statements(audited: Audited) -> Iterator[Dropped]:
    """The statements that may drop what they call returns."""
    for source in sources(audited):
        statements = [
            node.value for node in source.executed if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
        ]
        scope = Scope(audited, source, {}) if statements else None
        for call in statements:
            kind = _kind(scope, call)
            if kind is not None:
                yield Dropped(source, call, *kind)


def _kind(scope: Scope | None, call: ast.Call) -> tuple[bool, bool] | None:
    """Whether a call returns the new one of a value and whether that is certain; None if it is not known as pure."""
    function = call.func
    if isinstance(function, ast.Attribute):
        at = function.value.value if isinstance(function.value, ast.Subscript) else None
        if function.attr in _AT and isinstance(at, ast.Attribute) and at.attr == "at":
            return True, True
        if function.attr in ("_replace", "replace") and call.keywords and not call.args:
            return True, True
        if function.attr == "apply_gradients" and any(keyword.arg == "grads" for keyword in call.keywords):
            return True, True
    objects = (scope.objects(function) if scope is not None else None) or []
    if any(map(_is_pure, objects)):
        return getattr(objects[0], "__name__", "") in _UPDATES | {"update_fn"}, False
    if any(map(_returns_only, objects)):
        return False, False
    if isinstance(function, ast.Attribute) and function.attr in _METHODS and not objects:
        return False, False
    return None


def _is_pure(fun: Any) -> bool:
    module, name = (getattr(fun, "__module__", None) or "").replace("._src", ""), getattr(fun, "__name__", "")
    if name.lstrip("_").startswith(_CHECKS):
        return False
    return module.startswith(_PURE) or (
        module in ("dataclasses", "equinox._tree", "equinox._update") and name in _UPDATES
    )


def _returns_only(fun: Any) -> bool:
    """Say whether a function of the user's program returns a value, and changes nothing that it is given.

    What functions of libraries change is not known: `numpyro.sample` tells its handlers.
    """
    code = getattr(plain(fun), "__code__", None) if callable(fun) and not isinstance(fun, type) else None
    if (
        code is None
        or not is_users(code.co_filename)
        or code.co_name.lstrip("_").startswith(_CHECKS)
        or not hasattr(fun, "__name__")
    ):
        return False
    written = functions(code.co_filename).get((code.co_firstlineno, code.co_name), [])
    if len(written) != 1 or getattr(fun, "__self__", None) is not None:
        return False
    nodes = list(ast.walk(written[0][0]))
    returns = [node for node in nodes if isinstance(node, ast.Return)]
    changes = any(
        isinstance(node, (ast.Global, ast.Nonlocal, ast.Yield, ast.YieldFrom))
        or (isinstance(node, (ast.Attribute, ast.Subscript)) and not isinstance(node.ctx, ast.Load))
        or (isinstance(node, ast.Call) and getattr(node.func, "attr", "") in _ADDS)
        for node in nodes
    )
    return bool(returns) and all(each.value is not None for each in returns) and not changes


Part = tuple[Source, ast.AST]
"""A part of a function, such as a statement."""


def in_vain(audited: Audited, parts: Iterable[Part]) -> list[Part]:
    """Those parts of functions that compute something, and of which nothing depends on what they compute."""
    computed = computed_by(audited, parts)
    return [part for part, steps in computed.items() if steps and all(is_dead(step, audited.live) for step in steps)]


def computed_by(audited: Audited, parts: Iterable[Part]) -> dict[Part, list[Step]]:
    """The operations that parts of functions lead to, but for what is inside these."""
    program = audited.program
    found: dict[Part, list[Step]] = {part: [] for part in parts}
    codes = {source.code for source, _ in found}
    seen: set[Block] = set()
    left = [program] if found else []
    while left:
        block = left.pop()
        if block in seen:
            continue
        seen.add(block)
        for step in block.steps:
            lines = {
                (code, span.line) for code, at in frames(step.equation) if code in codes and (span := span_of(code, at))
            }
            own = [part for part in found for code, line in lines if _covers(part, code, line)]
            for part in own:
                found[part].append(step)
            if not own:
                left += step.blocks
    return found


def _covers(part: Part, code: Any, line: int) -> bool:
    source, node = part
    return code is source.code and getattr(node, "lineno", 0) <= line <= (getattr(node, "end_lineno", 0) or 0)


def is_dead(step: Step, live: set[Any]) -> bool:
    """Say whether nothing depends on what a step computes."""
    return not step.equation.effects and live.isdisjoint(step.outputs)


KINDS = (DROPPED,)
CHECKS = (dropped,)
