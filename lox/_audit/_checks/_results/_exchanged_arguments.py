"""Calls that give a function its arguments in another order than it takes them, as their names say."""

from __future__ import annotations

import ast
import inspect
import re
import types
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from lox._audit._audited import Audited
from lox._audit._checks._results._bindings import Path, path_of
from lox._audit._executed import Function, body_of
from lox._audit._findings import Finding, Held, Kind
from lox._audit._location import NOWHERE, is_users
from lox._audit._sources import Source, calls_in, source_of, sources

EXCHANGED = Kind(
    "LOX438",
    "warning",
    "Arguments are given in another order than the function takes them",
    "Give the arguments in the order of the parameters, or by keyword.",
    "Arguments that have the names of parameters are given in their order.",
    "The names of the arguments in each call of a traced function were compared with those of the parameters.",
)

_ON_PURPOSE = re.compile(
    r"flip|revers|backward|inver|transpos|mirror|adjoint|oppos|symmetr|undo|cycl|rotat|permut|other|mutual|"
    r"swap|exchang|cross(?!_?ent)|decode|_rev(_|$)|_inv(_|$)"
)
"""Parts of names that say that an order is another one on purpose."""
_UNORDERED = {
    *("minimum", "maximum", "add", "multiply", "dot", "vdot", "inner", "hypot", "logaddexp", "allclose", "isclose"),
    *("equal", "not_equal", "logical_and", "logical_or", "squared_error", "l2_loss", "huber_loss", "absolute_error"),
    "cosine_similarity",
}
"""Functions whose arguments may be exchanged."""
_EVEN = re.compile(r"\*\* ?[24]\b|\b(abs|absolute|square|norm|cos|cosh|\w*loss|\w*distance)\(")
"""Functions that give the same for a difference and its negative."""

_TRANSFORMED = {
    *("jit", "pmap", "vmap", "grad", "value_and_grad", "jacfwd", "jacrev", "hessian", "checkpoint", "remat"),
    *("filter_jit", "filter_vmap", "filter_grad", "filter_value_and_grad", "filter_checkpoint", "shard_map"),
}
"""Functions that return a function of the same arguments as their first one."""
_DECORATORS = {*_TRANSFORMED, "custom_vjp", "custom_jvp", "staticmethod", "named_call", "jaxtyped", "typechecked"}
_APPLYING = {
    *("jax.tree.map", "tree.map", "jax.tree_map", "jax.tree_util.tree_map", "tree_util.tree_map", "tree_map"),
    *("jax.vjp", "jax.linearize", "functools.partial", "partial"),
}
"""Functions that call their first argument with the others, in their order."""
_PARTIAL = {"functools.partial", "partial"}
_FAR = 5
"""So many names and transformations are followed."""
_Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda


class Given(NamedTuple):
    """The arguments of a call that have names of parameters of its function, but not of those that get them.

    Attributes:
        takes: The parameters that get or name them.
        gets: The name of what each of these parameters is given.
        paths: The arguments, by the name of each.
    """

    takes: tuple[str, ...]
    gets: tuple[str, ...]
    paths: dict[str, Path]


class Called(NamedTuple):
    """A call of a function of the user's.

    Attributes:
        call: The call.
        name: The name that it is called by, without that of what it is in.
        node: The function.
        parameters: The names of its parameters, from the one on that gets the first of these arguments.
        args: The arguments that are given by position.
    """

    call: ast.Call
    name: str
    node: ast.FunctionDef
    parameters: list[str]
    args: list[ast.expr]


