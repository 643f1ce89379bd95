"""What a traced function changes of what outlives it: attributes, containers, and names of functions around it."""

from __future__ import annotations

import ast
import collections
import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from lox import _compat
from lox._audit._checks._jit._names import Names
from lox._audit._checks._jit._scope import Scope
from lox._audit._findings import Finding, Kind
from lox._audit._location import Location
from lox._audit._reached import CONTAINERS, parts, plain

CHANGED = Kind(
    "LOX413",
    "warning",
    "State outside a function is changed once, while JAX traces",
    "Return the value, and carry it from call to call as an argument; lox.log collects values from inside.",
    "No traced function changes what is outside of it.",
    "Objects that outlive the call were compared before and after tracing, and the source was read for assignments.",
)
LEAKED = Kind(
    "LOX414",
    "error",
    "A value of a traced function is kept outside it",
    "Return the value (from the body of a scan, as its second result), or collect it with lox.log.",
    "No traced value is kept outside of its function.",
    "Objects that outlive the call were searched for traced values after tracing.",
)

_ADDING = {"append", "appendleft", "extend", "extendleft", "insert", "add", "update", "setdefault"}
_REMOVING = {"remove", "discard", "pop", "popleft", "popitem", "clear", "sort", "reverse"}
Found = Finding | Kind
"""A finding, or the kind of what may be so."""

_MAKING = {"__init__", "__new__", "__post_init__"}
"""Methods whose object is new."""


