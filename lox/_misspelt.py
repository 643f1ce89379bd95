"""Calls of lox with arguments that it does not take: errors that say what was meant."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Collection, Iterable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

_SYNONYMS = {
    "argnames": ("keys", "key", "names", "name", "only", "select", "include", "fields", "metrics"),
    "tags": ("labels", "label", "groups"),
    "interval": ("every", "each", "freq", "frequency", "period", "subsample", "thin", "stride"),
    "reduce": ("reduction", "agg", "aggregate", "aggregation", "reducer"),
    "window": ("every_n", "per", "rolling", "span"),
    "max_events": ("max_logs", "capacity", "first"),
    "on_mismatch": ("on_conflict", "mismatch"),
    "max_iters": ("max_iter", "max_steps", "max_iterations", "bound", "limit"),
    "unify": ("mask", "masked", "optional"),
    "on_while": ("while_loop", "on_loop"),
    "keep_logs": ("keep", "forward", "pass_on", "leave"),
    "callback": ("cb", "fn", "on_log", "sink", "logger", "hook"),
    "buffer": ("batch", "batch_size", "buffer_size", "chunk", "size"),
    "ordered": ("order", "in_order", "sequential"),
    "on_error": ("errors", "error"),
    "prefix": ("namespace", "scope"),
    "at": ("points", "where", "pattern", "patterns", "select", "names", "paths"),
    "what": ("values", "log", "fn", "func", "stats", "statistics", "reduce"),
    "fun": ("f", "fn", "func", "function"),
    "path": ("dir", "directory", "folder", "logdir", "log_dir", "root"),
    "logdir": ("dir", "directory", "folder", "path", "root"),
    "project": ("experiment", "name", "project_name"),
    "experiment_name": ("experiment", "project"),
    "name": ("experiment", "run_name"),
    "resume": ("existing", "continue_from", "restore"),
    "init": ("project", "config", "group", "mode", "tags"),
    "tracking_uri": ("uri", "url", "path", "dir"),
    "progress": ("total", "totals", "steps"),
    "seconds": ("every", "refresh", "interval"),
    "every_calls": ("every", "calls", "every_steps"),
    "room": ("queue", "maxsize", "capacity", "buffer"),
    "images": ("image", "image_keys"),
}
"""For each keyword, what people call it elsewhere."""

_KEYWORDS_OF = {
    "interval": "lox.spool and lox.tap",
    "reduce": "lox.spool and lox.tap",
    "window": "lox.spool and lox.tap",
    "max_iters": "lox.spool",
    "max_events": "lox.spool",
    "on_mismatch": "lox.spool",
    "unify": "lox.spool",
    "on_while": "lox.spool",
    "keep_logs": "lox.spool",
    "prefix": "lox.spool and lox.tap",
    "callback": "lox.tap",
    "buffer": "lox.tap",
    "ordered": "lox.tap",
    "on_error": "lox.tap",
}
"""The handlers that have a keyword which others have not."""


def unexpected(function: str, name: str, known: Collection[str]) -> str:
    """Say what was meant by a keyword that a function does not take.

    Args:
        function: The function.
        name: The keyword.
        known: Those that it takes.
    """
    meant = [keyword for keyword, others in _SYNONYMS.items() if name in others]
    here = next((keyword for keyword in meant if keyword in known), None)
    close = difflib.get_close_matches(name, known, 1)
    others = [name, *meant, *difflib.get_close_matches(name, _KEYWORDS_OF, 1)]
    elsewhere = next((each for each in others if each in _KEYWORDS_OF and each not in known), None)
    text = f"{function} has no argument {name}=."
    if here or close:
        return f"{text} Did you mean {here or close[0]}=?"
    if elsewhere and "Logger" not in function:
        return f"{text} {elsewhere}= is an argument of {_KEYWORDS_OF[elsewhere]}."
    return f"{text} It has {', '.join(f'{each}=' for each in known) or 'no keywords'}."


def says_what_was_meant(function: str = "", call: str = "", first: str = "") -> Callable[[F], F]:
    """Decorate a function so that a call with wrong arguments says what was meant.

    Args:
        function: Its name, as people call it. Empty for the constructor of a class.
        call: How to write what people mean who give it more arguments than it takes.
        first: The keyword that people mean by an argument without a name.
    """

    def decorate(fun: F) -> F:
        signature = inspect.signature(fun)

        @functools.wraps(fun)
        def checked(*args: Any, **kwargs: Any) -> Any:
            try:
                return fun(*args, **kwargs)
            except TypeError:
                try:
                    signature.bind(*args, **kwargs)
                except TypeError as error:
                    said = _meant(function, call, first, signature, args, kwargs, str(error))
                else:
                    raise
            raise TypeError(said)

        return checked  # type: ignore[return-value]

    return decorate


def _meant(
    function: str,
    call: str,
    first: str,
    signature: inspect.Signature,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    error: str,
) -> str:
    params = list(signature.parameters.values())
    known = _names(params)
    if not function:
        made = type(args[0])
        function, args, params = made.__name__, args[1:], params[1:]
        known = _keywords_of_class(made)
    places = [each for each in params if each.kind == each.POSITIONAL_OR_KEYWORD]
    if all(each.name == "options" for each in params if each.kind == each.VAR_KEYWORD):  # Which are those of a base.
        for name in kwargs:
            if name not in known:
                return unexpected(function, name, known)
    if len(args) > len(places) and not any(each.kind == each.VAR_POSITIONAL for each in params):
        return _too_many(function, call, first, args[len(places) :], [each.name for each in places], known)
    return f"{function}: {error}."


def _too_many(function: str, call: str, first: str, more: tuple[Any, ...], places: list[str], known: list[str]) -> str:
    takes = f"takes only {', '.join(places)} by position" if places else "takes all arguments by name"
    given = more[0]
    names = [given] if isinstance(given, str) else given if isinstance(given, (list, tuple)) else []
    if "argnames" in known and names and all(isinstance(name, str) for name in names):
        return f"{function} {takes}. To select keys, write argnames={given!r}."
    if call:
        return f"{function} {takes}, and returns a function: write {call}."
    if first:
        return f"{function} {takes}. Did you mean {first}={given!r}?"
    others = ", ".join(f"{name}=" for name in known if name not in places)
    return f"{function} {takes}{', and by name ' if places else ': '}{others}."


def _names(params: Iterable[inspect.Parameter]) -> list[str]:
    return [each.name for each in params if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]


def _keywords_of_class(made: type) -> list[str]:
    """The keywords of a constructor, and those that it passes on to the one of its base."""
    found: dict[str, None] = {}
    for base in made.__mro__:
        if "__init__" in vars(base) and base is not object:
            params = list(inspect.signature(vars(base)["__init__"]).parameters.values())[1:]
            found |= dict.fromkeys(_names(params))
            if not any(each.kind == each.VAR_KEYWORD for each in params):
                break
    return list(found)
