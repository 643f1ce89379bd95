"""What outlives a call of a function: the objects that it reaches before it is traced, and which of them changed."""

from __future__ import annotations

import collections
import contextlib
import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

import jax

from lox._audit._location import is_users

CONTAINERS = (list, set, dict, collections.deque)

_MANY = 5000
"""How many objects are looked at."""
_LONG = 1000
"""Of how many elements the longest container is of which they are looked at."""


def plain(fun: Any) -> Any:
    """The Python function of a callable, or None."""
    while isinstance(fun := inspect.unwrap(fun), functools.partial):
        fun = fun.func
    if not isinstance(getattr(fun, "__code__", None), CodeType):
        fun = type(fun).__call__
    fun = getattr(fun, "__func__", fun)
    return fun if isinstance(getattr(fun, "__code__", None), CodeType) else None


class Reached:
    """The objects that a function reaches: through its closure, defaults and globals, `self`, and what is in them.

    Attributes:
        functions: The functions among them, by their code.
        complete: Whether all were looked at.
    """

    def __init__(self, fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.functions: dict[CodeType, Any] = {}
        self.complete = True
        self._owners: dict[int, Any] = {}
        self._before: dict[int, tuple[Any, dict[Any, Any]]] = {}  # What is in it stays alive, and keeps its id.
        self._changed: dict[int, frozenset[Any]] = {}
        self._visit([fun, *jax.tree.leaves((args, kwargs))])

    def compare(self) -> None:
        """Finds out what changed since it was made."""
        for place, (value, before) in self._before.items():
            after = parts(value)
            differ = {key for key in before.keys() | after.keys() if before.get(key, self) is not after.get(key, self)}
            if differ:
                self._changed[place] = frozenset(differ)

    @property
    def is_changed(self) -> bool:
        """Whether anything changed."""
        return bool(self._changed)

    def changed(self, value: Any, attribute: str | None = None) -> bool:
        """Whether a container changed, or an attribute of an object."""
        found = self._changed.get(id(value), frozenset())
        return bool(found) if attribute is None else attribute in found

    def having(self, attribute: str) -> list[Any]:
        """The objects of which an attribute changed."""
        return [owner for owner in self._owners.values() if self.changed(owner, attribute)]

    def owners(self, code: CodeType) -> list[Any]:
        """The objects that have a method of this code, or the classes that have a class method of it."""
        return [owner for owner in self._owners.values() if code in _methods(_class(owner), isinstance(owner, type))]

    def _visit(self, values: list[Any]) -> None:
        seen: dict[int, Any] = {}
        while values:
            value = values.pop()
            if id(value) in seen or isinstance(value, (str, bytes, int, float, complex, types.ModuleType, CodeType)):
                continue
            if len(seen) >= _MANY:
                self.complete = False
                return
            seen[id(value)] = value
            if isinstance(value, types.FunctionType) and is_users(value.__code__.co_filename):
                self.functions.setdefault(value.__code__, value)
                values += _of_function(value)
            elif isinstance(value, (tuple, *CONTAINERS)) or is_users_class(_class(value)):
                found = parts(value)
                self._before[id(value)] = value, found
                if is_users_class(_class(value)):
                    self._owners[id(value)] = value
                    values.append(_class(value))
                if _is_long(value):
                    self.complete = False
                else:
                    values += found.values()
            else:
                values += _wrapped(value)


def _class(value: Any) -> Any:
    return value if isinstance(value, type) else type(value)


def is_users_class(of: Any) -> bool:
    name = of.__module__
    file = getattr(sys.modules.get(name), "__file__", None) if isinstance(name, str) else None
    return is_users(file) if isinstance(file, str) else name == "__main__"


def _is_long(value: Any) -> bool:
    return isinstance(value, (tuple, *CONTAINERS)) and len(value) > _LONG


def parts(value: Any) -> dict[Any, Any]:
    """What an object has in it, by attribute, by place or, of dicts and sets, by number and identity."""
    if isinstance(value, type):
        return {name: each for name, each in vars(value).items() if not name.startswith("__")}
    found: dict[Any, Any] = {**getattr(value, "__dict__", {})}
    for of in type(value).__mro__ if is_users_class(type(value)) else ():
        slots = (name for name, each in vars(of).items() if isinstance(each, types.MemberDescriptorType))
        found.update((name, getattr(value, name)) for name in slots if hasattr(value, name))
    if _is_long(value):
        found["length", len(value)] = None
    elif isinstance(value, dict):
        for place, (key, each) in enumerate(value.items()):
            found["key", place], found["value", place] = key, each
    elif isinstance(value, set):
        found.update((id(each), each) for each in value)
    elif isinstance(value, (tuple, list, collections.deque)):
        found.update(enumerate(value))
    return found


def _of_function(fun: types.FunctionType) -> Iterator[Any]:
    """What a function reaches by name, and its default arguments."""
    for cell in fun.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # It is empty.
            continue
    yield from fun.__defaults__ or ()
    yield from (fun.__kwdefaults__ or {}).values()
    yield from (fun.__globals__[name] for name in _global_names(fun.__code__) if name in fun.__globals__)
    yield from _wrapped(fun)


@functools.lru_cache(maxsize=4096)
def _global_names(code: CodeType) -> frozenset[str]:
    inner = (each for each in code.co_consts if isinstance(each, CodeType))
    return frozenset(code.co_names).union(*map(_global_names, inner))


def _wrapped(value: Any) -> Iterator[Any]:
    """What a callable of a library, such as a jitted function or a bound method, calls."""
    if isinstance(value, functools.partial):
        yield from (value.func, *value.args, *value.keywords.values())
    elif isinstance(value, property):
        yield value.fget
    elif isinstance(value, (types.MethodType, staticmethod, classmethod)):
        yield from (value.__func__, getattr(value, "__self__", None))
    else:
        with contextlib.suppress(Exception):  # Whatever a property of another library raises, there is nothing then.
            yield getattr(value, "__wrapped__", None)


@functools.lru_cache(maxsize=1024)
def _methods(of: type, of_class: bool) -> frozenset[CodeType]:
    """The code of the methods that the instances of a class have, or of its class methods."""
    found = set()
    for each in of.__mro__:
        for value in vars(each).values() if is_users_class(each) else ():
            if isinstance(value, staticmethod) or isinstance(value, classmethod) != of_class:
                continue
            method = value.fget if isinstance(value, property) else value
            method = getattr(method, "__wrapped__", getattr(method, "__func__", method))
            code = getattr(method, "__code__", None)
            if isinstance(code, CodeType):
                found.add(code)
    return frozenset(found)
