"""The program of a function: it is traced with abstract arguments, and nothing is computed."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import jax

from lox._abstract import trace
from lox._arguments import ARRAY_LIKE, path_name
from lox._audit._expect import auditing


@dataclasses.dataclass(frozen=True)
class Capture:
    """What tracing a function gave.

    Attributes:
        name: The name of the function.
        jaxpr: Its program, log calls included; as far as it came when the function raised.
        arguments: The names of the program's inputs, such as ``"params/w"``.
        results: The names of its outputs, such as ``"out/0"``.
        error: What the function raised.
        structure: The structure of what it returned, or None.
    """

    name: str
    jaxpr: Any
    arguments: tuple[str, ...]
    results: tuple[str, ...]
    error: Exception | None
    structure: Any = None


def capture(fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Capture:
    """Traces a function with arguments, of which arrays may be `jax.ShapeDtypeStruct`s."""
    error: Exception | None = None
    results: tuple[str, ...] = ()
    structure: Any = None

    def guarded(*args: Any, **kwargs: Any) -> Any:
        nonlocal error, results, structure
        try:
            found, structure = jax.tree_util.tree_flatten_with_path(fun(*args, **kwargs))
        except Exception as raised:  # noqa: BLE001  (whatever it is, what was seen before is worth a report)
            error = raised
            return ()
        found = [(path, leaf) for path, leaf in found if isinstance(leaf, (jax.Array, *ARRAY_LIKE))]
        results = tuple(f"out/{path_name(path)}" if path else "out" for path, _ in found)
        return [leaf for _, leaf in found]

    names = _names(fun, args, kwargs)
    with auditing(True):
        jaxpr, traced = trace(guarded, args, kwargs)
    name = getattr(fun, "__name__", type(fun).__name__)
    return Capture(name, jaxpr, tuple(names[place] for place in traced), results, error, structure)


def _names(fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
    """The name of each leaf of the arguments, by the signature of the function."""
    try:
        bound = inspect.signature(fun).bind(*args, **kwargs)
        positional = list(inspect.signature(fun).parameters)[: len(bound.args)]
    except (TypeError, ValueError):  # Of a builtin, or with arguments that do not fit, which calling it will say.
        positional = []
    positional += [f"args/{place}" for place in range(len(positional), len(args))]
    named = [*zip(positional, args, strict=False), *sorted(kwargs.items())]
    names = []
    for name, value in named:
        paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(value)[0]]
        names += [f"{name}/{path_name(path)}" if path else name for path in paths]
    return names
