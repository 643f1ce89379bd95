"""What the source of a function says of a new value and the old one that it is to replace."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

from lox._audit._executed import Function
from lox._audit._sources import Source

_NEW = re.compile(r"^(?:new|next|updated|upd)(?:_(?=[a-zA-Z])|(?=[A-Z]))|_?(?:new|next|updated|upd)$")
_NUMBERED = re.compile(r"(?<=[a-zA-Z])_?[1-9]$|(?<=[a-zA-Z0-9])_$")
_COPIES = {"replace", "_replace"}

Path = tuple[str, ...]
"""A name, or a field or key of one: `("state", "step")` is `state.step` or `state["step"]`."""


class Binding(NamedTuple):
    """A name that a function assigns, and the expression.

    Attributes:
        name: The name.
        value: The expression.
        place: Which elements of its tuple the name gets: `(1,)` for the second one; `()` for all of it.
        node: The assignment.
    """

    name: str
    value: ast.expr
    place: tuple[int, ...]
    node: ast.Assign


def bindings(source: Source) -> list[Binding]:
    """The names that a function assigns where it is run, in order."""
    nodes = (node for node in source.executed if isinstance(node, ast.Assign))
    found = [each for node in nodes for target in node.targets for each in _bound(target, node, ())]
    return sorted(found, key=lambda each: each.node.lineno)


def _bound(target: ast.expr, node: ast.Assign, place: tuple[int, ...]) -> Iterator[Binding]:
    if isinstance(target, ast.Name):
        yield Binding(target.id, node.value, place, node)
    elif isinstance(target, (ast.Tuple, ast.List)):
        for index, each in enumerate(target.elts):
            yield from _bound(each, node, (*place, index))


_READING_ALL = {"locals", "vars", "eval", "exec"}
"""Functions of Python that read variables by their names."""


def read_names(node: Function) -> set[str]:
    """The names that a function or one inside it reads or deletes: all of them, if it asks for its variables."""
    names = [each for each in ast.walk(node) if isinstance(each, ast.Name)]
    read = {each.id for each in names if not isinstance(each.ctx, ast.Store)}
    return read if read.isdisjoint(_READING_ALL) else {each.id for each in names}


def stems(name: str, numbered: bool = True) -> set[str]:
    """The names of the value that a name says to be the new one of: `new_state` is that of `state`.

    Args:
        name: The name.
        numbered: Whether `state2` and `state_` are so as well.

    >>> stems("new_opt_state"), stems("h_next"), stems("state2"), stems("newest"), stems("x1", numbered=False)
    ({'opt_state'}, {'h'}, {'state'}, set(), set())
    """
    bare = name.lstrip("_")
    found = {pattern.sub("", bare).strip("_") for pattern in ((_NEW, _NUMBERED) if numbered else (_NEW,))}
    return found - {"", bare}


def path_of(node: ast.expr) -> Path | None:
    """The path that an expression is, if it is one."""
    if isinstance(node, ast.Name):
        return (node.id,)
    if isinstance(node, ast.Attribute):
        inner, last = path_of(node.value), node.attr
    elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        inner, last = path_of(node.value), str(node.slice.value)
    else:
        return None
    return None if inner is None else (*inner, last)


def read_paths(node: ast.AST) -> Iterator[Path]:
    """The paths that an expression reads, each as long as it is written, but for what is called."""
    left = [node]
    while left:
        each = left.pop()
        path = path_of(each) if isinstance(each, (ast.Name, ast.Attribute, ast.Subscript)) else None
        if path is not None:
            yield path
        elif isinstance(each, ast.Call) and path_of(each.func) is not None:
            left += [*each.args, *each.keywords]
            if isinstance(each.func, ast.Attribute):
                left.append(each.func.value)
        else:
            left += ast.iter_child_nodes(each)


class Passed:
    """What a function passes on as it is, in what it returns after a line.

    Args:
        source: The function.
        after: The assignment that is looked from.
    """

    def __init__(self, source: Source, after: ast.Assign) -> None:
        found = bindings(source)
        self._before = [each for each in found if each.node.lineno < after.lineno]
        self._bound = [each for each in found if each.node.lineno > after.lineno]
        stored = [
            node for node in ast.walk(source.node) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        ]
        assigned = {id(name) for each in found for target in each.node.targets for name in ast.walk(target)}
        self._otherwise = {each.id for each in stored if each.lineno > after.lineno and id(each) not in assigned}
        returns = [node for node in source.executed if isinstance(node, ast.Return)]
        self._returned = [node.value for node in returns if node.value is not None and node.lineno >= after.lineno]

    def has(self, path: Path) -> bool:
        """Say whether what a path was at the assignment is in all that the function returns."""
        paths = [path, *self._unpacked(path)]
        return bool(self._returned) and all(any(self._is_in(own, each, 4) for own in paths) for each in self._returned)

    def _unpacked(self, path: Path) -> Iterator[Path]:
        """The path in the tuple or object that a name was taken out of."""
        for each in self._before:
            whole = path_of(each.value)
            if each.name == path[0] and whole is not None and whole[0] != path[0]:
                yield (*whole, *map(str, each.place), *path[1:])

    def _is_in(self, path: Path, node: ast.expr, deep: int) -> bool:
        if not deep or path[0] in self._otherwise:
            return False
        own = path_of(node)
        if own is not None and own == path[: len(own)] and not self._again(own[0]):
            return True
        if isinstance(node, ast.Name):
            again = self._again(node.id)
            return bool(again) and not again[-1].place and self._is_in(path, again[-1].value, deep - 1)
        if isinstance(node, (ast.Tuple, ast.List)):
            return any(self._is_in(path, each, deep) for each in node.elts)
        if isinstance(node, ast.Dict):
            return any(self._is_in(path, each, deep) for each in node.values)
        return isinstance(node, ast.Call) and self._is_in_call(path, node, deep)

    def _is_in_call(self, path: Path, call: ast.Call, deep: int) -> bool:
        """Say whether a call makes an object that has it, or a copy of one in which it is not replaced."""
        name, given = ast.unparse(call.func).rpartition(".")[2], {each.arg for each in call.keywords}
        if None in given:
            return False
        values = [*call.args, *(each.value for each in call.keywords)]
        if name in _COPIES and len(path) > 1:
            copied = call.args[0] if call.args else getattr(call.func, "value", None)
            return path[1] not in given and copied is not None and self._is_in(path, copied, deep)
        is_class = name[:1].isupper() or name in ("dict", "tuple")
        return is_class and any(self._is_in(path, each, deep) for each in values)

    def _again(self, name: str) -> list[Binding]:
        return [each for each in self._bound if each.name == name]
