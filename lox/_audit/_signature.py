"""The arguments of the audited function by name, and where it is written."""

from __future__ import annotations

import inspect
from typing import Any

from lox import _compat
from lox._audit._location import NOWHERE, Location
from lox._audit._reached import plain


def bound(fun: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name."""
    try:
        return dict(inspect.signature(fun).bind(*args, **kwargs).arguments)
    except (TypeError, ValueError):
        return {**{f"args/{place}": value for place, value in enumerate(args)}, **kwargs}


def static_arguments(fun: Any) -> set[str]:
    """The names of the static arguments of a jitted function."""
    options = dict(_compat.jit_options(fun) or ()) if _compat.is_jitted(fun) else {}
    names = set(options.get("static_argnames") or ())
    try:
        parameters = list(inspect.signature(fun).parameters)
    except (TypeError, ValueError):
        return names
    return names | {parameters[place] for place in options.get("static_argnums") or () if place < len(parameters)}


def definition(fun: Any) -> Location:
    written = plain(fun)
    if written is None:
        return NOWHERE
    return Location(written.__code__.co_filename, written.__code__.co_firstlineno, written.__code__.co_name)