class Calls:
    """The calls in a traced function.

    Args:
        traced: All functions that were traced.
        source: The function.
    """

    def __init__(self, traced: Iterable[Source], source: Source) -> None:
        self._source = source
        file = source.code.co_filename
        self._traced = {each.code.co_qualname: each for each in traced if each.code.co_filename == file}

    def called(self, call: ast.Call) -> Called | None:
        """The function that a call is of, and what it gets, where the source says both."""
        fun, args = call.func, call.args
        if ast.unparse(fun) in _APPLYING and args:
            fun, *args = args
        if len(args) < 2 or any(isinstance(each, ast.Starred) for each in args):
            return None
        node, before = self._function(fun, _FAR)
        if node is None or node.args.vararg is not None or not all(map(_keeps, node.decorator_list)):
            return None
        parameters = [each.arg for each in (*node.args.posonlyargs, *node.args.args)][before:]
        name = ast.unparse(fun).rpartition(".")[2] if isinstance(fun, (ast.Name, ast.Attribute)) else node.name
        return Called(call, name, node, parameters, args) if len(args) <= len(parameters) else None

    def _function(self, node: ast.expr, far: int) -> tuple[ast.FunctionDef | None, int]:
        """The function that an expression stands for, and how many of its parameters are given already."""
        if isinstance(node, ast.Call) and node.args and far:
            fun, count = self._function(node.args[0], far - 1)
            if ast.unparse(node.func) in _PARTIAL and not any(isinstance(each, ast.Starred) for each in node.args):
                return fun, count + len(node.args) - 1
            return (fun, count) if _name_of(node.func) in _TRANSFORMED else (None, 0)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            return self._attribute(node.value.id, node.attr)
        return self._named(node.id, far) if isinstance(node, ast.Name) else (None, 0)

    def _attribute(self, owner: str, name: str) -> tuple[ast.FunctionDef | None, int]:
        """A function of a module, or a method of the class of `self`."""
        module = self._source.names.get(owner)
        if isinstance(module, types.ModuleType) and owner not in self._source.locals:
            return _of_object(vars(module).get(name)), 0
        around = self._source.code.co_qualname
        while owner == "self" and around:
            around = around.rpartition(".")[0]
            found = self._traced.get(f"{around}.{name}")
            if found is not None and isinstance(found.node, ast.FunctionDef) and around:
                return found.node, 1 if found.code.co_varnames[:1] == ("self",) else 0
        return None, 0

    def _named(self, name: str, far: int) -> tuple[ast.FunctionDef | None, int]:
        for scope in (self._source.node, *self._source.parents):
            if any(each.arg == name for each in ast.walk(scope.args) if isinstance(each, ast.arg)):
                return None, 0
            bound = list(_bound(scope, name))
            if bound:
                found = bound[0] if len(bound) == 1 else None
                if isinstance(found, ast.Assign) and isinstance(found.targets[0], ast.Name) and far:
                    return self._function(found.value, far - 1)
                return (found, 0) if isinstance(found, ast.FunctionDef) else (None, 0)
        return _of_object(self._source.names.get(name)), 0


def exchanged(audited: Audited) -> Iterator[Finding | Held]:
    """LOX438: two arguments of a call have the names of parameters that are given something else."""
    yield EXCHANGED.fine(NOWHERE)
    traced = sources(audited)
    for source in traced:
        if _ON_PURPOSE.search(source.code.co_qualname.lower()):
            continue
        calls = Calls(traced, source)
        for node in source.executed:
            called = calls.called(node) if isinstance(node, ast.Call) else None
            given = _given(called) if called is not None and _is_plain(called, source) else None
            if called is None or given is None or _is_meant(source, called, given):
                continue
            yield EXCHANGED.at(
                source.at(node),
                f"'{called.node.name}' takes {_quoted(given.takes)}, and is given {_quoted(given.gets)} in their "
                "places.",
            )


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def _is_plain(called: Called, source: Source) -> bool:
    """Say whether a call is of another function, and not all of what a function is there for."""
    if called.node in (source.node, *source.parents):
        return False  # It calls itself.
    body = [each for each in body_of(source.node) if not _is_docstring(each)]
    own = {each.arg for each in ast.walk(source.node.args) if isinstance(each, ast.arg)}
    return len(body) > 1 or any(not isinstance(each, ast.Name) or each.id not in own for each in called.args)


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _given(called: Called) -> Given | None:
    """The arguments of a call that are out of order, if two are and they take the places of each other."""
    paths = [path_of(each) for each in called.args]
    names = [path[-1] if path is not None else "" for path in paths]
    takes = called.parameters[: len(names)]
    moved = [
        place
        for place, (name, own) in enumerate(zip(names, takes, strict=True))
        if name != own and name in takes and names[takes.index(name)] not in ("", name)
    ]
    told = {names[place]: path for place in moved if (path := paths[place]) is not None}
    if len(moved) < 2 or len(told) < len(moved) or len({path[:-1] for path in told.values()} - {()}) > 1:
        return None  # Those of several objects, as in gap(first.end, second.start), are not each other's.
    places = sorted({*moved, *(takes.index(name) for name in told)})
    given = Given(tuple(takes[place] for place in places), tuple(names[place] for place in places), told)
    return given if _is_permuted(given) and not _are_alike(given, called.parameters) else None


