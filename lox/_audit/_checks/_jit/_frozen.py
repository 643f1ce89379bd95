"""What a compiled function reads of what the program changes: it has the value that was there when JAX traced it."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from lox import _compat
from lox._audit._audited import Audited
from lox._audit._checks._jit._between import (
    LOOPS,
    Change,
    Read,
    between_calls,
    in_loop_of,
    is_new,
    moved_on,
    own_parts,
    stores_to,
)
from lox._audit._checks._jit._names import STATIC_ATTRIBUTES
from lox._audit._checks._jit._scope import Scope
from lox._audit._executed import Function
from lox._audit._files import syntax
from lox._audit._findings import Finding, Held, Kind
from lox._audit._location import NOWHERE, is_users
from lox._audit._reached import is_users_class, parts, plain
from lox._audit._sources import Source, drivers, functions, sources

FROZEN = Kind(
    "LOX433",
    "warning",
    "A compiled function reads what the program changes",
    "Pass the value as an argument: JAX reads names and attributes once, while it traces, and compiles what they are "
    "then into the program.",
    "Compiled functions read nothing that changes.",
    "The source was read for assignments to the names and attributes that compiled functions read.",
)

_BEFORE = (
    *("__", "init", "_init", "setup", "build", "_build", "reset", "load", "restore"),
    *("prepare", "configure", "compile", "create", "make"),
)
"""The beginnings of the names of functions that are called before anything is compiled."""
_MODES = {"training", "train", "is_training", "deterministic", "explore", "exploring", "evaluating"}
_PLAIN = ("builtins", "abc", "typing")


def frozen(audited: Audited) -> Iterator[Finding | Held]:
    """LOX433: an attribute, a global name or a name of a function around it is assigned again after it was read."""
    yield FROZEN.fine(NOWHERE)
    compiled = audited.once(_Compiled)
    for source in sources(audited) if compiled.roots else ():
        reads = {ast.unparse(node): node for node in reversed(_reads(source))}  # Each at its first place.
        for node in reads.values():
            change = compiled.change(source, node)
            if change is not None and (change.in_loop or not compiled.stores(change.what)):
                yield FROZEN.at(
                    source.at(node),
                    f"'{source.code.co_name}' reads '{change.what}' once, while it is traced, and line {change.line} "
                    f"changes it afterwards.",
                    severity="info" if change.is_set else None,
                )


class _Compiled:
    """What a program compiles of the user's functions.

    Attributes:
        roots: Those that are jitted.
    """

    def __init__(self, audited: Audited) -> None:
        traced = sources(audited)
        self._audited = audited
        self._is_jitted = _compat.is_jitted(audited.fun)
        self._by_node = {source.node: source for source in traced}
        self._codes = {source.code for source in traced}
        self._callers: set[Function] = {
            *self._by_node,
            *(node for code in drivers(audited) if (node := _node_of(code)) is not None),
        }
        self.roots = self._roots()

    def _roots(self) -> set[Function]:
        jitted = self._audited.of("jit")
        places = {_place(_compat.open_jaxpr(step.equation.params["jaxpr"])) for step, _ in jitted}
        fun = plain(self._audited.fun) if self._is_jitted else None
        if fun is not None:
            places.add((fun.__code__.co_filename, fun.__code__.co_firstlineno, fun.__code__.co_name))
        nodes = [_node(file, line, name) for file, line, name in places if file and line and is_users(file)]
        return {node for node in nodes if node is not None}

    def stores(self, name: str) -> bool:
        """Say whether a traced function assigns what it reads itself, which is another mistake."""
        return any(name in _declared(node) or _assigns(node, name) for node in self._by_node)

    def change(self, source: Source, node: Read) -> Change | None:
        """Where the program changes what an expression of a traced function reads."""
        inner = [source.node, *source.parents]
        is_compiled = self._is_jitted or any(each in self.roots for each in inner)
        root = node if isinstance(node, ast.Name) else node.value
        if not isinstance(root, ast.Name):
            return None
        if isinstance(node, ast.Attribute) and root.id == "self":
            found = self._of_attribute(source, node) or self._of_local(source, node) if is_compiled else None
            if found is not None or root.id not in source.code.co_freevars:
                return found
        if root.id in source.locals:
            return None
        if root.id in source.code.co_freevars:
            place = next((place for place, each in enumerate(inner) if place and _binds(each, root.id)), 0)
            jitted = [each for each in inner[:place] if each in self.roots] or self._calling(source, inner[place])
            return in_loop_of(ast.unparse(node), inner[place], jitted[-1]) if jitted else None
        if not is_compiled or not _changes(*_named(node, source.names.get(root.id))):
            return None
        return self._of_global(node.id, source) if isinstance(node, ast.Name) else self._of_part(node, source)

    def _of_attribute(self, source: Source, node: ast.Attribute) -> Change | None:
        attribute, file = f"self.{node.attr}", source.code.co_filename
        for owner in Scope(self._audited, source, self._by_node).objects(node.value) or ():
            value = None if isinstance(owner, type) else parts(owner).get(node.attr)
            if not _changes(node.attr, value) or not _is_opaque(owner):
                continue
            methods = [each.__code__ for each in _methods(type(owner))]
            if not any(_begins(_node_of(each), attribute) for each in methods if each.co_name == "__init__"):
                continue
            changes = (_assigned(each, _node_of(each), attribute) for each in methods if each not in self._codes)
            names = [f"{name}.{node.attr}" for name, known in source.names.items() if known is owner]
            outside = (in_loop_of(name, syntax(file), root) for name in names for root in self.roots)
            found = next((change for change in (*changes, *outside) if change is not None), None)
            if found is not None:
                return found
        return None

    def _calling(self, source: Source, around: Function) -> list[Function]:
        """The compiled functions in a function that use another one, which is written in it too."""
        own, inner = source.code.co_name, set(ast.walk(around))
        roots = [root for root in self.roots if root in inner]
        return [root for root in roots if any(getattr(each, "id", "") == own for each in ast.walk(root))]

    def _of_local(self, source: Source, node: ast.Attribute) -> Change | None:
        """The change of an attribute of an object that a traced function makes, between calls of its method."""
        inner = [source.node, *source.parents]
        roots = [root for root in inner if root in self.roots and not _is_given_self(root)]
        for around in self._callers if roots else ():
            made = _class_of(source, around)
            looped = {part for loop in own_parts(around.body, LOOPS) for part in ast.walk(loop)}
            for each in ast.walk(around) if made else ():
                if not isinstance(each, ast.Assign) or not isinstance(each.value, ast.Call) or each in looped:
                    continue
                if ast.unparse(each.value.func) != made:
                    continue
                names = [f"{target.id}.{node.attr}" for target in each.targets if isinstance(target, ast.Name)]
                pairs = [(own, root) for own in names for root in roots]
                loops = (in_loop_of(own, around, root) for own, root in pairs)
                calls = (between_calls(own, around, root) for own, root in pairs if self._is_reused(root))
                if (change := next((change for change in (*loops, *calls) if change is not None), None)) is not None:
                    return change
        return None

    def _is_reused(self, root: Function) -> bool:
        """Say whether two calls of a function are of the same compiled program."""
        jaxprs = [_compat.open_jaxpr(step.equation.params["jaxpr"]) for step, _ in self._audited.of("jit")]
        own = [id(each) for each in jaxprs if each.debug_info.func_lineno and _node(*_place(each)) is root]
        return len({*own}) < len(own)

    def _of_part(self, node: ast.Attribute | ast.Subscript, source: Source) -> Change | None:
        """The change of an element or an attribute of a global object, in a loop that calls what is compiled."""
        file = source.code.co_filename
        text = ast.unparse(node)
        written = [each for found in functions(file).values() for each, _ in found]
        places: list[Function | ast.Module] = [syntax(file), *written]
        loops = (in_loop_of(text, each, root) for each in places for root in self.roots)
        changes = (moved_on(text, each, root) for each in written for root in self.roots)
        return next((change for change in (*loops, *changes) if change is not None), None)

    def _of_global(self, name: str, source: Source) -> Change | None:
        file = source.code.co_filename
        if not any(_begins_with(each, name) for each in syntax(file).body):
            return None
        written = [node for found in functions(file).values() for node, _ in found]
        declaring = [node for node in written if node not in self._by_node and name in _declared(node)]
        changes = (_assigned_in(getattr(node, "name", ""), file, node, name) for node in declaring)
        loops = (in_loop_of(name, syntax(file), root) for root in self.roots)
        return next((change for change in (*changes, *loops) if change is not None), None)


def _reads(source: Source) -> list[Read]:
    """The names, their attributes and their elements that a function reads, and not only for their shapes."""
    nodes = source.executed
    static = {node.value for node in nodes if isinstance(node, ast.Attribute) and node.attr in STATIC_ATTRIBUTES}
    read = [node for node in nodes if isinstance(node, Read) and isinstance(node.ctx, ast.Load)]
    return [node for node in read if node not in static and (isinstance(node, ast.Name) or _is_part(node))]


def _is_part(node: ast.Attribute | ast.Subscript) -> bool:
    """Say whether an expression is an attribute of a name, or an element of it by a constant."""
    is_chosen = isinstance(node, ast.Attribute) or isinstance(node.slice, ast.Constant)
    return is_chosen and isinstance(node.value, ast.Name)


def _named(node: Read, known: Any) -> tuple[str, Any]:
    """The name of what an expression reads of an object, and its value."""
    if isinstance(node, ast.Name):
        return node.id, known
    if isinstance(node, ast.Attribute):
        return node.attr, parts(known).get(node.attr) if not isinstance(known, type(ast)) else None
    key = node.slice.value if isinstance(node.slice, ast.Constant) else None
    has = isinstance(known, dict) and key in known
    has |= isinstance(known, list) and isinstance(key, int) and -len(known) <= key < len(known)
    return str(key), known[key] if has else None


def _begins(node: Function | None, name: str) -> bool:
    """Say whether a function assigns something to a name, and not None until it is known."""
    stores = [each for each in ast.walk(node) if isinstance(each, ast.Assign)] if node is not None else []
    pairs = [pair for each in stores for target in each.targets for pair in _pairs(target, each.value)]
    values = [value for target, value in pairs if stores_to(target, name)]
    return bool(values) and not any(isinstance(value, ast.Constant) and value.value is None for value in values)


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    """What is assigned, and the expression that it gets or that is taken apart for it."""
    if isinstance(target, (ast.Tuple, ast.List)):
        written = value.elts if isinstance(value, (ast.Tuple, ast.List)) else []
        values = written if len(written) == len(target.elts) else [value] * len(target.elts)
        for each, own in zip(target.elts, values, strict=True):
            yield from _pairs(each, own)
    else:
        yield target, value


def _is_opaque(owner: Any) -> bool:
    """Say whether JAX knows an object by its identity alone: it is no pytree, no module, and equal to nothing else."""
    return _is_known_by_identity(type(owner)) and jax.tree_util.all_leaves([owner])


def _is_known_by_identity(of: type) -> bool:
    has_plain_bases = all(is_users_class(each) or each.__module__ in _PLAIN for each in of.__mro__)
    return has_plain_bases and of.__hash__ is object.__hash__


def _class_of(source: Source, around: Function) -> str:
    """The class that a function is a method of, of the module or of a function, if its objects have an identity."""
    name, _, method = source.code.co_qualname.partition(".")
    of = source.names.get(name)
    if method and isinstance(of, type):
        return name if _is_known_by_identity(of) else ""
    found = [each for each in ast.walk(around) if isinstance(each, ast.ClassDef) and source.node in ast.walk(each)]
    inside = found[-1:] if not any(each.bases or each.decorator_list for each in found) else []
    named = {getattr(part, "name", "") for each in inside for part in each.body}
    return inside[0].name if inside and named.isdisjoint(("__eq__", "__hash__")) else ""


def _is_given_self(root: Function) -> bool:
    """Say whether what is compiled has the object as an argument that it traces, as it has a pytree."""
    jitted = [text for each in getattr(root, "decorator_list", ()) if "jit" in (text := ast.unparse(each))]
    return bool(jitted) and not any("static_arg" in text for text in jitted)


def _methods(of: type) -> list[Any]:
    users = [value for each in of.__mro__ if is_users_class(each) for value in vars(each).values() if callable(value)]
    return [found for found in map(plain, users) if found is not None]


def _begins_with(node: ast.stmt, name: str) -> bool:
    value = node.value if isinstance(node, (ast.Assign, ast.AnnAssign)) else None
    is_none = value is None or (isinstance(value, ast.Constant) and value.value is None)
    return not is_none and any(stores_to(each, name) for each in ast.walk(node))


@functools.lru_cache(maxsize=4096)
def _declared(node: Function) -> frozenset[str]:
    return frozenset(name for each in ast.walk(node) if isinstance(each, ast.Global) for name in each.names)


def _assigned(code: Any, node: Function | None, name: str) -> Change | None:
    return _assigned_in(code.co_name, code.co_filename, node, name)


def _is_called_once(function: str, file: str) -> bool:
    """Say whether a file calls a function at most once, and not in a loop."""
    calls = [node for node in ast.walk(syntax(file)) if isinstance(node, ast.Call)]
    own = {node for node in calls if ast.unparse(node.func).rpartition(".")[2] == function}
    loops = (node for node in ast.walk(syntax(file)) if isinstance(node, LOOPS))
    return len(own) < 2 and not any(own.intersection(ast.walk(loop)) for loop in loops)


def _assigned_in(function: str, file: str, node: Function | None, name: str) -> Change | None:
    """Where a function assigns a name or an attribute, unless it is called before or only fills it or compiles anew."""
    if node is None or function.startswith(_BEFORE) or any(map(is_new, ast.walk(node))):
        return None
    fills = [each for each in ast.walk(node) if isinstance(each, ast.If) and name in ast.unparse(each.test)]
    guarded = {inner for each in fills for inner in ast.walk(each)}
    for each in ast.walk(node):
        if each in guarded or not isinstance(each, (ast.Assign, ast.AugAssign, ast.AnnAssign)) or each.value is None:
            continue
        targets = each.targets if isinstance(each, ast.Assign) else [each.target]
        if any(stores_to(inner, name) for target in targets for inner in ast.walk(target)):
            given = {argument.arg for argument in ast.walk(node.args) if isinstance(argument, ast.arg)}
            is_set = isinstance(each, ast.Assign) and isinstance(each.value, ast.Name) and each.value.id in given
            return Change(name, each.lineno, is_set and _is_called_once(function, file))
    return None


def _assigns(node: Function, attribute: str) -> bool:
    return "." in attribute and any(stores_to(each, attribute) for each in ast.walk(node))


def _binds(node: Function, name: str) -> bool:
    arguments = (each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg))
    return name in arguments or any(stores_to(each, name) for each in ast.walk(node))


def _place(jaxpr: Any) -> tuple[Any, Any, Any]:
    info = jaxpr.debug_info
    return info.func_filename, info.func_lineno, info.func_name


def _node_of(code: Any) -> Function | None:
    return _node(code.co_filename, code.co_firstlineno, code.co_name)


def _node(file: str, line: int, name: str) -> Function | None:
    found = functions(file).get((line, name), [])
    return found[0][0] if len(found) == 1 else None


def _changes(name: str, value: Any) -> bool:
    """Say whether a value is made of numbers and arrays, or says whether a model is trained."""
    if isinstance(value, bool):
        return name.lower() in _MODES
    if isinstance(value, dict):
        value = [*value.values()]
    if isinstance(value, (list, tuple)):
        return 0 < len(value) <= 1000 and all(_changes(name, each) for each in value)
    return isinstance(value, (int, float, complex, jax.Array, np.ndarray, np.generic))


KINDS = (FROZEN,)
CHECKS = (frozen,)