class Changes:
    """What a traced function changes.

    Args:
        scope: The function.
        names: Its names.
        fun: The audited function.
    """

    def __init__(self, scope: Scope, names: Names, fun: Any) -> None:
        self._scope, self._names, self._fun = scope, names, fun
        self._source, self._reached = scope.source, scope.reached

    def found(self, node: ast.AST) -> Iterator[Found]:
        """What a part of it changes, or the kind of what it may change."""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in _ADDING | _REMOVING:
                values = [*node.args, *(keyword.value for keyword in node.keywords)]
                traced, how = any(map(self._names.may_be_traced, values)), "adds" if node.func.attr in _ADDING else ""
                what = f"{ast.unparse(node.func)}(...)"
                yield from self._container(node.func.value, what, self._source.at(node), traced, how)
        elif isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                yield from self._store(target, node.value, isinstance(node, ast.AugAssign))
        elif isinstance(node, ast.Delete):
            for target in node.targets:
                yield from self._store(target, ast.Constant(None), False)

    def is_seen(self, node: ast.AST) -> bool:
        """Whether a part of it did what it may do: it assigns what changed, and nothing else in the function does."""
        if not isinstance(node, ast.Assign) or len(node.targets) > 1:
            return False
        target = node.targets[0]
        stores = [store for store in self._names.all() if isinstance(store, (ast.Assign, ast.AugAssign, ast.AnnAssign))]
        targets = [each for store in stores for each in getattr(store, "targets", [getattr(store, "target", None)])]
        if sum(ast.dump(each) == ast.dump(target) for each in targets) > 1:
            return False
        if isinstance(target, ast.Attribute):
            owners = self._scope.objects(target.value) or ()
            return any(self._reached.changed(owner, target.attr) for owner in owners)
        objects = self._scope.objects(target.value) or () if isinstance(target, ast.Subscript) else ()
        return any(self._reached.changed(each) for each in objects if isinstance(each, CONTAINERS))

    def _store(self, target: ast.expr, value: ast.expr, again: bool) -> Iterator[Found]:
        if isinstance(target, (ast.Tuple, ast.List)):
            for each in target.elts:
                yield from self._store(each, value, again)
        elif isinstance(target, ast.Starred):
            yield from self._store(target.value, value, again)
        elif isinstance(target, ast.Subscript):
            traced, at = self._names.may_be_traced(value), self._source.at(target)
            what = f"{ast.unparse(target)} {'+' if again else ''}= ..."
            yield from self._container(target.value, what, at, traced, "counts" if again else "")
        elif isinstance(target, ast.Attribute):
            yield from self._attribute(target, again)
        elif isinstance(target, ast.Name):
            yield from self._name(target, value, again)

    def _attribute(self, target: ast.Attribute, again: bool) -> Iterator[Found]:
        name, function, at = ast.unparse(target), self._source.code.co_name, self._source.at(target)
        if function in _MAKING:
            return
        owners = self._scope.objects(target.value)
        if owners is None:
            owners = self._reached.having(target.attr)
        if any(_has_tracer(parts(owner).get(target.attr)) for owner in owners):
            yield LEAKED.at(at, f"'{name}' holds a tracer after '{function}' was traced.")
        elif any(self._reached.changed(owner, target.attr) for owner in owners) or (again and self._is_cached(owners)):
            yield CHANGED.at(at, f"'{name}' is assigned while '{function}' is traced, and never again.")
        elif owners:
            yield CHANGED
            yield LEAKED

    def _name(self, target: ast.Name, value: ast.expr, again: bool) -> Iterator[Found]:
        name, function, at = target.id, self._source.code.co_name, self._source.at(target)
        if again and self._scope.is_default(name):
            yield from self._container(target, f"{name} += ...", at, self._names.may_be_traced(value), "counts")
        if name not in self._names.outer:
            return
        if name in self._names.declared_global and _has_tracer(self._source.names.get(name)):
            yield LEAKED.at(at, f"The global '{name}' holds a tracer after '{function}' was traced.")
        elif self._scope.owner(name) not in self._source.within:
            if again or self._names.may_be_traced(value):
                yield CHANGED.at(at, f"'{name}' of outside is assigned while '{function}' is traced, and never again.")
            else:
                yield CHANGED

    def _container(self, container: ast.expr, what: str, at: Location, traced: bool, how: str) -> Iterator[Found]:
        """What puts a value into a container, or takes it out: it "adds", "counts" or sets."""
        base, function = _base(container), self._source.code.co_name
        if isinstance(base, ast.Name) and self._scope.is_free(base.id):
            if self._scope.owner(base.id) not in self._source.within and self._scope.is_container(base.id):
                if traced or how == "counts":
                    more = ", and puts a tracer there" if traced else ""
                    yield CHANGED.at(at, f"{what} is run while '{function}' is traced{more}, once.")
                else:
                    yield CHANGED
            return
        objects = self._scope.objects(container) or ()
        known = [each for each in objects if isinstance(each, CONTAINERS)]
        changed = any(map(self._reached.changed, known))
        # A table of constants, by shape or by name, is often kept in a global.
        is_kept = isinstance(base, ast.Name) and not self._scope.is_default(base.id) and how != "counts"
        if (traced or changed) and any(map(_has_tracer, known)):
            yield LEAKED.at(
                at, f"'{ast.unparse(base)}', which is outside of '{function}', holds a tracer after it was traced."
            )
        elif (changed and not is_kept) or (how and self._is_cached(known)):
            yield CHANGED.at(at, f"{what} is run while '{function}' is traced, and never again.")
        elif known or any(isinstance(each, np.ndarray) for each in objects):
            yield CHANGED
            yield LEAKED

    def _is_cached(self, values: Sequence[Any]) -> bool:
        """Whether one of these is the object whose jitted method is audited, or in it.

        The method may have been traced before the audit, which then changes nothing.
        """
        if not _compat.is_jitted(self._fun):
            return False
        owner = getattr(inspect.unwrap(self._fun), "__self__", None)
        if owner is None or self._source.code is not getattr(plain(self._fun), "__code__", None):
            return False
        return any(value is each for value in values for each in (owner, *parts(owner).values()))


def _base(node: ast.expr) -> ast.expr:
    """The container that an expression is in."""
    while isinstance(node, (ast.Subscript, ast.Call)):
        node = node.value if isinstance(node, ast.Subscript) else getattr(node.func, "value", node.func)
    return node


def _has_tracer(value: Any) -> bool:
    leaves: Sequence[Any] = list(value) if isinstance(value, (set, collections.deque)) else [value]
    try:
        return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(leaves))
    except ValueError:  # Keys that cannot be sorted.
        return False


KINDS = (CHANGED, LEAKED)
