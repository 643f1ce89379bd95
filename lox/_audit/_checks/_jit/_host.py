"""What belongs to the host, and happens only while a function is traced: output, random numbers and clocks."""

from __future__ import annotations

import ast
import builtins
import datetime
import io
import logging
import random
import sys
import time
import types
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from lox._audit._checks._jit._names import Names
from lox._audit._checks._jit._scope import Scope
from lox._audit._findings import Finding, Kind
from lox._audit._sources import calls_in

PRINTED = Kind(
    "LOX410",
    "warning",
    "Output is written once, while JAX traces",
    'Write jax.debug.print("x = {}", x), or lox.log({"x": x}) for what is to be kept.',
    "No traced function prints, or writes to a log or a file.",
    "The source of the functions that were traced was read for calls that print, log or write.",
)
DRAWN = Kind(
    "LOX411",
    "error",
    "A random number of the host is drawn once, while JAX traces",
    "Pass a key, and draw with jax.random; or draw on the host, and pass the numbers as an argument.",
    "No traced function draws random numbers of the host.",
    "The source of the functions that were traced was read for random numbers of Python and NumPy.",
)
TIMED = Kind(
    "LOX412",
    "warning",
    "The clock is read once, while JAX traces",
    "Read the clock outside of the function, after jax.block_until_ready on what it returns.",
    "No traced function reads the clock.",
    "The source of the functions that were traced was read for calls of the clock.",
)

_CLOCKS = (time.time, time.time_ns, time.perf_counter, time.perf_counter_ns, time.monotonic, time.process_time)
_LOGGED = {"debug", "info", "warning", "error", "exception", "critical", "log"}
_GENERATORS = (np.random.Generator, np.random.RandomState, random.Random)
_OWNERS = (types.ModuleType, type, logging.Logger, io.IOBase, *_GENERATORS)
"""Of which objects a function that is called is looked up."""


def called(scope: Scope, names: Names, call: ast.Call) -> Iterator[Finding | Kind]:
    """What a call of a traced function does on the host, or the kind of what it may do.

    To print what is known while tracing, such as shapes, is fine.
    """
    name, function, target = ast.unparse(call.func), scope.source.code.co_name, _target(scope, call.func)
    at = scope.source.at(call)
    if target is None:
        return
    if _writes(target, call):
        values = [*call.args, *(keyword.value for keyword in call.keywords)]
        what = f"{name}(...) runs once, while '{function}' is traced, and not when it is computed"
        if target.fun is builtins.open:
            yield PRINTED.at(at, f"{what}.")
        elif any(map(names.may_be_traced, values)):
            yield PRINTED.at(at, f"{what}, and is given tracers, which have no numbers.")
        else:
            yield PRINTED
    elif _draws(target, call) and not _is_seeded(scope, call):
        yield DRAWN.at(at, f"{name} draws while '{function}' is traced: each call gets the same numbers.")
    elif _is_clock(target.fun):
        yield TIMED.at(at, f"{name} is read while '{function}' is traced, and never again.")


class Target(NamedTuple):
    """A function that is called, the object that it is a method of, and its name."""

    fun: Any
    owner: Any
    name: str


def _target(scope: Scope, node: ast.expr) -> Target | None:
    """A function of Python or of a module, or a method of a log, a file or a generator."""
    if isinstance(node, ast.Name):
        for fun in scope.objects(node) or ():
            return Target(fun, getattr(fun, "__self__", None), getattr(fun, "__name__", ""))
    if isinstance(node, ast.Attribute):
        for owner in _owners(scope, node.value):
            if isinstance(owner, _OWNERS) or _is_stream(owner):
                fun = getattr(owner, node.attr, None)
                # Functions of modules may be methods of a generator, and methods of a stream may be replaced.
                return Target(
                    fun, getattr(fun, "__self__", None) if isinstance(owner, types.ModuleType) else owner, node.attr
                )
    return None


def _owners(scope: Scope, node: ast.expr) -> Iterable[Any]:
    """The objects that an expression may be."""
    if isinstance(node, ast.Call):
        target = _target(scope, node.func)
        return [logging.getLogger()] if target is not None and target.fun is logging.getLogger else ()
    return scope.objects(node) or ()


def _writes(target: Target, call: ast.Call) -> bool:
    fun, owner, name = target
    if fun is builtins.open:
        modes = [*call.args[1:2], *(keyword.value for keyword in call.keywords if keyword.arg == "mode")]
        return any(isinstance(mode, ast.Constant) and set(str(mode.value)) & set("wax+") for mode in modes)
    if fun is builtins.print:
        return True
    if isinstance(owner, logging.Logger):
        return name in _LOGGED
    if _is_stream(owner):
        return name in ("write", "writelines")
    return getattr(fun, "__module__", "") in ("logging", "absl.logging") and name in _LOGGED


def _is_stream(value: Any) -> bool:
    return value is not None and (isinstance(value, io.IOBase) or value is sys.stdout or value is sys.stderr)


def _draws(target: Target, call: ast.Call) -> bool:
    fun, owner, name = target
    if fun is np.random.default_rng:
        return not call.args and not call.keywords
    return isinstance(owner, _GENERATORS) and name not in ("seed", "get_state", "set_state", "getstate", "setstate")


def _is_seeded(scope: Scope, draw: ast.Call) -> bool:
    """The function gives the generator a seed before it draws, so that the same numbers are meant."""
    if not isinstance(draw.func, ast.Attribute) or draw.func.attr == "default_rng":  # Which makes another one.
        return False
    generator = ast.unparse(draw.func.value)
    return any(
        call.lineno <= draw.lineno and (call.args or call.keywords) and ast.unparse(call.func) == f"{generator}.seed"
        for call in calls_in(scope.source.node)
    )


def _is_clock(fun: Any) -> bool:
    if isinstance(fun, types.BuiltinMethodType) and isinstance(fun.__self__, type):
        return issubclass(fun.__self__, datetime.datetime) and fun.__name__ in ("now", "utcnow", "today")
    return any(fun is clock for clock in _CLOCKS)


KINDS = (PRINTED, DRAWN, TIMED)
