"""Functions that a command line names: they are imported, and run, as code of the user."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from lox._audit._location import is_internal
from lox._exceptions import LoxError
from lox.commands._output import Failure


def find(path: str) -> Callable[..., Any]:
    """The function at a place such as ``package.module:name``."""
    module, _, name = path.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    with running(f"importing {module}"):
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
def running(what: str) -> Iterator[None]:
    """Runs code of the user: that it raises or exits is a failure, told with its own lines and not those of lox."""
    try:
        yield
    except Failure:
        raise
    except SystemExit as error:
        raise Failure(f"{what} exits Python, with {error.code!r}, instead of returning") from error
    except Exception as error:
        told = traceback.TracebackException.from_exception(error)  # Whatever the exception says, or fails to.
        own = [each for each in told.stack if not is_internal(each.filename)]
        if isinstance(error, LoxError) and not own:
            raise  # It is of what the command was given, and not of code of the user.
        print("".join(traceback.format_list(own)), end="", file=sys.stderr)
        first = str(told).strip().partition("\n")[0]
        raise Failure(f"{what} raises {type(error).__name__}{f': {first}' if first else ''}") from error


def arguments(factory: str) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """The positional and the keyword arguments that a function makes."""
    make = find(factory)
    with running(f"calling {factory}"):
        made = make()
    if isinstance(made, tuple):
        return made, {}
    if isinstance(made, dict):
        return (), made
    raise Failure(
        f"{factory} must return a tuple of positional or a dict of keyword arguments, got {type(made).__name__}"
    )