def _is_permuted(given: Given) -> bool:
    """Say whether a call gives what it is to give in another order, up to other names for what it is not told of."""
    params = [name for name in given.takes if name not in given.gets]
    args = [name for name in given.gets if name not in given.takes]
    return len(set(given.gets)) == len(given.gets) and all(map(_names_one, params, args))


def _names_one(param: str, arg: str) -> bool:
    """Say whether a parameter and an argument seem to have names of one thing, as 'gradient' and 'grads' have."""
    pairs = ((one, other) for one in param.lower().split("_") for other in arg.lower().split("_") if one and other)
    return any(one[:3] == other[:3] for one, other in pairs)


def _are_alike(given: Given, parameters: Sequence[str]) -> bool:
    """Say whether a function takes several of one kind, whose order is free, or moves on as a window does."""
    names = [*given.paths]
    if len({re.sub(r"\d+", "", name) for name in names}) < len(names):
        return True
    if {*given.gets} != {*given.takes}:
        words = [{*name.split("_")} for name in names]
        return any(one & other for place, one in enumerate(words) for other in words[:place])
    letters = sorted(ord(name) for name in parameters if len(name) == 1)
    return letters == [*range(letters[0], letters[0] + len(parameters))] if letters else False


def _is_meant(source: Source, called: Called, given: Given) -> bool:
    """Say whether the order is another one on purpose, or does not matter."""
    if _ON_PURPOSE.search(" ".join(_assigned_by(source, called.call)).lower()):
        return True
    return _has_both_orders(source, called, given) or _is_symmetric(called.node, given)


def _assigned_by(source: Source, call: ast.Call) -> list[str]:
    """The names of the variables and keywords whose value has a call in it."""
    found = [called for called in ast.walk(source.node) if isinstance(called, (ast.Assign, ast.AnnAssign, ast.keyword))]
    around = [each for each in found if each.value is not None and call in ast.walk(each.value)]
    targets = [each.targets if isinstance(each, ast.Assign) else [] for each in around]
    named = [each.arg or "" for each in around if isinstance(each, ast.keyword)]
    return [*named, *(ast.unparse(each) for one in targets for each in one)]


def _has_both_orders(source: Source, called: Called, given: Given) -> bool:
    """Say whether a function, or one around it, gives the same function these arguments in other places too."""
    outermost = source.parents[-1] if source.parents else source.node
    texts = [ast.unparse(each) for each in called.args]
    moved = {".".join(path): place for place, each in enumerate(called.args) if (path := path_of(each)) is not None}
    wanted = {".".join(path) for path in given.paths.values()}
    for other in calls_in(outermost):
        if other is called.call or called.name not in {_last(each) for each in (other.func, *other.args)}:
            continue
        args = [each for each in other.args if _last(each) != called.name]
        paths = [(place, ".".join(path)) for place, each in enumerate(args) if (path := path_of(each)) is not None]
        if any(path in wanted and moved[path] != place for place, path in paths):
            return True
        if [ast.unparse(each) for each in args] != texts and {ast.unparse(each) for each in args} == {*texts}:
            return True
    return False


