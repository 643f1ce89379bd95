"""Arguments and results that JAX takes apart and puts together."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lox import _compat
from lox._arguments import ARRAY_LIKE, path_name
from lox._audit._audited import Audited
from lox._audit._checks._jit._refused import UNCOMPARABLE, UNREGISTERED
from lox._audit._findings import Finding, Held, Kind
from lox._audit._location import NOWHERE, is_users
from lox._audit._signature import bound, definition, static_arguments

LOST = Kind(
    "LOX501",
    "error",
    "A class does not come back as it was from being taken apart",
    "Return all of it in tree_flatten, in the order in which tree_unflatten takes it; or use "
    "jax.tree_util.register_dataclass, which does.",
    "Each class in the arguments comes back from being taken apart.",
    "Each registered object was flattened, unflattened and compared.",
)
PLACEHOLDERS = Kind(
    "LOX502",
    "warning",
    "A class does not accept other objects in place of its arrays",
    "Build it without its checks in tree_unflatten: new = object.__new__(cls), then set the attributes. JAX puts None, "
    "booleans and specifications there.",
    "Each class in the arguments takes anything in the place of its arrays.",
    "Each registered object was rebuilt with placeholders instead of arrays.",
)
REPLACED = Kind(
    "LOX504",
    "warning",
    "A result is not of the types of the argument that it is to replace",
    "Keep the types: new.astype(old.dtype), or jnp.asarray(0, jnp.int32) in the place of a Python number.",
    "What a function returns in the place of an argument has its types.",
    "The types of results were compared with those of the arguments that they resemble.",
)

_MOST_TOLD = 4
"""How many arrays of one change are listed."""

_BUILTIN = (tuple, list, dict, type(None))


def unregistered(audited: Audited) -> Iterator[Finding | Held]:
    """LOX500: an argument is an instance of a dataclass with arrays in it that JAX does not take apart."""
    yield UNREGISTERED.fine(NOWHERE)
    if audited.captured.error is not None:
        return  # If it is about this, it is told where it came up.
    for name, value in _arguments(audited).items():
        for leaf in jax.tree.leaves(value):
            if not dataclasses.is_dataclass(leaf) or isinstance(leaf, type):
                continue
            arrays = [field.name for field in dataclasses.fields(leaf) if _arrays(getattr(leaf, field.name, None))]
            if arrays:
                yield UNREGISTERED.at(
                    definition(audited.fun),
                    f"'{name}' has a '{type(leaf).__name__}' in it, which is not registered as a pytree: a jitted "
                    f"function does not take it, or has its arrays ({', '.join(arrays)}) as constants.",
                )


def registered(audited: Audited) -> Iterator[Finding | Held]:
    """LOX501 to LOX503: how the classes of the arguments are taken apart and put together."""
    where = definition(audited.fun)
    nodes = {type(node): node for value in _arguments(audited).values() for node in _nodes(value)}
    for of, node in nodes.items():
        if _is_written_by_the_user(of):
            yield from (kind.fine(where) for kind in (LOST, PLACEHOLDERS, UNCOMPARABLE))
            yield from (kind.at(where, message) for kind, message in _faults(node))


def replaced(audited: Audited) -> Iterator[Finding | Held]:
    """LOX504: a state that is returned in place of the one that was passed is of other types."""
    captured, where = audited.captured, definition(audited.fun)
    if captured.error is not None or captured.structure is None:
        return
    results = dict(zip(captured.results, _compat.out_avals(captured.jaxpr), strict=False))
    changes: dict[Any, list[str]] = {}
    for path, name in _pairs(captured.structure, _arguments(audited)):
        value = _arguments(audited)[name]
        before = {_joined(name, path): aval for path, leaf in _leaves(value) if (aval := _aval(leaf)) is not None}
        after = {name + each.removeprefix(path): aval for each, aval in results.items() if each.startswith(f"{path}/")}
        differ = [
            each
            for each in dict.fromkeys((*before, *after))
            if each not in before or each not in after or _typed(before[each]) != _typed(after[each])
        ]
        if not differ:
            yield REPLACED.fine(where)
        for each in differ if _is_state(value, before, after, differ) else ():
            old, new = before.get(each), after.get(each)
            changes.setdefault(_change(old, new), []).append(f"{each} is {_text(old)}, and returned as {_text(new)}")
    for found in changes.values():
        more = f"; and so for {len(found) - _MOST_TOLD} more" if len(found) > _MOST_TOLD else ""
        listed = "; ".join(found[:_MOST_TOLD])
        yield REPLACED.at(where, f"{listed}{more}: a second call, with the result, is traced again.")


def _change(old: Any, new: Any) -> tuple[Any, Any]:
    """What differs between two types, without shapes if these are the same."""
    one, other = _typed(old), _typed(new)
    return (one[1:], other[1:]) if one[0] == other[0] else (one, other)


def _pairs(structure: Any, arguments: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The results that may replace an argument, with that: the only ones of a class, or the first ones, if dicts."""
    roots = _roots(structure)
    for path, root in roots:
        names = [name for name, value in arguments.items() if type(value) is root]
        if root is dict:
            if len(arguments) > 1 and path == "out/0" and names[:1] == [*arguments][:1]:
                yield path, names[0]
        elif root not in _BUILTIN and len(names) == 1 and sum(other is root for _, other in roots) == 1:
            yield path, names[0]


def _is_state(value: Any, before: dict[str, Any], after: dict[str, Any], differ: list[str]) -> bool:
    """Whether what differs is by mistake: the rest of a class, or all of a dict but the precision, is the same."""
    if not isinstance(value, dict):  # What lacks some arrays is another thing, such as the gradient by others.
        return len(differ) < len(before) and before.keys() <= after.keys()
    return before.keys() == after.keys() and all(_is_retyped(before[each], after[each]) for each in differ)


