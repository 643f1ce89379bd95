"""The structure of arguments as text: lists, tuples, dicts, and registered types by their import path.

Nothing is unpickled. A type is one of a module that is there or can be imported, registered with JAX, whose static data
are numbers, text, and lists, tuples and dicts of them. Of a script that ran as ``__main__`` it is found where the
script is imported under its own name.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
from jax.tree_util import PyTreeDef, default_registry


class UnknownNode(Exception):
    """A type that is not found again. Its text says which, and why."""


def structure_of(tree: Any) -> dict[str, Any]:
    """The structure of a tree as one of JSON."""
    if type(tree) in (list, tuple):
        return {type(tree).__name__: [structure_of(each) for each in tree]}
    if type(tree) is dict and all(isinstance(key, str) for key in tree):
        return {"dict": {key: structure_of(tree[key]) for key in sorted(tree)}}
    if tree is None:
        return {"none": 0}
    children, structure = jax.tree.flatten(tree, is_leaf=lambda each: each is not tree)
    node = structure.node_data()
    if node is None:
        return {"leaf": 0}
    kind, static = node
    name = f"{kind.__module__}:{kind.__qualname__}"
    if _found(kind.__module__, kind.__qualname__) is not kind:
        return {"unknown": f"{name}, which its module has not under this name"}
    try:
        about = {"module": _importable(kind.__module__), "name": kind.__qualname__, "static": _written(static)}
    except UnknownNode as error:
        return {"unknown": f"{name}, which has {error}"}
    fields = getattr(kind, "_fields", None) if issubclass(kind, tuple) else None
    named = {} if fields is None else {"fields": list(fields)}
    return {"node": about | named | {"children": [structure_of(each) for each in children]}}


def filled_structure(structure: dict[str, Any], leaves: Iterator[Any]) -> Any:
    """The tree with this structure and these leaves.

    Raises:
        UnknownNode: A type in it is not found, or is another one.
    """
    ((kind, inner),) = structure.items()
    if kind == "dict":
        return {key: filled_structure(each, leaves) for key, each in inner.items()}
    if kind in ("list", "tuple"):
        return {"list": list, "tuple": tuple}[kind](filled_structure(each, leaves) for each in inner)
    if kind == "unknown":
        raise UnknownNode(f"objects of {inner}")
    if kind == "node":
        return _node(inner, [filled_structure(each, leaves) for each in inner["children"]])
    return next(leaves) if kind == "leaf" else None


def _node(about: dict[str, Any], children: Sequence[Any]) -> Any:
    module, name = about["module"], about["name"]
    told = f"objects of {module}:{name}"
    try:
        kind = _found(module, name) or _found(module, name, importlib.import_module(module))
    except ImportError as error:
        raise UnknownNode(f"{told}, which cannot be imported: {error}") from None
    if not isinstance(kind, type) or list(getattr(kind, "_fields", ())) != about.get("fields", []):
        raise UnknownNode(f"{told}, which is another type here")
    leaf = jax.tree.structure(0)
    try:
        node = PyTreeDef.from_node_data_and_children(
            default_registry, (kind, _read(about["static"])), [leaf] * len(children)
        )
        return jax.tree.unflatten(node, children)
    except Exception as error:  # noqa: BLE001  (whatever the type raises for what another version of it had)
        raise UnknownNode(f"{told}, which is another type here: {type(error).__name__}: {error}") from None


def _found(module: str, name: str, given: Any = None) -> Any:
    """The object with this name in a module that has been imported, or None."""
    if given is None:
        given = sys.modules.get("__main__" if module == _MAIN else module)
    return functools.reduce(lambda found, part: getattr(found, part, None), name.split("."), given)


def _name_of_main() -> str:
    """The name under which the script that runs can be imported."""
    main = sys.modules["__main__"]
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    return str(spec.name) if spec is not None else Path(file).stem if file else "__main__"


_MAIN = _name_of_main()  # Python forgets the file of the script when it has run, before what runs at the exit.


def _importable(module: str) -> str:
    return _MAIN if module == "__main__" else module


def _written(static: Any) -> Any:
    """Static data as JSON.

    Raises:
        UnknownNode: They have other objects in them.
    """
    if static is None or type(static) in (bool, int, float, str):
        return static
    if type(static) in (list, tuple):
        return {type(static).__name__: [_written(each) for each in static]}
    if type(static) is dict:
        return {"dict": [[_written(key), _written(each)] for key, each in static.items()]}
    raise UnknownNode(f"static data of the type {type(static).__qualname__}")


def _read(static: Any) -> Any:
    if not isinstance(static, dict):
        return static
    ((kind, inner),) = static.items()
    if kind == "dict":
        return {_read(key): _read(each) for key, each in inner}
    return {"list": list, "tuple": tuple}[kind](map(_read, inner))