def _last(node: ast.expr) -> str:
    """The name of what is called, or is transformed and then called."""
    while isinstance(node, ast.Call) and node.args:
        node = node.args[0]
    return _name_of(node)


def _is_symmetric(node: Function, given: Given) -> bool:
    """Say whether a function seems to compute the same of its arguments in the order that they are given in."""
    if {*given.gets} != {*given.takes}:
        return False
    is_even = bool(_EVEN.search(ast.unparse(node)))
    names = dict(zip(given.takes, given.gets, strict=True))
    body = body_of(node)
    return [_form(each, {}, is_even) for each in body] == [_form(each, names, is_even) for each in body]


def _form(node: ast.AST, names: dict[str, str], is_even: bool) -> str:
    """A text of some syntax that is the same for sums, products and, in even functions, differences of any order."""
    if isinstance(node, ast.Name):
        return names.get(node.id, node.id)
    kinds = (ast.Add, ast.Mult, ast.BitAnd, ast.BitOr, ast.BitXor, *((ast.Sub,) if is_even else ()))
    if isinstance(node, ast.BinOp) and isinstance(node.op, kinds):
        parts = sorted(_form(each, names, is_even) for each in (node.left, node.right))
        return f"{type(node.op).__name__}({', '.join(parts)})"
    if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in _UNORDERED:
        parts = sorted(_form(each, names, is_even) for each in (*node.args, *node.keywords))
        return f"{ast.unparse(node.func)}({', '.join(parts)})"
    parts = [_field(value, names, is_even) for _, value in ast.iter_fields(node)]
    return f"{type(node).__name__}({', '.join(parts)})"


def _field(value: object, names: dict[str, str], is_even: bool) -> str:
    if isinstance(value, ast.AST):
        return _form(value, names, is_even)
    return ", ".join(_field(each, names, is_even) for each in value) if isinstance(value, list) else repr(value)


def _bound(scope: Function, name: str) -> Iterator[ast.AST]:
    """The statements of a function that bind a name."""
    left: list[ast.AST] = list(scope.body) if isinstance(scope.body, list) else []
    while left:
        node = left.pop()
        if isinstance(node, _Scope):
            if getattr(node, "name", "") == name:
                yield node
            continue
        if isinstance(node, ast.Assign):
            targets = [each for target in node.targets for each in ast.walk(target)]
            if any(isinstance(each, ast.Name) and each.id == name for each in targets):
                yield node
            left.append(node.value)
        elif isinstance(node, ast.Name) and node.id == name and not isinstance(node.ctx, ast.Load):
            yield node
        else:
            left += ast.iter_child_nodes(node)


def _keeps(decorator: ast.expr) -> bool:
    """Say whether what a decorator returns takes the same arguments."""
    if isinstance(decorator, ast.Call):
        is_partial = ast.unparse(decorator.func) in _PARTIAL and decorator.args
        return _keeps(decorator.args[0] if is_partial else decorator.func)
    return _name_of(decorator) in _DECORATORS


def _name_of(node: ast.expr) -> str:
    return ast.unparse(node).rpartition(".")[2] if isinstance(node, (ast.Name, ast.Attribute)) else ""


def _of_object(value: Any) -> ast.FunctionDef | None:
    """The syntax of a function of the user's, also one that JAX transforms."""
    fun = inspect.unwrap(value, stop=_is_written) if callable(value) else None
    if not isinstance(fun, types.FunctionType) or not is_users(fun.__code__.co_filename):
        return None
    source = source_of(fun)
    return source.node if source is not None and isinstance(source.node, ast.FunctionDef) else None


def _is_written(value: Any) -> bool:
    """Say whether a function is the user's, and may do anything with its arguments."""
    return isinstance(value, types.FunctionType) and is_users(value.__code__.co_filename)


KINDS = (EXCHANGED,)
CHECKS = (exchanged,)