def _arguments(audited: Audited) -> dict[str, Any]:
    """The arguments of the first call that are not static."""
    static = static_arguments(audited.fun)
    named = bound(audited.fun, *audited.arguments[0])
    return {name: value for name, value in named.items() if name not in static}


def _roots(structure: Any) -> list[tuple[str, Any]]:
    """The result, or those that it is a tuple of: the name and the type of each."""
    data = structure.node_data()
    if data is None:
        return []
    if data[0] is not tuple:
        return [("out", data[0])]
    children = [(f"out/{place}", child.node_data()) for place, child in enumerate(structure.children())]
    return [(name, found[0]) for name, found in children if found is not None]


def _typed(aval: Any) -> Any:
    return getattr(aval, "shape", None), str(getattr(aval, "dtype", None)), bool(getattr(aval, "weak_type", False))


def _is_retyped(old: Any, new: Any) -> bool:
    """Whether numbers keep their shape, and get another precision; or a counter, which is a float then."""
    was_counter = old.shape == () and jnp.issubdtype(old.dtype, jnp.integer)
    is_float = jnp.issubdtype(new.dtype, jnp.floating)
    return old.shape == new.shape and is_float and (was_counter or jnp.issubdtype(old.dtype, jnp.floating))


def _joined(name: str, path: Any) -> str:
    return f"{name}/{path_name(path)}" if path else name


def _aval(leaf: Any) -> Any:
    """The type of an argument's leaf, or None of what is no array."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return jax.core.ShapedArray(leaf.shape, leaf.dtype, weak_type=leaf.weak_type)
    return jax.typeof(leaf) if isinstance(leaf, (jax.Array, *ARRAY_LIKE)) else None


def _leaves(value: Any) -> list[tuple[Any, Any]]:
    return jax.tree_util.tree_flatten_with_path(value)[0]


def _text(aval: Any) -> str:
    if aval is None:
        return "missing"
    weak = " (weakly typed)" if getattr(aval, "weak_type", False) else ""
    return f"{aval.str_short()}{weak}" if hasattr(aval, "str_short") else repr(aval)


def _is_written_by_the_user(of: type) -> bool:
    file = getattr(sys.modules.get(of.__module__), "__file__", None)
    return file is None or is_users(file)


def _faults(node: Any) -> Iterator[tuple[Kind, str]]:
    """What is wrong with how a class is registered, seen at an instance."""
    name = type(node).__name__
    children, structure = _apart(node)
    static = [leaf for leaf in jax.tree.leaves(structure.node_data()[1]) if _is_array(leaf) and leaf.size > 1]
    if static:
        text = ", ".join(f"{leaf.dtype}[{', '.join(map(str, leaf.shape))}]" for leaf in static)
        yield UNCOMPARABLE, f"What is static in '{name}' has an array in it, {text}: JAX cannot compare two of them."
        return
    try:
        again = jax.tree.unflatten(structure, children)
        back, other = _apart(again)
    except Exception as error:  # noqa: BLE001  (whatever a user's class raises)
        yield LOST, f"A '{name}' that was taken apart cannot be put together: {_short(error)}"
        return
    if len(back) != len(children) or any(old is not new for old, new in zip(children, back, strict=True)):
        yield LOST, f"A '{name}' that is put together again has other children than before, or in another order."
        return
    if not _is_equal(structure, other):
        yield LOST, f"What is static in '{name}' is another thing after it was put together again."
        return
    missing = [each for each, value in _attributes(node).items() if _arrays(value) and not _has(again, each, value)]
    if missing:
        yield LOST, f"A '{name}' that is put together again has lost {', '.join(map(repr, missing))}, an array."
        return
    try:
        marks = [object() for _ in children]
        back = _apart(jax.tree.unflatten(structure, marks))[0]
    except Exception as error:  # noqa: BLE001  (whatever a user's class raises)
        yield PLACEHOLDERS, f"'{name}' cannot be put together with placeholders, as JAX does: {_short(error)}"
        return
    if len(back) != len(marks) or any(old is not new for old, new in zip(marks, back, strict=True)):
        yield PLACEHOLDERS, f"'{name}' changes what it is put together with, which JAX passes on as it is."


def _nodes(value: Any) -> Iterator[Any]:
    """The instances of registered classes in a value, the outer ones first."""
    children, structure = _apart(value)
    if jax.tree_util.treedef_is_leaf(structure):
        return
    if not isinstance(value, _BUILTIN):
        yield value
    for child in children:
        yield from _nodes(child)


def _apart(node: Any) -> tuple[list[Any], Any]:
    return jax.tree.flatten(node, is_leaf=lambda each: each is not node)


def _attributes(node: Any) -> dict[str, Any]:
    return dict(vars(node)) if hasattr(node, "__dict__") else {}


def _has(node: Any, name: str, value: Any) -> bool:
    """Whether an attribute has as many arrays as this value."""
    return _arrays(getattr(node, name, None)) == _arrays(value)


def _arrays(value: Any) -> int:
    try:
        return sum(map(_is_array, jax.tree.leaves(value)))
    except Exception:  # noqa: BLE001  (whatever a user's class raises)
        return 0


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, (jax.Array, np.ndarray, jax.ShapeDtypeStruct))


def _is_equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:  # noqa: BLE001  (whatever a user's class raises)
        return False


def _short(error: Exception) -> str:
    first = str(error).strip().split("\n")[0]
    return f"{type(error).__name__}: {first}"[:300]


KINDS = (UNREGISTERED, LOST, PLACEHOLDERS, UNCOMPARABLE, REPLACED)
CHECKS = (unregistered, registered, replaced)
