"""What JAX refuses: arguments and results that are no arrays, static arguments without a hash, leaked tracers."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

import jax
import numpy as np

from lox._abstract import is_array
from lox._arguments import path_name
from lox._audit._audited import Audited
from lox._audit._capture import NotRun
from lox._audit._checks._jit._changes import LEAKED
from lox._audit._findings import Finding, Held, Kind
from lox._audit._signature import bound, definition, static_arguments

NOT_AN_ARRAY = Kind(
    "LOX424",
    "error",
    "A traced function gets or returns something that is not an array",
    "Make the argument static, as with jax.jit(f, static_argnames=...), or close over it; return only arrays.",
)
UNHASHABLE = Kind(
    "LOX425",
    "error",
    "A static argument cannot be hashed",
    "Pass a tuple in the place of a list, or a frozen dataclass in that of a dict; pass arrays as arguments that are "
    "not static.",
)
UNREGISTERED = Kind(
    "LOX500",
    "error",
    "A class is given to JAX that is not registered as a pytree",
    "Register it: @jax.tree_util.register_dataclass above @dataclasses.dataclass, with metadata={'static': True} "
    "for what is no array; or use a NamedTuple.",
    "Each class in the arguments is registered as a pytree.",
    "The types of all objects in the arguments were looked up among registered pytrees.",
)

UNCOMPARABLE = Kind(
    "LOX503",
    "error",
    "What is static in a class cannot be compared",
    "Make arrays data fields (children), and keep only numbers, strings, tuples and functions static.",
    "What is static in the classes of the arguments can be compared.",
    "The static fields of each registered object were compared with themselves.",
)

_CLASS = re.compile(r"type '?<(?:class|enum) '([^']+)'>")
_OTHERS = {*sys.stdlib_module_names} | {"jax", "jaxlib", "numpy", "lox"}


def arguments(audited: Audited) -> Iterator[Finding | Held]:
    """LOX424: an argument is an array of what JAX has no arrays of, such as strings."""
    static = static_arguments(audited.fun)
    for name, value in bound(audited.fun, *audited.arguments[0]).items():
        for path, leaf in jax.tree_util.tree_flatten_with_path(value)[0]:
            if name not in static and isinstance(leaf, np.ndarray) and not is_array(leaf):
                full = f"{name}/{path_name(path)}" if path else name
                what = "a masked array" if isinstance(leaf, np.ma.MaskedArray) else "an array"
                yield NOT_AN_ARRAY.at(
                    definition(audited.fun), f"'{full}' is {what} of {leaf.dtype}, of which JAX has none."
                )


def explain(error: Exception) -> tuple[Kind, str] | None:
    """What an exception of JAX's is about, if it is one of these."""
    text = str(error).strip()
    first = text.split("\n")[0]
    found = _CLASS.search(text)
    name = found.group(1) if found else ""
    if isinstance(error, NotRun):
        return NOT_AN_ARRAY, text
    if isinstance(error, jax.errors.UnexpectedTracerError):
        return LEAKED, "A value that was computed inside of a traced function is used outside of it."
    if isinstance(error, ValueError) and text.startswith("Non-hashable static arguments"):
        if name.endswith("Tracer"):
            return (
                UNHASHABLE,
                "A traced value is passed as a static argument, whose value has to be known while tracing.",
            )
        return UNHASHABLE, f"A static argument is a '{name}', which has no hash."
    if isinstance(error, ValueError) and text.startswith("Exception raised while checking equality of metadata fields"):
        of = f" '{name}'" if name else ""
        return UNCOMPARABLE, f"What is static in a class{of} cannot be compared, such as an array."
    if not isinstance(error, TypeError) or not name:
        return None
    if "as an abstract array" not in text and "is not a valid JAX type" not in text:
        return None
    short = first if len(first) < 300 else f"{first[:300]}..."
    if _is_container(name):
        return UNREGISTERED, f"'{name}' is not registered as a pytree, and JAX takes it for an array: {short}"
    return NOT_AN_ARRAY, f"A '{name}' is no array: {short}"


def _is_container(name: str) -> bool:
    """Whether a class of this name is the user's, and not of Python or JAX; that of an enumeration has no module."""
    module = name.rpartition(".")[0]
    return module == "__main__" or bool(module) and module.partition(".")[0] not in _OTHERS


KINDS = (NOT_AN_ARRAY, UNHASHABLE)
CHECKS = (arguments,)
