"""The program of a function as text, by which a bundle knows the function that was guarded.

A line is an operation: its number, its name, the types of its results, its operands, and its static parameters. An
operand is the number of the operation that has made it, the path of an argument, or what a constant is. Calls of jitted
functions are inlined. Shardings and conversions of weak types are no part of it, so that it is the same on another
number of devices, and for arrays that were saved.
"""

from __future__ import annotations

import enum
import hashlib
import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend as jex
import numpy as np
from jax.extend.core import Literal
from jax.sharding import PartitionSpec

from lox import _compat
from lox._abstract import trace
from lox._audit._rules import primitives
from lox._keys import impl_of, on_host
from lox._logs_in import jaxprs_in

_listed = jex.core.primitives
_SHARDED = primitives("reshard", "sharding_constraint", "pvary")
_LEFT_OUT = frozenset({"name", "weak_type"})
"""Parameters that make no difference: names, and what arrays that were saved have not."""

_SMALL, _LONG = 8, 100


def program(fun: Callable[..., Any], args: Any, kwargs: Any) -> list[str]:
    """The operations of a function, a text for each, and its results; none where it cannot be traced."""
    try:
        jaxpr, places = trace(fun, args, kwargs)
    except Exception:  # noqa: BLE001  (whatever a function raises that is to get concrete values)
        return []
    leaves, _ = jax.tree_util.tree_flatten_with_path((args, kwargs))
    lines = _Lines()
    lines.end(lines.run(jaxpr, [path_of(leaves[place][0]) for place in places], 0), 0)
    return lines.lines


def path_of(key: Sequence[Any]) -> str:
    """The path of an argument, as in ``args[0]['w']``."""
    first, *rest = key
    return f"{'args' if first.idx == 0 else 'kwargs'}{jax.tree_util.keystr(tuple(rest))}"


def difference(one: Sequence[str], other: Sequence[str], same_platform: bool = True) -> str:
    """The first operation in which two programs differ, or "".

    Args:
        one: A program.
        other: Another one.
        same_platform: Whether they are of one platform. Another one rounds constants otherwise.
    """
    for lines in itertools.zip_longest(one, other, fillvalue=""):
        compared = lines if same_platform else [_HASH.sub("", line) for line in lines]
        if compared[0] != compared[1]:
            return "; ".join(f"{mark} {line.strip()}" for mark, line in zip("-+", lines, strict=True) if line)
    return ""


_HASH = re.compile("#[0-9a-f]{16}")


class _Lines:
    """The lines of a program, and the number of operations so far."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._count = 0

    def run(self, jaxpr: Any, inputs: Sequence[str], depth: int) -> list[str]:
        """Add the lines of a jaxpr, whose inputs have these names. Returns the names of its results."""
        given = _compat.open_jaxpr(jaxpr)
        names: dict[Any, str] = dict(zip(given.constvars, map(_constant, getattr(jaxpr, "consts", ())), strict=True))
        names.update(zip(given.invars, inputs, strict=True))

        def read(atom: Any) -> str:
            if not isinstance(atom, Literal):
                return names[atom]
            aval: Any = atom.aval
            return _constant(np.asarray(atom.val, aval.dtype))

        for eqn in given.eqns:
            outs = self._equation(eqn, list(map(read, eqn.invars)), depth)
            names.update(zip(eqn.outvars, outs, strict=True))
        return list(map(read, given.outvars))

    def _equation(self, eqn: Any, operands: list[str], depth: int) -> list[str]:
        if eqn.primitive is _listed.jit_p:  # Which values pass it by depends on how it is called.
            return self.run(eqn.params["jaxpr"], operands, depth)
        if _is_left_out(eqn):
            return (operands + ["nothing"] * len(eqn.outvars))[: len(eqn.outvars)]
        number = self._count
        self._count += 1
        types = " ".join(_type(var.aval) for var in eqn.outvars)
        params = {name: _text(value) for name, value in sorted(eqn.params.items()) if name not in _LEFT_OUT}
        told = "".join(f" {name}={text}" for name, text in params.items() if text)
        line = f"{'  ' * depth}{eqn.primitive.name} {types} of {', '.join(operands) or 'nothing'}{told}"
        self.lines.append(line)
        for place, inner in enumerate(jaxprs_in(eqn.params)):
            inputs = [f"{number}.{place}/{each}" for each in range(len(_compat.open_jaxpr(inner).invars))]
            self.end(self.run(inner, inputs, depth + 1), depth + 1)
        several = len(eqn.outvars) > 1
        return [f"%{number}.{each}" if several else f"%{number}" for each in range(len(eqn.outvars))]

    def end(self, results: Sequence[str], depth: int) -> None:
        """Add a line with the results of a jaxpr."""
        self.lines.append(f"{'  ' * depth}returns {', '.join(results) or 'nothing'}")


def _is_left_out(eqn: Any) -> bool:
    """Tell whether an equation is none of the program: its results are its operands, or it is a log."""
    if eqn.primitive is _listed.convert_element_type_p:  # Of a weak type, which arrays that are saved have not.
        return bool(eqn.invars[0].aval.dtype == eqn.outvars[0].aval.dtype)
    return eqn.primitive in _SHARDED or eqn.primitive.name.startswith("lox_")


def _type(aval: Any) -> str:
    """The type of a value, whether or not it is weak or sharded."""
    if type(aval) is not jax.core.ShapedArray:
        return str(aval)
    return f"{aval.dtype}[{','.join(map(str, aval.shape))}]"


def _constant(value: Any) -> str:
    """The text of a constant: its elements, or a hash if it has many."""
    if _compat.is_ref(getattr(value, "aval", None)):
        return "a reference"
    if not (hasattr(value, "dtype") and hasattr(value, "shape")):
        return type(value).__name__ if not isinstance(value, (bool, int, float, complex)) else repr(value)
    text = f"{value.dtype}[{','.join(map(str, np.shape(value)))}]"
    if isinstance(value, jax.Array) and not value.is_fully_addressable and not value.is_fully_replicated:
        return text
    array = on_host(value)
    if impl_of(value) is None and array.size <= _SMALL:
        elements = ", ".join(map(str, array.ravel()))
        return elements if array.ndim == 0 else f"{text}({elements})"
    return f"{text}#{_hash(array.tobytes())}"


def _text(value: Any) -> str:
    """A static parameter; "" of one that is a function, a program, a sharding, or another object."""
    found = _written(value)
    if found is None:
        return ""
    return found if len(found) <= _LONG else f"{found[: _LONG // 2]}...{_hash(found.encode())}"


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _written(value: Any) -> str | None:
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, (bool, int, float, complex, str)):
        return repr(value)
    if isinstance(value, (np.dtype, np.generic)):
        return str(value)
    if isinstance(value, np.ndarray):
        return _constant(value)
    if isinstance(value, (tuple, list)) and not isinstance(value, PartitionSpec):
        parts = [_written(each) for each in value]
        known = [each for each in parts if each is not None]
        return f"({', '.join(known)})" if known or not parts else None
    return None
