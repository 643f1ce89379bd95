"""Names in a function that may stand for traced values."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Iterator

from lox._audit._executed import Function, body_of

STATIC_ATTRIBUTES = {
    *("shape", "dtype", "ndim", "size", "itemsize", "nbytes", "aval", "sharding", "weak_type"),
    *("__name__", "__class__", "__doc__", "name"),
}
_STATIC_FUNCTIONS = {
    *("len", "type", "isinstance", "id", "hasattr", "range", "callable", "typeof", "shape", "ndim", "result_type"),
    *("eval_shape", "keys", "structure", "tree_structure", "dtype"),
}
_STATIC_TYPES = {"str", "bool", "int", "bytes", "Path"}


class Names:
    """The names of a function.

    Attributes:
        outer: The names that it declares global or nonlocal.
        declared_global: Those that it declares global.
    """

    def __init__(self, node: Function, names: Iterable[str]) -> None:
        self._node = node
        own = _parts(node)
        self.declared_global = {name for each in own if isinstance(each, ast.Global) for name in each.names}
        nonlocals = {name for each in own if isinstance(each, ast.Nonlocal) for name in each.names}
        self.outer = self.declared_global | nonlocals
        looped = {name for each in own if isinstance(each, ast.comprehension) for name in _bound_by(each.target)}
        self._traced = {name for name in (*names, *looped) if name not in ("self", "cls")} - self._static_parameters()
        self._settle(own)

    def may_be_traced(self, node: ast.AST, computed: bool = False) -> bool:
        """Say whether an expression may have a value that is traced: a local name goes into it, and not only its shape.

        Args:
            node: The expression.
            computed: Whether what a function returns may be so as well, whatever it is called with.
        """
        left = [node]
        while left:
            each = left.pop()
            if isinstance(each, ast.Name) and each.id in self._traced:
                return True
            if isinstance(each, ast.Lambda) or (isinstance(each, ast.Attribute) and each.attr in STATIC_ATTRIBUTES):
                continue
            if isinstance(each, ast.Compare) and all(isinstance(how, (ast.Is, ast.IsNot)) for how in each.ops):
                continue
            if isinstance(each, ast.Call):
                called = _called(each)
                maps = called in ("map", "tree_map") and bool(each.args)
                if called in _STATIC_FUNCTIONS or (maps and self._is_static_function(each.args[0])):
                    continue
                if computed:
                    return True
            if isinstance(each, (ast.ListComp, ast.SetComp, ast.GeneratorExp)):
                left.append(each.elt)
            elif isinstance(each, ast.DictComp):
                left.append(each.value)
            else:
                left += ast.iter_child_nodes(each)
        return False

    def all(self) -> Iterator[ast.AST]:
        """All parts of it but those of functions and classes inside."""
        return iter(_parts(self._node))

    def _static_parameters(self) -> set[str]:
        arguments = self._node.args
        found = set()
        positional = [*arguments.posonlyargs, *arguments.args]
        defaults = [None] * (len(positional) - len(arguments.defaults)) + list(arguments.defaults)
        pairs = [
            *zip(positional, defaults, strict=True),
            *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
        ]
        for argument, default in pairs:
            annotation = ast.unparse(argument.annotation) if argument.annotation is not None else ""
            is_static = isinstance(default, ast.Constant) and isinstance(default.value, (str, bool))
            if annotation in _STATIC_TYPES or is_static:
                found.add(argument.arg)
        return found

    def _settle(self, own: Iterable[ast.AST]) -> None:
        """Takes out the names that only get what is static."""
        bound: dict[str, list[ast.expr]] = {}
        for node in own:
            if isinstance(node, ast.Assign):
                pairs = [(target, node.value) for target in node.targets]
            elif isinstance(node, (ast.AugAssign, ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
                pairs = [(node.target, node.value)]
            elif isinstance(node, (ast.For, ast.comprehension)):
                pairs = list(_looped(node.target, node.iter))
            elif isinstance(node, ast.withitem) and node.optional_vars is not None:
                pairs = [(node.optional_vars, node.context_expr)]
            else:
                continue
            for target, value in pairs:
                for name in _bound_by(target):
                    bound.setdefault(name, []).append(value)
        changed = True
        parameters = {each.arg for each in ast.walk(self._node.args) if isinstance(each, ast.arg)}
        while changed:
            static = {
                name
                for name, values in bound.items()
                if name in self._traced - parameters
                and not any(self.may_be_traced(value, computed=True) for value in values)
            }
            self._traced -= static
            changed = bool(static)

    def _is_static_function(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Lambda):
            return not Names(node, {each.arg for each in node.args.args}).may_be_traced(node.body)
        return ast.unparse(node).rpartition(".")[2] in _STATIC_FUNCTIONS


@functools.lru_cache(maxsize=4096)
def _parts(node: Function) -> tuple[ast.AST, ...]:
    """All parts of a function but those of functions and classes inside."""
    return tuple(_own(body_of(node)))


def _own(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """All parts but those of functions and classes inside."""
    left = [*nodes][::-1]
    while left:
        node = left.pop()
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            left += [*ast.iter_child_nodes(node)][::-1]


def _bound_by(target: ast.expr) -> Iterator[str]:
    """The names in the target of an assignment."""
    return (each.id for each in ast.walk(target) if isinstance(each, ast.Name))


def _looped(target: ast.expr, over: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    """What the names of a loop get: of `enumerate` and `items`, the first is static."""
    called = _called(over) if isinstance(over, ast.Call) else ""
    if called in ("enumerate", "items") and isinstance(target, ast.Tuple) and len(target.elts) == 2:
        yield target.elts[0], ast.Constant(0)
        if isinstance(over, ast.Call) and called == "enumerate" and over.args:
            yield from _looped(target.elts[1], over.args[0])
        else:
            yield target.elts[1], over
    else:
        yield target, over


def _called(call: ast.Call) -> str:
    """The last part of the name of what is called."""
    return ast.unparse(call.func).rpartition(".")[2]
