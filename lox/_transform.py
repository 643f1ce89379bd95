"""The common part of the public transformations: a function is decorated and run under a handler."""

from __future__ import annotations

import contextlib
import functools
import inspect
import weakref
from collections.abc import Callable
from typing import Any

import jax

import lox._autodiff as _autodiff  # noqa: F401  (registers how JAX's transformations meet logs)
import lox._batching as _batching  # noqa: F401
import lox._deliver as _deliver  # noqa: F401
import lox._rules as _rules  # noqa: F401
from lox import _compat
from lox._ambient import begin_handler
from lox._effect import in_place, recording, watching
from lox._events import Logs, Site
from lox._exceptions import LogValueError
from lox._handler import Filter, Handler, State
from lox._logged_names import Search, silently, taking
from lox._site import calling_site
from lox._trace import under

Function = Callable[..., Any]


def decorate(fun: Function | None, transform: Callable[[Function], Function]) -> Any:
    """Applies a transformation, or returns it as a decorator when there is no function yet."""
    if fun is None:
        return lambda f: decorate(f, transform)
    if not callable(fun):
        raise TypeError(f"lox transforms functions, got {fun!r} of type {type(fun).__name__}.")
    if inspect.isgeneratorfunction(fun) or inspect.iscoroutinefunction(fun) or inspect.isasyncgenfunction(fun):
        raise TypeError(f"lox transforms functions that run when they are called; {fun!r} is a generator or coroutine.")
    return transform(fun)


def run(handler: Handler, state: State, fun: Function, args: Any, kwargs: Any) -> tuple[Any, State, Logs]:
    """Call `fun` under a handler; returns its result, the state after it and the logs that were collected."""
    begin_handler()
    stays = not handler.returns_logs and (in_place.value or not recording.value)
    # A context that is not set costs nothing at each dispatch.
    with recording(True), in_place(stays) if stays != in_place.value else contextlib.nullcontext():
        return under(handler, fun, finishes=True)(state, *args, **kwargs)


def jitted(fun: Function, call: Callable[..., Any]) -> Function | None:
    """A jitted function that compiles all that a handler adds to it too, and that JAX dispatches to.

    Args:
        fun: A jitted function. The result does not keep it alive.
        call: `call(fun, *more, args, kwargs)` runs it under the handler.

    Returns:
        A function of as many leading arguments as `call` takes between, and those of `fun`; None when JAX would not
        read its arguments as it does those of `fun`.
    """
    jit_options = _compat.jit_options(fun)
    if jit_options is None:
        return None
    alive = weakref.ref(fun)
    more = len(inspect.signature(call).parameters) - 3

    options = dict(jit_options)
    options_inside = {name: value for name, value in options.items() if name != "compiler_options"}

    # JAX reads the names: one that the function takes by keyword must not be among them.
    def handled(*lox_args: Any, **lox_kwargs: Any) -> Any:
        function = alive()
        if function is None:
            raise ReferenceError("the function that was transformed is gone")
        if "compiler_options" in options:  # Only the outermost jitted function may have them.
            function = jax.jit(function.__wrapped__, **options_inside)  # type: ignore[attr-defined]
        return call(function, *lox_args[:more], lox_args[more:], lox_kwargs)

    handled.__name__ = getattr(fun, "__name__", "handled")
    for name in ("static_argnums", "donate_argnums"):
        options[name] = tuple(place + more if place >= 0 else place for place in options[name])
    return jax.jit(handled, **options)


def positive(name: str, value: Any) -> int | None:
    """The value of a keyword that is a positive integer or None.

    Raises:
        LogValueError: It is neither.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not hasattr(value, "__index__") or value.__index__() < 1:
        raise LogValueError(f"{name} must be a positive integer, got {value!r} of type {type(value).__name__}.")
    if value.__index__() >= 2**31:
        raise LogValueError(f"{name} must be less than 2**31, got {value!r}.")
    return value.__index__()


def string(name: str, value: Any) -> str:
    """The value of a keyword that is a string.

    Raises:
        LogValueError: It is none.
    """
    if not isinstance(value, str):
        raise LogValueError(f"{name} must be a string, got {value!r} of type {type(value).__name__}.")
    return value


def choice(name: str, value: Any, known: tuple[str, ...]) -> str:
    """The value of a keyword that is one of some names.

    Raises:
        LogValueError: It is none of them.
    """
    if value not in known:
        raise LogValueError(f"{name} must be one of {', '.join(map(repr, known))}, got {value!r}.")
    return value


def checked(
    fun: Function,
    owner: Any,
    call: Function,
    function: str,
    site: Site | None,
    keywords: dict[str, tuple[str, ...]],
    heeds_rules: bool = False,
) -> Function:
    """Give `fun` under a handler the metadata of `fun`, and have it warn, once, of selected names that it does not log.

    Args:
        fun: The function.
        owner: An object that identifies the handler.
        call: `fun` under the handler.
        function: The function of lox that made it.
        site: The place of that call in the user's program; None where there is nothing to check.
        keywords: The names that are selected, by keyword.
        heeds_rules: Whether rules of differentiation may log for the handler when the call is over.
    """
    if site is None:
        return functools.wraps(fun, updated=())(call)
    search = Search(function, keywords, site, heeds_rules)
    return functools.wraps(fun, updated=())(lambda *args, **kwargs: search.call(owner, call, args, kwargs))


def site_of(keywords: dict[str, tuple[str, ...]]) -> Site | None:
    """The line of the user's program that is calling lox; None where no names are selected, which takes no time."""
    return calling_site() if any(keywords.values()) else None


def handle(fun: Function, handler: Filter, silent: bool, takes: Callable[[str, tuple[str, ...]], bool]) -> Function:
    """`fun` under a handler that only changes what a handler further out receives.

    Args:
        fun: The function.
        handler: The handler.
        silent: Whether it lets no log through, so that the function need not log at all.
        takes: Whether it removes logs of this key and these tags.
    """

    def run(args: Any, kwargs: Any) -> Any:
        return under(handler, fun)(None, *args, **kwargs)[0]

    @functools.wraps(fun, updated=())
    def handled(*args: Any, **kwargs: Any) -> Any:
        if not recording.value:
            return fun(*args, **kwargs)
        begin_handler()
        is_silent = silent and watching.value is None  # Points are heard outside.
        with recording(not is_silent):
            return silently(run, args, kwargs) if is_silent else taking(handler, takes, run, args, kwargs)

    return handled
