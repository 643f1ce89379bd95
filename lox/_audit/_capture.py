"""The program of a function: it is traced with abstract arguments, and nothing is computed."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any

import jax
import jax.numpy as jnp

from lox import _compat
from lox._abstract import ARRAYS, is_array, trace
from lox._arguments import ARRAY_LIKE, path_name
from lox._audit._expect import auditing, with_declarations
from lox._audit._reached import Reached, plain
from lox._exceptions import UnsupportedJaxError


class NotRun(TypeError):
    """A function was called, and none of its lines ran, as it is a generator or an async function."""


@dataclasses.dataclass(frozen=True)
class Capture:
    """What tracing a function gave.

    Attributes:
        name: The name of the function.
        jaxpr: Its program, log calls included; as far as it came when the function raised.
        arguments: The names of the program's inputs, such as ``"params/w"``.
        results: The names of its outputs, such as ``"out/0"``.
        error: What the function raised, `SystemExit` included; `NotRun` if it returned before its first line.
        structure: The structure of what it returned, or None.
        reached: The objects that outlive the call.
        code: The code of the function, if it is one of Python.
    """

    name: str
    jaxpr: Any
    arguments: tuple[str, ...]
    results: tuple[str, ...]
    error: BaseException | None
    structure: Any
    reached: Reached
    code: CodeType | None = None


def capture(fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Capture:
    """Traces a function with arguments, of which arrays may be `jax.ShapeDtypeStruct` objects."""
    error: BaseException | None = None
    results: tuple[str, ...] = ()
    structure: Any = None

    def guarded(*args: Any, **kwargs: Any) -> Any:
        nonlocal error, results, structure
        try:
            with with_declarations():
                result = fun(*args, **kwargs)
            found, structure = jax.tree_util.tree_flatten_with_path(result, is_leaf=inspect.isgenerator)
            for path, leaf in found:
                _check_that_it_ran(f"out/{path_name(path)}" if path else "out", leaf)
        except (Exception, SystemExit) as raised:
            if isinstance(raised, UnsupportedJaxError):  # It says nothing of the program.
                raise
            if (refused := _compat.refusal(raised)) is not None:
                raise refused from raised
            error = raised
            return ()
        found = [(path, leaf) for path, leaf in found if _is_traceable(leaf)]
        results = tuple(f"out/{path_name(path)}" if path else "out" for path, _ in found)
        return [leaf for _, leaf in found]

    names = _names(fun, args, kwargs)
    reached = Reached(fun, args, kwargs)
    with auditing(True):
        jaxpr, traced = trace(guarded, args, kwargs)
    reached.compare()
    arguments, code = tuple(names[place] for place in traced), getattr(plain(fun), "__code__", None)
    return Capture(name_of(fun), jaxpr, arguments, results, error, structure, reached, code)


def _is_traceable(result: Any) -> bool:
    """JAX can return it: it is an array, or a number that an array of JAX can have."""
    if isinstance(result, ARRAYS):
        return is_array(result)
    if not isinstance(result, ARRAY_LIKE):
        return False
    try:
        jax.eval_shape(lambda: jnp.asarray(result))
    except (TypeError, ValueError, OverflowError):
        return False
    return True


def name_of(fun: Any) -> str:
    """The name of a function, or of the type of another callable."""
    return str(getattr(fun, "__name__", type(fun).__name__))


def _check_that_it_ran(name: str, result: Any) -> None:
    """Raises `NotRun` if a result of a function is what runs later."""
    if inspect.iscoroutine(result):
        result.close()  # Python warns of one that is never awaited.
        raise NotRun(f"'{name}' is a coroutine of an async function, which runs when it is awaited: nothing is traced.")
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        raise NotRun(f"'{name}' is a generator, which runs when it is iterated over: nothing of it is traced.")


def _names(fun: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
    """The name of each leaf of the arguments, by the signature of the function."""
    try:
        signature = inspect.signature(fun)
        signature.bind(*args, **kwargs)
        positional = list(_positional(signature, len(args)))
    except (TypeError, ValueError):  # Of a builtin, or with arguments that do not fit, which calling it will say.
        positional = [f"args/{place}" for place in range(len(args))]
    named = [*zip(positional, args, strict=True), *sorted(kwargs.items())]
    names = []
    for name, value in named:
        paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(value)[0]]
        names += [f"{name}/{path_name(path)}" if path else name for path in paths]
    return names


def _positional(signature: inspect.Signature, count: int) -> Iterator[str]:
    """The names of the first arguments of a call, which are given by position."""
    for place, (name, parameter) in enumerate(signature.parameters.items()):
        if parameter.kind is parameter.VAR_POSITIONAL:
            yield from (f"{name}/{each}" for each in range(count - place))
            return
        if place == count:
            return
        yield name
