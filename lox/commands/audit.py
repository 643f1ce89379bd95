"""``lox audit``: what a function does with data, and what in it will bite."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from lox import _audit
from lox._audit._capture import name_of
from lox._audit._location import is_internal
from lox._exceptions import LogValueError
from lox._text import encodable
from lox.commands._output import Failure


def audit(
    function: str,
    factory: str | None,
    axes: Mapping[str, Sequence[str | None]],
    differentiate: Sequence[str],
    ignore: Sequence[str],
    write: str,
    detail: Any,
    fail_on: Any,
) -> int:
    """Prints the report of a function.

    Args:
        function: The function as ``package.module:name``.
        factory: What makes its arguments, likewise; without one, it is called without arguments.
        axes: As for `lox.audit`.
        differentiate: As for `lox.audit`.
        ignore: As for `lox.audit`.
        write: "text", "markdown", "json" or "mermaid".
        detail: How detailed the data flow is.
        fail_on: The severity from which on a finding makes the exit code 1.

    Returns:
        The exit code.
    """
    fun = _find(function)
    args, kwargs = ((), {}) if factory is None else _arguments(factory)
    try:
        report = _audit.audit(fun, axes=axes, differentiate=differentiate, ignore=ignore)(*args, **kwargs)
    except LogValueError:
        if factory is None:
            _refuse_to_guess(fun)
        raise
    text = getattr(report, f"to_{write}")(detail)
    print(encodable(text.rstrip("\n"), sys.stdout.encoding))
    return 1 if report.at_least(fail_on) else 0


def _find(path: str) -> Callable[..., Any]:
    module, _, name = path.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    with _running(f"importing {module}"):
        found: Any = _import(module, name)
    for part in name.split("."):
        if not hasattr(found, part):
            raise Failure(f"{module} has no {name}")
        found = getattr(found, part)
    if not callable(found):
        raise Failure(f"{path} is no function but {type(found).__name__}")
    return found  # type: ignore[no-any-return]


def _import(module: str, name: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise Failure(f"importing {module} needs {error.name}, which is not installed") from error
        meant = f"; if a file is meant, write {module.removesuffix('.py')}:{name}" if module.endswith(".py") else ""
        raise Failure(f"there is no module {error.name} here or among what is installed{meant}") from error


@contextlib.contextmanager
def _running(what: str) -> Iterator[None]:
    """Runs code of the user: that it raises or exits is a failure, told with its own lines and not those of lox."""
    try:
        yield
    except Failure:
        raise
    except SystemExit as error:
        raise Failure(f"{what} exits Python, with {error.code!r}, and nothing is audited") from error
    except Exception as error:
        told = traceback.TracebackException.from_exception(error)  # Whatever the exception says, or fails to.
        own = [each for each in told.stack if each.filename != __file__ and not is_internal(each.filename)]
        print("".join(traceback.format_list(own)), end="", file=sys.stderr)
        first = str(told).strip().partition("\n")[0]
        raise Failure(f"{what} raises {type(error).__name__}{f': {first}' if first else ''}") from error


def _refuse_to_guess(fun: Callable[..., Any]) -> None:
    """Says which arguments a function needs, if it needs some."""
    try:
        parameters = inspect.signature(fun).parameters.values()
    except (TypeError, ValueError):  # Of a builtin.
        return
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [each.name for each in parameters if each.default is each.empty and each.kind not in optional]
    if needed:
        listed = " and ".join(filter(None, (", ".join(needed[:-1]), needed[-1])))
        it = "it" if len(needed) == 1 else "them"
        raise Failure(f"{name_of(fun)} takes {listed}: give {it} with --args MODULE:FACTORY")


def _arguments(factory: str) -> tuple[Sequence[Any], Mapping[str, Any]]:
    make = _find(factory)
    with _running(f"calling {factory}"):
        made = make()
    if isinstance(made, tuple):
        return made, {}
    if isinstance(made, dict):
        return (), made
    raise Failure(
        f"{factory} must return a tuple of positional or a dict of keyword arguments, got {type(made).__name__}"
    )
