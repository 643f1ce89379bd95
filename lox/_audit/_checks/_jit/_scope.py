"""What the names in a traced function stand for."""

from __future__ import annotations

import ast
import builtins
import inspect
import types
from collections.abc import Mapping
from typing import Any

from lox._audit._audited import Audited
from lox._audit._reached import CONTAINERS, parts
from lox._audit._sources import Source

_MISSING = object()
_NEW = {"list", "dict", "set", "deque", "defaultdict", "OrderedDict", "Counter"}


class Scope:
    """A traced function, and the objects that its expressions stand for.

    Attributes:
        source: The function.
        reached: The objects that outlive the call.
    """

    def __init__(self, audited: Audited, source: Source, by_node: Mapping[Any, Source]) -> None:
        self.source = source
        self.reached = audited.captured.reached
        self._by_node = by_node

    def objects(self, node: ast.expr) -> list[Any] | None:
        """The objects that outlive the call and that an expression may stand for; None where that cannot be told.

        What is in a container is among them.
        """
        if isinstance(node, ast.Name):
            return self._named(node.id)
        if isinstance(node, ast.Attribute):
            owners = self.objects(node.value)
            found = [_attribute(owner, node.attr) for owner in owners or ()]
            return None if owners is None else [value for value in found if value is not _MISSING]
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _GETTING:
            node = node.func
        if isinstance(node, (ast.Subscript, ast.Attribute)):
            owners = self.objects(node.value)
            if owners is None:
                return None
            containers = [owner for owner in owners if isinstance(owner, CONTAINERS)]
            return [*owners, *(each for owner in containers for each in parts(owner).values())]
        return None

    def is_default(self, name: str) -> bool:
        """Whether a name is that of an argument with a default."""
        return name in self.source.locals and bool(self._default(self.source, name))

    def is_free(self, name: str) -> bool:
        """Whether a name is of a function around it, and stands for what the call makes."""
        return name in self.source.code.co_freevars and not self._named(name)

    def owner(self, name: str) -> Any:
        """The code of the function around it that has a name, or the name if none that is traced has it."""
        for node in self.source.parents:
            source = self._by_node.get(node)
            if source is not None and name in source.locals:
                return source.code
        return name

    def is_container(self, name: str) -> bool:
        """Whether a function around it binds a name to a new container."""
        for node in self.source.parents:
            for each in ast.walk(node):
                if isinstance(each, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in each.targets):
                    value = each.value
                    called = isinstance(value, ast.Call) and ast.unparse(value.func).rpartition(".")[2] in _NEW
                    return called or isinstance(value, (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp))
        return False

    def _named(self, name: str) -> list[Any] | None:
        if name not in self.source.locals and name not in self.source.code.co_freevars:
            value = self.source.names.get(name, getattr(builtins, name, _MISSING))
            return [] if value is _MISSING else [value]
        around = (self._by_node.get(node) for node in self.source.parents)
        for source in (self.source, *(source for source in around if source is not None)):
            if name in source.locals:
                is_first = source.code.co_argcount > 0 and source.code.co_varnames[0] == name
                owners = self.reached.owners(source.code) if is_first else []
                return owners or self._default(source, name) or None
            value = self._cell(source, name)
            if value is not _MISSING:
                return [value]
        return None

    def _cell(self, source: Source, name: str) -> Any:
        """What a name of a function around it stands for, if the function was there before the call."""
        fun = self.reached.functions.get(source.code)
        if fun is None or name not in source.code.co_freevars:
            return _MISSING
        try:
            return fun.__closure__[source.code.co_freevars.index(name)].cell_contents
        except ValueError:  # It is empty.
            return _MISSING

    def _default(self, source: Source, name: str) -> list[Any]:
        """The default of an argument, if it is a container."""
        fun = self.reached.functions.get(source.code)
        if fun is None:
            return []
        positional = source.code.co_varnames[: source.code.co_argcount]
        defaults = fun.__defaults__ or ()
        found = {**dict(zip(positional[len(positional) - len(defaults) :], defaults, strict=True))}
        found.update(fun.__kwdefaults__ or {})
        return [found[name]] if isinstance(found.get(name), CONTAINERS) else []


_GETTING = {"get", "setdefault", "values", "pop"}


def _attribute(owner: Any, name: str) -> Any:
    """An attribute that an object has without running code for it."""
    found = inspect.getattr_static(owner, name, _MISSING)
    return parts(owner).get(name, found) if isinstance(found, types.MemberDescriptorType) else found
