"""What forces JAX to trace and compile again: what changes from call to call."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from lox._arguments import path_name
from lox._audit._audited import Audited
from lox._audit._findings import Finding, Held, Kind
from lox._audit._location import NOWHERE
from lox._audit._signature import bound, definition, static_arguments

SHAPE = Kind(
    "LOX420",
    "warning",
    "An argument has another shape from call to call",
    "Pad to one shape, or to a few, and mask what was added; drop the last batch where it is smaller.",
    "Each argument has one shape in all calls.",
    "The shapes of the arguments of all calls were compared.",
)
DTYPE = Kind(
    "LOX421",
    "warning",
    "An argument has another dtype from call to call",
    "Give it one dtype before the call, such as with jnp.asarray(x, jnp.float32); a Python number is weakly typed.",
    "Each argument has one dtype in all calls.",
    "The dtypes of the arguments of all calls were compared.",
)
STRUCTURE = Kind(
    "LOX422",
    "warning",
    "An argument has another structure from call to call",
    "Give it the same keys and fields in each call, with zeros in the place of what is missing.",
    "Each argument has one structure in all calls.",
    "The structures of the arguments of all calls were compared.",
)
STATIC = Kind(
    "LOX423",
    "warning",
    "A static argument has another value from call to call",
    "Pass numbers as arrays that are not static; define a function that is passed once, outside of the loop.",
    "Each static argument has one value in all calls.",
    "The static arguments of all calls were compared.",
)


@dataclasses.dataclass(frozen=True)
class _Leaf:
    """What JAX keys its cache by, of a part of an argument."""

    kind: str
    shape: tuple[int, ...] = ()
    dtype: str = ""
    value: Any = None

    def __str__(self) -> str:
        if self.kind == "static":
            return repr(self.value)
        if self.kind == "number":
            return f"a Python number ({self.dtype}, weakly typed)"
        weak = " (weakly typed)" if self.value else ""
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]{weak}"


def recompilation(audited: Audited) -> Iterator[Finding | Held]:
    """LOX420 to LOX423: which argument makes JAX trace again."""
    calls = [_Call(audited.fun, *each) for each in audited.arguments]
    if len(calls) > 1:
        for kind in KINDS:
            yield kind.fine(NOWHERE)
    told: set[tuple[Kind, str]] = set()
    where = definition(audited.fun)
    for place, call in enumerate(calls[1:], 1):
        differences = min((_differences(before, call) for before in reversed(calls[:place])), key=len)
        for kind, name, message in differences:
            if (kind, name) not in told:
                told.add((kind, name))
                yield kind.at(where, f"{message} in call {place + 1}: {audited.captured.name} is traced again.")


class _Call:
    """The arguments of a call as JAX's cache sees them: the leaves and the structure of each, by name."""

    def __init__(self, fun: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        static = static_arguments(fun)
        self.leaves: dict[str, _Leaf] = {}
        self.structures: dict[str, Any] = {}
        for name, value in bound(fun, args, kwargs).items():
            if name in static:
                self.leaves[name] = _Leaf("static", value=value)
                continue
            leaves, self.structures[name] = jax.tree_util.tree_flatten_with_path(value, is_leaf=_is_none)
            for path, leaf in leaves:
                self.leaves[f"{name}/{path_name(path)}" if path else name] = _leaf(leaf)


def _differences(before: _Call, after: _Call) -> list[tuple[Kind, str, str]]:
    found = []
    for name in dict.fromkeys((*before.leaves, *after.leaves)):
        old, new = before.leaves.get(name), after.leaves.get(name)
        if old is None:
            found.append((STRUCTURE, name, f"'{name}' is missing in an earlier call, and is {new}"))
        elif new is None:
            found.append((STRUCTURE, name, f"'{name}' is {old} in an earlier call, and is missing"))
        elif (kind := _difference(old, new)) is not None:
            found.append((kind, name, f"'{name}' is {old} in an earlier call, and is {new}"))
    told = {name.partition("/")[0] for _, name, _ in found}
    for name in (before.structures.keys() & after.structures.keys()) - told:
        if not _equal(before.structures[name], after.structures[name]):
            found.append((STRUCTURE, name, f"What is static in '{name}' is not equal to that of an earlier call"))
    return found


def _difference(old: _Leaf, new: _Leaf) -> Kind | None:
    """What of two leaves is not the same to JAX."""
    if "static" in (old.kind, new.kind):
        if old.kind != new.kind:
            return STRUCTURE
        return None if _equal(old.value, new.value) else STATIC
    if old.shape != new.shape:
        return SHAPE
    return DTYPE if (old.dtype, _is_weak(old)) != (new.dtype, _is_weak(new)) else None


def _is_weak(leaf: _Leaf) -> bool:
    return leaf.kind == "number" or bool(leaf.value)


def _equal(old: Any, new: Any) -> bool:
    try:
        return old is new or bool(old == new)
    except Exception:  # noqa: BLE001  (whatever the comparison of a user's class raises, JAX cannot compare it either)
        return False


def _is_none(leaf: Any) -> bool:
    return leaf is None


def _leaf(leaf: Any) -> _Leaf:
    if isinstance(leaf, (bool, int, float, complex)):
        return _Leaf("number", dtype=str(jax.dtypes.canonicalize_dtype(np.result_type(type(leaf)))))
    if isinstance(leaf, (jax.Array, np.ndarray, np.generic, jax.ShapeDtypeStruct)):
        dtype = leaf.dtype
        if not jax.numpy.issubdtype(dtype, jax.dtypes.extended):
            dtype = jax.dtypes.canonicalize_dtype(dtype)
        return _Leaf("array", tuple(leaf.shape), str(dtype), bool(getattr(leaf, "weak_type", False)))
    return _Leaf("static", value=leaf)


KINDS = (SHAPE, DTYPE, STRUCTURE, STATIC)
CHECKS = (recompilation,)
